"""The parts that towers are built of: sizes, linear layer, attention, MLP, residual block.

The weights are frozen and never changed by a method. What a method adds to the output of a linear layer or norm is an
argument of the call, an `Update`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from dca.backbones.fast.activation import activate
from dca.backbones.fast.norm import add_norm
from dca.core.errors import UserError

ACTIVATIONS = ("quick_gelu", "gelu", "gelu_tanh")
# Far above any CLIP: a larger number means a damaged file, and would fail later with a less clear error.
MAX_SIZE, MAX_LAYERS = 1 << 22, 1 << 10

# Weight -> ((its version, another type), the weight in that type). Not part of the layer: copies, checkpoints and
# digests of the backbone hold the weights alone.
_CAST: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class TowerConfig:
    """One transformer: W width, layers, heads, hidden width of the MLP."""

    width: int
    layers: int
    heads: int
    hidden: int
    activation: str = "quick_gelu"
    eps: float = 1e-5

    def __post_init__(self) -> None:
        check_sizes(self)
        if self.activation not in ACTIVATIONS:
            raise UserError(f"activation '{self.activation}' is not one of {', '.join(ACTIVATIONS)}")
        if self.width % self.heads:
            raise UserError(f"width {self.width} is not a multiple of the {self.heads} attention heads")


def check_sizes(config: Any) -> None:
    """Raise one error that lists all impossible numbers of a configuration."""
    problems = []
    for field in fields(config):
        value = getattr(config, field.name)
        low, high = (0 if field.name.endswith("_id") else 1), (MAX_LAYERS if field.name == "layers" else MAX_SIZE)
        if field.type == "int" and not (type(value) is int and low <= value <= high):
            problems.append(f"{field.name}: {value!r}, a whole number from {low} to {high} expected")
        elif field.type == "float" and not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
            problems.append(f"{field.name}: {value!r}, a number expected")
    if problems:
        raise UserError(
            "the configuration of the backbone is damaged", details=problems, hint="take the checkpoint's own files"
        )


def autocast_dtype(x: Tensor) -> torch.dtype:
    """The type in which layers compute for x: that of autocast where it is on, else the type of x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def cast_weight(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight in another type; conversions of frozen weights are cached."""
    if weight.dtype == dtype:
        return weight
    traced = type(torch.empty(0)) is not Tensor or torch.compiler.is_compiling()
    if weight.requires_grad or weight.is_inference() or traced:  # inference tensors have no version
        return weight.to(dtype)
    cached = _CAST.get(weight)  # type: ignore[no-untyped-call]
    if cached is None or cached[0] != (weight._version, dtype):
        # A tensor created in inference mode could not be used in a later training step.
        with torch.inference_mode(False), torch.no_grad():
            cached = _CAST[weight] = (weight._version, dtype), weight.to(dtype)
    cast_to: Tensor = cached[1]
    return cast_to


def embed_patches(pixels: Tensor, layer: nn.Conv2d) -> Tensor:
    """Patches (B, P, W) of pixels (B, 3, S, S). They do not overlap, so the convolution is one matrix product."""
    size, dtype = layer.kernel_size[0], autocast_dtype(pixels)
    side = pixels.shape[-1] // size
    whole = pixels[..., : side * size, : side * size].to(dtype)
    cut = whole.reshape(-1, 3, side, size, side, size).permute(0, 2, 4, 1, 3, 5)
    bias = None if layer.bias is None else cast_weight(layer.bias, dtype)
    rows = cut.reshape(-1, side * side, 3 * size * size)
    return F.linear(rows, cast_weight(layer.weight, dtype).flatten(1), bias)


class Linear(nn.Linear):
    """`nn.Linear`; with autocast, its frozen weights are not converted again at every call."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., V) -> (..., W)."""
        dtype = autocast_dtype(x)
        bias = None if self.bias is None else cast_weight(self.bias, dtype)
        return F.linear(x.to(dtype), cast_weight(self.weight, dtype), bias)

    def forward_slice(self, x: Tensor, outputs: slice) -> Tensor:
        """Only these of the outputs: (..., V) -> (..., n)."""
        dtype = autocast_dtype(x)
        return F.linear(x.to(dtype), cast_weight(self.weight, dtype)[outputs], cast_weight(self.bias, dtype)[outputs])


# Maps the input (..., T, V) of a linear layer or norm to what is added to its output (..., T, W).
Update = Callable[[Tensor], Tensor]
# The updates of one block (layer -> update), and those of a tower (block index -> its updates; OUTSIDE for norms
# outside the blocks).
BlockUpdates = Mapping[str, Update]
TowerUpdates = Mapping[int, BlockUpdates]
NO_UPDATES: BlockUpdates = MappingProxyType({})
OUTSIDE = -1
QKV = ("q", "k", "v")
LINEARS, NORMS = (*QKV, "out", "fc", "proj"), ("ln_1", "ln_2")


def group_updates(
    updates: Mapping[str, Update] | None, tower: str, blocks: int, outside_norms: Mapping[str, Sequence[str]]
) -> TowerUpdates:
    """Group updates such as "visual.0.q" by block, without those of the other tower.

    outside_norms: tower ("visual" and "text") -> the names of its norms outside the blocks.

    Raises ValueError for a name that is neither tower, block index and one of `LINEARS` and `NORMS`, nor tower and one
    of its norms outside the blocks.
    """
    grouped: dict[int, dict[str, Update]] = {}
    for name, update in (updates or {}).items():
        owner, _, path = name.partition(".")
        index, _, layer = path.partition(".")
        outside = path in outside_norms.get(owner, ())
        inside = owner in outside_norms and index.isdecimal() and layer in LINEARS + NORMS
        if not inside and not outside:
            raise ValueError(f"update '{name}': expected a name such as 'visual.0.q' or 'text.ln_final'")
        if owner != tower:
            continue
        if inside and int(index) >= blocks:
            raise ValueError(f"update '{name}': the {tower} tower has {blocks} blocks, numbered from 0")
        grouped.setdefault(OUTSIDE if outside else int(index), {})[path if outside else layer] = update
    return grouped


def apply_with_update(layer: nn.Module, x: Tensor, update: Update | None) -> Tensor:
    """The output of a layer plus that of its update, if it has one."""
    y: Tensor = layer(x)
    return y if update is None else y + update(x)


class Residual(NamedTuple):
    """The residual stream x + added, (..., T, W), not added yet: the next norm adds and normalises in one pass."""

    x: Tensor
    added: Tensor | None = None

    def total(self) -> Tensor:
        """The sum."""
        return self.x if self.added is None else self.x + self.added


def add_and_normalize(residual: Residual, norm: nn.LayerNorm, update: Update | None) -> tuple[Tensor, Tensor]:
    """The residual's sum, and its layer norm in the compute type plus the norm's update."""
    x, normalized = add_norm(residual.x, residual.added, norm, autocast_dtype(residual.x))
    return x, normalized if update is None else normalized + update(x)


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
    """QuickGELU, x · sigmoid(1.702 x), the activation of OpenAI's checkpoints; GELU; or GELU approximated by tanh."""

    def __init__(self, kind: str = "quick_gelu") -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        """Any shape in, the same out."""
        if self.kind == "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        return activate(x, quick=self.kind == "quick_gelu")


class Attention(nn.Module):
    """Multi-head attention in separate steps, so that a tower can choose its queries and keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(width, 3 * width)
        self.out = Linear(width, width)

    def split_heads(self, x: Tensor) -> Tensor:
        """(..., T, W) -> (..., heads, T, W / heads)."""
        return torch.unflatten(x, -1, (self.heads, -1)).transpose(-3, -2)

    def merge_heads(self, x: Tensor, update: Update | None = None) -> Tensor:
        """(..., heads, T, W / heads) -> (..., T, W), through the output projection and its update."""
        return apply_with_update(self.out, x.transpose(-3, -2).flatten(-2), update)

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
            q = self.qkv.forward_slice(queries, slice(width))
            k, v = self.qkv.forward_slice(x, slice(width, None)).chunk(2, dim=-1)
        if updates:
            q, k, v = (
                value + updates[part](inputs) if part in updates else value
                for part, value, inputs in zip(QKV, (q, k, v), (queries, x, x), strict=True)
            )
        return self.split_heads(q), self.split_heads(k), self.split_heads(v)

    def project_joint(self, x: Tensor, updates: BlockUpdates = NO_UPDATES) -> Tensor:
        """Queries, keys and values in one tensor, heads not split: (..., T, W) -> (..., T, 3W)."""
        y: Tensor = self.qkv(x)
        if not any(part in updates for part in QKV):
            return y
        return torch.cat([
            value + updates[part](x) if part in updates else value
            for part, value in zip(QKV, y.chunk(3, dim=-1), strict=True)
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
            Activation(config.activation),
            Linear(config.hidden, config.width),
        )

    def forward(
        self, residual: Residual, *, causal: bool = False, only: slice | None = None, updates: BlockUpdates = NO_UPDATES
    ) -> Residual:
        """Rows (B, T, W) -> (B, T, W), or (B, N, W) if `only` selects N rows.

        The output of a tower depends on one row of its last block: with `only` the queries and the MLP of
        the other rows are not computed. The selected rows attend to all keys.
        """
        x, inputs = add_and_normalize(residual, self.ln_1, updates.get("ln_1"))
        if only is None:
            mixed = attention(*self.attn.project(inputs, updates=updates), causal=causal)
        else:
            mixed = attention(*self.attn.project(inputs, inputs[..., only, :], updates))
            x = x[..., only, :]
        return self.add_attention_and_mlp(x, mixed, updates)

    def forward_without_mixing(self, x: Tensor) -> Tensor:
        """x: (B, T, W) -> (B, T, W); every row keeps its own value instead of attention's mixture."""
        x, inputs = add_and_normalize(Residual(x), self.ln_1, None)
        v = self.attn.qkv.forward_slice(inputs, slice(2 * x.shape[-1], None))
        return self.add_attention_and_mlp(x, self.attn.split_heads(v)).total()

    def add_attention_and_mlp(self, x: Tensor, mixed: Tensor, updates: BlockUpdates = NO_UPDATES) -> Residual:
        """Add the attention output `mixed` (heads split) to x, then the MLP's."""
        x, inputs = add_and_normalize(
            Residual(x, self.attn.merge_heads(mixed, updates.get("out"))), self.ln_2, updates.get("ln_2")
        )
        fc, activation, proj = self.mlp
        hidden = apply_with_update(fc, inputs, updates.get("fc"))
        return Residual(x, apply_with_update(proj, activation(hidden), updates.get("proj")))


class Blocks(nn.ModuleList):
    """The blocks of a tower, first to last."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__(Block(config) for _ in range(config.layers))

    def __iter__(self) -> Iterator[Block]:
        """Typed iteration."""
        return cast(Iterator[Block], super().__iter__())
