"""The shared parts of the two towers: attention, MLP, residual block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.clip.config import TowerConfig

# Maps the input (..., T, W) of a projection to what is added to its output (..., T, W).
Update = Callable[[Tensor], Tensor]
# The updates of one block ("q", "k" or "v" -> update), and those of a tower (block index -> its updates).
BlockUpdates = Mapping[str, Update]
TowerUpdates = Mapping[int, BlockUpdates]
NO_UPDATES: BlockUpdates = MappingProxyType({})
PARTS = ("q", "k", "v")


def updates_of_tower(updates: Mapping[str, Update] | None, tower: str, blocks: int) -> TowerUpdates:
    """Sort updates such as "visual.0.q" by block, leaving out those of the other tower.

    Raises ValueError for a name that is not tower ("visual" or "text"), block index and one of q, k, v.
    """
    found: dict[int, dict[str, Update]] = {}
    for name, update in (updates or {}).items():
        owner, _, place = name.partition(".")
        index, _, part = place.partition(".")
        if owner not in ("visual", "text") or not index.isdecimal() or part not in PARTS:
            raise ValueError(f"update '{name}': expected a name such as 'visual.0.q' or 'text.11.v'")
        if owner != tower:
            continue
        if int(index) >= blocks:
            raise ValueError(f"update '{name}': the {tower} tower has {blocks} blocks, numbered from 0")
        found.setdefault(int(index), {})[part] = update
    return found


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

    def merge(self, x: Tensor) -> Tensor:
        """(..., heads, T, W / heads) -> (..., T, W), through the output projection."""
        merged: Tensor = self.out(x.transpose(-3, -2).flatten(-2))
        return merged

    def project(
        self, x: Tensor, queries: Tensor | None = None, updates: BlockUpdates = NO_UPDATES
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (..., heads, T, W / heads).

        x: (..., T, W). queries: rows (..., N, W) to compute queries for; all rows of x by default.
        updates: what is added to the projections.
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
        normed = self.ln_1(x)
        if rows is None:
            mixed = F.scaled_dot_product_attention(*self.attn.project(normed, updates=updates), is_causal=causal)
        else:
            mixed = F.scaled_dot_product_attention(*self.attn.project(normed, normed[..., rows, :], updates))
            x = x[..., rows, :]
        return self.finish(x, mixed)

    def apart(self, x: Tensor) -> Tensor:
        """x: (B, T, W) -> (B, T, W), without attention: every row gets its own value instead of a mixture."""
        values = 2 * x.shape[-1]
        v = F.linear(self.ln_1(x), self.attn.qkv.weight[values:], self.attn.qkv.bias[values:])
        return self.finish(x, self.attn.split(v))

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Residual around the attention output `mixed` (heads split), then the MLP."""
        x = x + self.attn.merge(mixed)
        x = x + self.mlp(self.ln_2(x))
        return x


class Blocks(nn.ModuleList):
    """The blocks of a tower, first to last."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__(Block(config) for _ in range(config.layers))

    def __iter__(self) -> Iterator[Block]:
        """Typed iteration."""
        return cast(Iterator[Block], super().__iter__())
