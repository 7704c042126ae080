"""Linear layers whose frozen weights are kept in the compute type.

The shared parts of the two towers: attention, MLP, residual block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from dca.backbones.clip.config import TowerConfig
from dca.backbones.fast.activation import activate
from dca.backbones.fast.norm import add_norm

# Weight -> ((its version, another type), the weight in that type). Not part of the layer: copies, checkpoints and
# digests of the backbone hold the weights alone.
_CAST: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def compute_type(x: Tensor) -> torch.dtype:
    """The type in which layers calculate for x: that of autocast where it is on, else the type of x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def in_type(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A frozen weight in a type, converted once; a weight that is trained is converted at every call."""
    if weight.dtype == dtype:
        return weight
    traced = type(torch.empty(0)) is not Tensor or torch.compiler.is_compiling()
    if weight.requires_grad or weight.is_inference() or traced:  # inference tensors have no version
        return weight.to(dtype)
    kept = _CAST.get(weight)  # type: ignore[no-untyped-call]
    if kept is None or kept[0] != (weight._version, dtype):
        # A tensor created in inference mode could not be used in a later training step.
        with torch.inference_mode(False), torch.no_grad():
            kept = _CAST[weight] = (weight._version, dtype), weight.to(dtype)
    cast: Tensor = kept[1]
    return cast


class Linear(nn.Linear):
    """`nn.Linear`; with autocast, its frozen weights are not converted again at every call."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., V) -> (..., W)."""
        dtype = compute_type(x)
        bias = None if self.bias is None else in_type(self.bias, dtype)
        return F.linear(x.to(dtype), in_type(self.weight, dtype), bias)

    def part(self, x: Tensor, rows: slice) -> Tensor:
        """Some of the outputs: (..., V) -> (..., n)."""
        dtype = compute_type(x)
        return F.linear(x.to(dtype), in_type(self.weight, dtype)[rows], in_type(self.bias, dtype)[rows])


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


class Rows(NamedTuple):
    """Rows x + added of the residual stream, (..., T, W): the next norm adds and norms in one pass."""

    x: Tensor
    added: Tensor | None = None

    def total(self) -> Tensor:
        """The sum."""
        return self.x if self.added is None else self.x + self.added


def normed(rows: Rows, norm: nn.LayerNorm, update: Update | None) -> tuple[Tensor, Tensor]:
    """The sum of the rows, and its layer norm in the compute type with what an update adds."""
    x, found = add_norm(rows.x, rows.added, norm, compute_type(rows.x))
    return x, found if update is None else found + update(x)


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    """softmax(q kᵀ / √d) v: queries (..., N, d), keys and values (..., T, d) -> (..., N, d).

    On a CPU the gradient of torch's attention in bfloat16 takes four times as long as the products themselves.
    """
    trained = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if causal or q.device.type != "cpu" or q.dtype != torch.bfloat16 or not trained:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1, dtype=torch.float32)
    mixed: Tensor = weights.to(v.dtype) @ v
    return mixed


class Activation(nn.Module):
    """QuickGELU, x · sigmoid(1.702 x), the activation of OpenAI's checkpoints; or GELU."""

    def __init__(self, *, quick: bool = True) -> None:
        super().__init__()
        self.quick = quick

    def forward(self, x: Tensor) -> Tensor:
        """Any shape in, the same out."""
        return activate(x, quick=self.quick)


class Attention(nn.Module):
    """Multi-head attention in separate steps, so that a tower can choose its queries and keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(width, 3 * width)
        self.out = Linear(width, width)

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
            q = self.qkv.part(queries, slice(width))
            k, v = self.qkv.part(x, slice(width, None)).chunk(2, dim=-1)
        if updates:
            q, k, v = (
                value + updates[part](inputs) if part in updates else value
                for part, value, inputs in zip(PARTS, (q, k, v), (queries, x, x), strict=True)
            )
        return self.split(q), self.split(k), self.split(v)

    def together(self, x: Tensor, updates: BlockUpdates = NO_UPDATES) -> Tensor:
        """Queries, keys and values side by side, heads not split: (..., T, W) -> (..., T, 3W)."""
        y: Tensor = self.qkv(x)
        if not any(part in updates for part in PARTS):
            return y
        return torch.cat([
            value + updates[part](x) if part in updates else value
            for part, value in zip(PARTS, y.chunk(3, dim=-1), strict=True)
        ], dim=-1)  # fmt: skip


class Block(nn.Module):
    """Pre-norm residual block: x + attention(ln_1 x), then + mlp(ln_2 ·)."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.width, eps=config.eps)
        self.attn = Attention(config.width, config.heads)
        self.ln_2 = nn.LayerNorm(config.width, eps=config.eps)
        self.mlp = nn.Sequential(
            Linear(config.width, config.hidden),
            Activation(quick=config.activation == "quick_gelu"),
            Linear(config.hidden, config.width),
        )

    def forward(
        self, rows: Rows, *, causal: bool = False, only: slice | None = None, updates: BlockUpdates = NO_UPDATES
    ) -> Rows:
        """Rows (B, T, W) -> (B, T, W), or (B, N, W) if `only` selects N rows.

        The output of a tower depends on one row of its last block: with `only` the queries and the MLP of
        the other rows are not computed. The selected rows attend to all keys.
        """
        x, inputs = normed(rows, self.ln_1, updates.get("ln_1"))
        if only is None:
            mixed = attention(*self.attn.project(inputs, updates=updates), causal=causal)
        else:
            mixed = attention(*self.attn.project(inputs, inputs[..., only, :], updates))
            x = x[..., only, :]
        return self.finish(x, mixed, updates)

    def apart(self, x: Tensor) -> Tensor:
        """x: (B, T, W) -> (B, T, W), without attention: every row gets its own value instead of a mixture."""
        x, inputs = normed(Rows(x), self.ln_1, None)
        v = self.attn.qkv.part(inputs, slice(2 * x.shape[-1], None))
        return self.finish(x, self.attn.split(v)).total()

    def finish(self, x: Tensor, mixed: Tensor, updates: BlockUpdates = NO_UPDATES) -> Rows:
        """Residual around the attention output `mixed` (heads split), then the MLP."""
        x, inputs = normed(Rows(x, self.attn.merge(mixed, updates.get("out"))), self.ln_2, updates.get("ln_2"))
        fc, activation, proj = self.mlp
        hidden = updated(fc, inputs, updates.get("fc"))
        return Rows(x, updated(proj, activation(hidden), updates.get("proj")))


class Blocks(nn.ModuleList):
    """The blocks of a tower, first to last."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__(Block(config) for _ in range(config.layers))

    def __iter__(self) -> Iterator[Block]:
        """Typed iteration."""
        return cast(Iterator[Block], super().__iter__())
