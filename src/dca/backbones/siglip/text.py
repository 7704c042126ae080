"""The text tower: every row attends to all rows of its sequence, padding included, and the last row is the feature.

Sequences have one length: the text, EOT, and padding, whose rows take part as in training. So nothing of a sequence can
be shared between classes, and a learned context stands where the embeddings of its words would stand: at the beginning.
Only the last row leaves the last block, so only that row needs a query and an MLP there.

With very many classes on a GPU, classes are encoded in chunks and activations are recomputed in the backward pass
(gradient checkpointing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dca.backbones.blocks import (
    NO_UPDATES,
    OUTSIDE,
    Blocks,
    Linear,
    Residual,
    TowerUpdates,
    apply_with_update,
    autocast_dtype,
)
from dca.backbones.clip.text import cached_indices, classes_per_chunk
from dca.backbones.dual_encoder import TextTower
from dca.backbones.siglip.config import SigLIPTextConfig

LAST = slice(-1, None)
# Tokens that replace the first rows of some sequences: (L, W), or one (L, W) per sequence (N, L, W).
Deep = Mapping[int, Tensor]


class SigLIPTextTower(TextTower):
    """Token embeddings with positions through the blocks; the last row becomes the feature."""

    outside_norms = ("ln_final",)

    def __init__(self, config: SigLIPTextConfig, embed_dim: int, pad_id: int) -> None:
        super().__init__()
        self.config, self.pad_id = config, pad_id
        self.layers, self.width = config.layers, config.width
        # With `_weight`, since the random initialisation of nn.Embedding imports torch._dynamo on the meta device.
        weight = torch.empty(config.vocab_size, config.width)
        self.embedding = nn.Embedding(config.vocab_size, config.width, _weight=weight)
        self.positions = nn.Parameter(torch.empty(config.context_length, config.width))
        self.blocks = Blocks(config)
        self.ln_final = nn.LayerNorm(config.width, eps=config.eps)
        self.projection = Linear(config.width, embed_dim)

    def embed(self, ids: Sequence[int]) -> Tensor:
        """Token embeddings (R, W) of R ids, without positions."""
        embedded: Tensor = self.embedding(cached_indices(tuple(ids), self.positions.device))
        return embedded

    def encode_ids(self, sequences: Sequence[Sequence[int]], updates: TowerUpdates | None = None) -> Tensor:
        """Id sequences up to EOT, of any lengths -> features (N, D)."""
        return self._run(self._embed_padded(sequences, self.config.context_length), {}, updates or {})

    def encode_embedded(self, sequences: Sequence[Tensor]) -> Tensor:
        """Embedded sequences (T_i, W) up to EOT, without positions -> features (N, D)."""
        pad, length = self.embed([self.pad_id]), self.config.context_length
        padded = [torch.cat([rows, pad.to(rows.dtype).expand(length - len(rows), -1)]) for rows in sequences]
        return self._run(torch.stack(padded), {}, {})

    def encode_prompts(
        self,
        contexts: Sequence[Tensor] | Tensor,
        names: Sequence[Sequence[int]],
        deep: Sequence[Deep] | None = None,
        updates: TowerUpdates | None = None,
        chunk_size: int | None = None,
    ) -> Tensor:
        """Every class under every context: features (M, C, D).

        contexts: M contexts, each (L_m, W) shared by the classes or (C, L_m, W) with one per class; or one
        tensor (B, L, W) of B shared contexts, whose B may be symbolic.
        names: ids of each class's own tokens, with EOT.
        deep: for each context, block index -> tokens (L_m, W) or (C, L_m, W) that replace its rows at the
        input of that block.
        chunk_size: number of classes that are encoded together; by default as many as fit, see `classes_per_chunk`.
        """
        updates = updates or {}
        if isinstance(contexts, Tensor) and contexts.dim() == 3 and deep is None:
            return self._encode_batch(contexts, names, updates)
        layers = deep or [{} for _ in contexts]
        pairs = list(zip(contexts, layers, strict=True))
        size = chunk_size or self._classes_at_once(len(names), contexts[0])
        if size >= len(names):
            return torch.stack([self._encode_prompt(context, names, own, updates) for context, own in pairs])
        options: Any = {"use_reentrant": False, "preserve_rng_state": False}
        rows: list[Tensor] = []
        for context, own in pairs:
            chunks = [slice(start, start + size) for start in range(0, len(names), size)]
            parts = [
                checkpoint(
                    self._encode_prompt,
                    _of_classes(context, chunk),
                    names[chunk],
                    {layer: _of_classes(tokens, chunk) for layer, tokens in own.items()},
                    updates,
                    **options,
                )
                for chunk in chunks
            ]
            rows.append(torch.cat(parts))
        return torch.stack(rows)

    def _encode_prompt(
        self, context: Tensor, names: Sequence[Sequence[int]], deep: Deep, updates: TowerUpdates
    ) -> Tensor:
        """All classes under one context (L, W) or (C, L, W): features (C, D)."""
        rest = self._embed_padded(names, self.config.context_length - context.shape[-2])
        own = context.to(rest.dtype).expand(len(names), -1, -1)
        return self._run(torch.cat([own, rest], dim=1), deep, updates)

    def _encode_batch(self, contexts: Tensor, names: Sequence[Sequence[int]], updates: TowerUpdates) -> Tensor:
        """All classes under each of B contexts (B, L, W): features (B, C, D)."""
        C, (B, L, W) = len(names), contexts.shape
        rest = self._embed_padded(names, self.config.context_length - L)
        x = torch.cat([contexts[:, None].expand(B, C, L, W), rest.expand(B, *rest.shape)], dim=2)
        return torch.unflatten(self._run(x.flatten(0, 1), {}, updates), 0, (-1, C))

    def _embed_padded(self, sequences: Sequence[Sequence[int]], length: int) -> Tensor:
        """Embeddings (N, length, W) of ids, padded behind."""
        ids = [index for own in sequences for index in (*own, *[self.pad_id] * (length - len(own)))]
        return torch.unflatten(self.embed(ids), 0, (len(sequences), length))

    def _classes_at_once(self, classes: int, like: Tensor) -> int:
        """All classes, or as many as fit on a GPU that computes gradients."""
        rows = [self.config.context_length] * classes
        return classes_per_chunk(rows, 1, self.config, like.new_empty(0, dtype=autocast_dtype(like)))

    def _run(self, x: Tensor, deep: Deep, updates: TowerUpdates) -> Tensor:
        """Embedded sequences (N, T, W), without positions -> features (N, D)."""
        residual = Residual(x + self.positions.to(x.dtype))
        for layer, block in enumerate(self.blocks):
            if layer in deep:
                residual = Residual(_replace_first(residual.total(), deep[layer]))
            only = LAST if layer == len(self.blocks) - 1 else None
            residual = block(residual, only=only, updates=updates.get(layer, NO_UPDATES))
        outside = updates.get(OUTSIDE, NO_UPDATES)
        last = apply_with_update(self.ln_final, residual.total()[:, 0], outside.get("ln_final"))
        features: Tensor = self.projection(last)
        return features


def _replace_first(x: Tensor, tokens: Tensor) -> Tensor:
    """Put tokens (L, W), or (N, L, W), in the place of the first L rows of x (N, T, W)."""
    tokens = tokens.to(x.dtype).expand(x.shape[0], -1, -1)
    return torch.cat([tokens, x[:, tokens.shape[1] :]], dim=1)


def _of_classes(tokens: Tensor, classes: slice) -> Tensor:
    """Those of some classes, if there are tokens per class (C, L, W); shared ones (L, W) as they are."""
    return tokens[classes] if tokens.dim() == 3 else tokens
