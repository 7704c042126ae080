"""The shared parts of the two towers: attention, MLP, residual block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.clip.config import TowerConfig

# Maps the input (..., T, V) of a linear layer or norm to what is added to its output (..., T, W).
Update = Callable[[Tensor], Tensor]
# The updates of one block (its part -> update), and those of a tower (block index -> its updates; OUTSIDE for norms
# outside the blocks).
BlockUpdates = Mapping[str, Update]
TowerUpdates = Mapping[int, BlockUpdates]
NO_UPDATES: BlockUpdates = MappingProxyType({})
OUTSIDE = -1
PARTS = ("q", "k", "v")
LINEARS, NORMS = (*PARTS, "out", "fc", "proj"), ("ln_1", "ln_2")
NORMS_OUTSIDE = {"visual": ("ln_pre", "ln_post"), "text": ("ln_final",)}


def updates_of_tower(updates: Mapping[str, Update] | None, tower: str, blocks: int) -> TowerUpdates:
    """Sort updates such as "visual.0.q" by block, leaving out those of the other tower.

    Raises ValueError for a name that is neither tower ("visual" or "text"), block index and one of `LINEARS` and
    `NORMS`, nor tower and one of its `NORMS_OUTSIDE`.
    """
    found: dict[int, dict[str, Update]] = {}
    for name, update in (updates or {}).items():
        owner, _, place = name.partition(".")
        index, _, part = place.partition(".")
        outside = place in NORMS_OUTSIDE.get(owner, ())
        inside = owner in NORMS_OUTSIDE and index.isdecimal() and part in LINEARS + NORMS
        if not inside and not outside:
            raise ValueError(f"update '{name}': expected a name such as 'visual.0.q' or 'text.ln_final'")
        if owner != tower:
            continue
        if inside and int(index) >= blocks:
            raise ValueError(f"update '{name}': the {tower} tower has {blocks} blocks, numbered from 0")
        found.setdefault(OUTSIDE if outside else int(index), {})[place if outside else part] = update
    return found


def updated(layer: nn.Module, x: Tensor, update: Update | None) -> Tensor:
    """The output of a layer, and what an update adds to it."""
    y: Tensor = layer(x)
    return y if update is None else y + update(x)


class QuickGELU(nn.Module):
    """x · sigmoid(1.702 x), the activation of OpenAI's checkpoints."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape in, the same out."""
        return x * torch.sigmoid(1.702 * x)


class Attention(nn.Module):
    """Multi-head attention in separate steps, so that a tower can choose its queries and keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        """(..., T, W) -> (..., heads, T, W / heads)."""
        return torch.unflatten(x, -1, (self.heads, -1)).transpose(-3, -2)

    def merge(self, x: Tensor, update: Update | None = None) -> Tensor:
        """(..., heads, T, W / heads) -> (..., T, W), through the output projection and its update."""
        return updated(self.out, x.transpose(-3, -2).flatten(-2), update)

    def project(
        self, x: Tensor, queries: Tensor | None = None, updates: BlockUpdates = NO_UPDATES
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (..., heads, T, W / heads).

        x: (..., T, W). queries: rows (..., N, W) to compute queries for; all rows of x by default.
        updates: those of the block.
        """
        if queries is None:
            queries = x
            q, k, v = self.qkv(x).chunk(3, dim=-1)
        else:
            width = x.shape[-1]
            weight, bias = self.qkv.weight, self.qkv.bias
            q = F.linear(queries, weight[:width], bias[:width])
            k, v = F.linear(x, weight[width:], bias[width:]).chunk(2, dim=-1)
        if updates:
            q, k, v = (
                value + updates[part](inputs) if part in updates else value
                for part, value, inputs in zip(PARTS, (q, k, v), (queries, x, x), strict=True)
            )
        return self.split(q), self.split(k), self.split(v)


class Block(nn.Module):
    """Pre-norm residual block: x + attention(ln_1 x), then + mlp(ln_2 ·)."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.width, eps=config.eps)
        self.attn = Attention(config.width, config.heads)
        self.ln_2 = nn.LayerNorm(config.width, eps=config.eps)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, config.hidden),
            QuickGELU() if config.activation == "quick_gelu" else nn.GELU(),
            nn.Linear(config.hidden, config.width),
        )

    def forward(
        self, x: Tensor, *, causal: bool = False, rows: slice | None = None, updates: BlockUpdates = NO_UPDATES
    ) -> Tensor:
        """x: (B, T, W) -> (B, T, W), or (B, N, W) if `rows` selects N rows.

        The output of a tower depends on one row of its last block: with `rows` the queries and the MLP of
        the other rows are not computed. The selected rows attend to all keys.
        """
        normed = updated(self.ln_1, x, updates.get("ln_1"))
        if rows is None:
            mixed = F.scaled_dot_product_attention(*self.attn.project(normed, updates=updates), is_causal=causal)
        else:
            mixed = F.scaled_dot_product_attention(*self.attn.project(normed, normed[..., rows, :], updates))
            x = x[..., rows, :]
        return self.finish(x, mixed, updates)

    def apart(self, x: Tensor) -> Tensor:
        """x: (B, T, W) -> (B, T, W), without attention: every row gets its own value instead of a mixture."""
        values = 2 * x.shape[-1]
        v = F.linear(self.ln_1(x), self.attn.qkv.weight[values:], self.attn.qkv.bias[values:])
        return self.finish(x, self.attn.split(v))

    def finish(self, x: Tensor, mixed: Tensor, updates: BlockUpdates = NO_UPDATES) -> Tensor:
        """Residual around the attention output `mixed` (heads split), then the MLP."""
        x = x + self.attn.merge(mixed, updates.get("out"))
        fc, activation, proj = self.mlp
        hidden = updated(fc, updated(self.ln_2, x, updates.get("ln_2")), updates.get("fc"))
        return x + updated(proj, activation(hidden), updates.get("proj"))


class Blocks(nn.ModuleList):
    """The blocks of a tower, first to last."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__(Block(config) for _ in range(config.layers))

    def __iter__(self) -> Iterator[Block]:
        """Typed iteration."""
        return cast(Iterator[Block], super().__iter__())
