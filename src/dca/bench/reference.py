"""The usual way: every class name under every prompt as a sequence of full length, all rows through all blocks.

Written plainly, after the structure of CoOp's code, as what the fast implementations are compared with.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.clip import CLIP
from dca.clip.blocks import Rows
from dca.core.kernels import plain
from dca.methods.dca import DCA


def text_features(method: DCA) -> Tensor:
    """u: unit text features (M, C, D), 77 tokens for every class and prompt."""
    clip = method.clip
    with plain(), clip._autocast(None):
        found = [_encode(clip, context, method.text.name_ids) for context in method.text.contexts]
    return F.normalize(torch.stack(found).float(), dim=-1)


def _encode(clip: CLIP, context: Tensor, names: list[list[int]]) -> Tensor:
    """Features (C, D) of all names behind one context (L, W)."""
    tower, length = clip.text, clip.config.text.context_length
    ids = torch.tensor([[*own, *[0] * (length - 1 - len(context) - len(own))] for own in names], device=context.device)
    start = tower.embed([clip.config.text.sot_id]).expand(len(names), -1, -1)
    x = torch.cat([start, context.expand(len(names), -1, -1), tower.embedding(ids)], dim=1) + tower.positions
    for block in tower.blocks:
        x = block(Rows(x), causal=True).total()
    ends = torch.tensor([len(context) + len(own) for own in names], device=context.device)
    feature: Tensor = tower.projection(tower.ln_final(x[torch.arange(len(names), device=x.device), ends]))
    return feature


def image_features(method: DCA, pixels: Tensor) -> Tensor:
    """f: unit image features (B, D), all rows through all blocks."""
    clip, tower = method.clip, method.clip.visual
    with plain(), clip._autocast(None):
        x = tower.ln_pre(tower.embed(pixels))
        tokens = method.visual.tokens.expand(len(x), -1, -1)
        x = torch.cat([x[:, :1], tokens, x[:, 1:]], dim=1)
        for block in tower.blocks:
            x = block(Rows(x)).total()
        feature = tower.projection(tower.ln_post(x[:, 0]))
    return F.normalize(feature.float(), dim=-1)


class UsualDCA(DCA):
    """DCA whose features come the usual way."""

    def encode(self, pixels: Tensor) -> Tensor:
        """f: unit image features (B, D)."""
        return image_features(self, pixels)

    def encode_text(self, places: Sequence[int] | None = None) -> Tensor:
        """u: unit text features (M, C, D), of all classes."""
        assert places is None
        return text_features(self)


def usual(method: DCA) -> UsualDCA:
    """The same method, with the same parameters, the usual way."""
    other = copy.copy(method)
    other.__class__ = UsualDCA
    assert isinstance(other, UsualDCA)
    return other


def dense_distances(f: Tensor, u: Tensor, inverses: Tensor) -> Tensor:
    """d_m (B, M, C) of f (B, D) with whole matrices: u (M, C, D), inverses (M, C, D, D)."""
    found = []
    for one, matrices in zip(u, inverses, strict=True):
        delta = f[:, None] - one
        found.append(torch.einsum("bcd,cde,bce->bc", delta, matrices, delta))
    return torch.stack(found, dim=1)


def dense_inverses(x: Tensor, center: Tensor, gamma1: float, gamma2: float) -> Tensor:
    """Σ̂⁻¹ of every class as a whole matrix (C, D, D): x (C, K, D) about center (C, D), Eqs. 5 and 6."""
    delta = x - center[:, None]
    sigma = delta.mT @ delta / (x.shape[1] - 1)
    D = sigma.shape[-1]
    trace = sigma.diagonal(dim1=1, dim2=2).sum(dim=1)
    v_d, v_o = trace / D, (sigma.sum(dim=(1, 2)) - trace) / (D * (D - 1))
    one = torch.eye(D, device=x.device)
    sigma += (gamma1 * v_d)[:, None, None] * one + (gamma2 * v_o)[:, None, None] * (1 - one)
    scale = sigma.diagonal(dim1=1, dim2=2).sqrt()
    sigma /= scale[:, :, None] * scale[:, None, :]
    inverse: Tensor = torch.linalg.inv(sigma)
    return inverse
