"""The two towers written out: one image or sentence, one head at a time, every row through every layer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.blocks import Block
from dca.backbones.clip import CLIP

# The task of methods that change both towers: labels, the names that CLIP reads, and their sentence.
CLASSES = ("cat", "dog", "a_photo", "x")
NAMES = ("cat", "dog", "a photo", "x")
TEMPLATE = "a photo of {}, a type of x."
# Takes a block's number and its input rows (T, W), and gives the rows it is to see.
Change = Callable[[int, Tensor], Tensor]


def keep(layer: int, x: Tensor) -> Tensor:
    return x


def double(clip: CLIP) -> CLIP:
    """A copy in float64."""
    return copy.deepcopy(clip).double()


def block_of(block: Block, x: Tensor, causal: bool, added: Mapping[str, Tensor]) -> Tensor:
    """One block over rows x (T, W). added: matrices (W, W) that join the weights of q, k or v."""
    T, W = x.shape
    h, d = block.ln_1(x), W // block.attn.heads
    parts = {}
    for place, name in enumerate("qkv"):
        rows = slice(place * W, (place + 1) * W)
        weight = block.attn.qkv.weight[rows] + added.get(name, torch.zeros(W, W, dtype=x.dtype))
        parts[name] = h @ weight.T + block.attn.qkv.bias[rows]
    mixed = torch.zeros_like(x)
    for head in range(block.attn.heads):
        own = slice(head * d, (head + 1) * d)
        for t in range(T):
            seen = t + 1 if causal else T
            weights = (parts["k"][:seen, own] @ parts["q"][t, own] / math.sqrt(d)).softmax(dim=0)
            mixed[t, own] = weights @ parts["v"][:seen, own]
    x = x + mixed @ block.attn.out.weight.T + block.attn.out.bias
    return x + block.mlp(block.ln_2(x))


def encode_image(
    clip: CLIP,
    pixels: Tensor,
    change: Change = keep,
    before_norm: Change = keep,
    added: Callable[[int], Mapping[str, Tensor]] = lambda layer: {},
) -> Tensor:
    """One image (3, S, S) -> its unit feature (D,)."""
    tower, size = clip.visual, clip.config.vision.patch_size
    rows = [tower.cls]
    for i in range(0, pixels.shape[1], size):
        for j in range(0, pixels.shape[2], size):
            patch = pixels[:, i : i + size, j : j + size]
            rows.append((tower.patch_embed.weight * patch).sum(dim=(1, 2, 3)))
    x = torch.stack(rows) + tower.positions
    x = tower.ln_pre(before_norm(0, x))
    for layer, block in enumerate(tower.blocks):
        x = block_of(block, change(layer, x), False, added(layer))
    return F.normalize(tower.projection.weight @ tower.ln_post(x[0]), dim=0)


def encode_text(
    clip: CLIP,
    embedded: Tensor,
    change: Change = keep,
    added: Callable[[int], Mapping[str, Tensor]] = lambda layer: {},
) -> Tensor:
    """One embedded sequence (T, W) from SOS to EOT -> its unit feature (D,)."""
    tower = clip.text
    x = embedded + tower.positions[: len(embedded)]
    for layer, block in enumerate(tower.blocks):
        x = block_of(block, change(layer, x), True, added(layer))
    return F.normalize(tower.projection.weight @ tower.ln_final(x[-1]), dim=0)


def embed(clip: CLIP, sentence: str) -> Tensor:
    """[SOS, words, EOT] as embeddings (T, W)."""
    (ids,) = clip.tokenizer([sentence])
    return clip.text.embedding.weight[torch.tensor(ids)]


def cross_entropy(logits: Tensor, labels: Tensor) -> float:
    """Mean over the images of -log softmax at the label."""
    total = 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        top = max(row)
        total += math.log(sum(math.exp(z - top) for z in row)) + top - row[label]
    return total / len(labels)


def features_of_task(plain: CLIP, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Image features (B, D) of pixels, and text features (C, D) of `NAMES`, through towers with replaced weights."""
    f = torch.stack([encode_image(plain, image) for image in pixels.double()])
    t = [encode_text(plain, embed(plain, TEMPLATE.replace("{}", name))) for name in NAMES]
    return f, torch.stack(t)
