"""The shared parts of the two towers: attention, MLP, residual block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.clip.config import TowerConfig

# Maps the input (..., T, W) of a linear to what is added to its output (..., T, W).
Update = Callable[[Tensor], Tensor]


class QuickGELU(nn.Module):
    """x · sigmoid(1.702 x), the activation of OpenAI's checkpoints."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape in, the same out."""
        return x * torch.sigmoid(1.702 * x)


class Attention(nn.Module):
    """Multi-head attention in pieces, so that a tower can choose its queries and keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        # Set by `CLIP.updated` for the time of its context: what is added to queries, keys or values.
        self.updates: Mapping[str, Update] = {}

    def split(self, x: Tensor) -> Tensor:
        """(..., T, W) -> (..., heads, T, W / heads)."""
        return torch.unflatten(x, -1, (self.heads, -1)).transpose(-3, -2)

    def merge(self, x: Tensor) -> Tensor:
        """(..., heads, T, W / heads) -> (..., T, W), through the output projection."""
        merged: Tensor = self.out(x.transpose(-3, -2).flatten(-2))
        return merged

    def project(self, x: Tensor, queries: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (..., heads, T, W / heads).

        x: (..., T, W). queries: the rows (..., N, W) whose queries are wanted; all of x unless given.
        """
        if queries is None:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            return self._finish(x, x, q, k, v)
        width = x.shape[-1]
        weight, bias = self.qkv.weight, self.qkv.bias
        q = F.linear(queries, weight[:width], bias[:width])
        k, v = F.linear(x, weight[width:], bias[width:]).chunk(2, dim=-1)
        return self._finish(x, queries, q, k, v)

    def _finish(self, x: Tensor, rows: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Add the updates and split the heads; `rows` are the inputs of the queries."""
        if self.updates:
            q, k, v = (
                value + self.updates[name](inputs) if name in self.updates else value
                for name, value, inputs in (("q", q, rows), ("k", k, x), ("v", v, x))
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

    def forward(self, x: Tensor, *, causal: bool = False, rows: slice | None = None) -> Tensor:
        """x: (B, T, W) -> (B, T, W), or (B, len(rows), W) when only some rows are wanted.

        In a tower's last block one row feeds the output; the queries and the MLP of the
        others would be thrown away. Rows that are chosen see every key.
        """
        normed = self.ln_1(x)
        if rows is None:
            mixed = F.scaled_dot_product_attention(*self.attn.project(normed), is_causal=causal)
        else:
            mixed = F.scaled_dot_product_attention(*self.attn.project(normed, normed[..., rows, :]))
            x = x[..., rows, :]
        return self.finish(x, mixed)

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
