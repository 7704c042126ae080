"""Many classes in little memory: the text tower class chunk after class chunk, computed again for the gradient.

The result is the same; a step takes one more pass of the text tower. Only the features of all classes are kept, so
that losses over all of them stay exact.

Sequences of unequal lengths: packed end to end for linear layers, padded for attention alone.

Which rows of a packed text batch attend to which: whole sequences, or names that share a prefix.

Linear layers take packed rows (..., R, W) in any order; only attention needs to know where a sequence
begins. Queries, keys and values are (..., heads, R, d). `last` selects the rows that leave the tower.
Leading dimensions are a batch of equal layouts; their size may be symbolic (torch.export).

Attention of packed text rows: by the kernel where it runs, else by the plain implementation of the layout.

The text tower: causal, so tokens after EOT do not matter and a common prefix is computed once.

Four facts allow an exact and fast computation. A row attends only to the rows before it, so a
sequence may end at its EOT. The prefix [SOS, w_1 .. w_L] of a prompt is the same for every class,
so its keys and values are computed once. Only the EOT row leaves the last block, so only that row
needs a query and an MLP there. And a linear layer treats every row alike, so all sequences, and
all prompts, pass the blocks together, without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dca.backbones.clip.blocks import (
    NO_UPDATES,
    OUTSIDE,
    Attention,
    Blocks,
    BlockUpdates,
    Linear,
    Rows,
    TowerUpdates,
    compute_type,
    normed,
    updated,
)
from dca.backbones.clip.config import TextConfig
from dca.backbones.fast import attention as kernel
from dca.backbones.fast.blocks_of_rows import RowBlocks, Span, divide

# Share of a GPU's free memory that activations of the text tower may take, whole or per chunk.
WHOLE, CHUNK = 0.25, 0.15
# Values of the tower's width that a block keeps per row for the gradient: two norms, q, k and v, and the hidden layer.
KEPT = 9


def classes_at_once(names: Sequence[int], prompts: int, config: TextConfig, x: Tensor) -> int:
    """How many classes to encode together.

    Args:
        names: Number of tokens of each class name.
        prompts: Number of prompts M, each of which is encoded with all names.
        config: Sizes of the text tower.
        x: A tensor on the device that is used, in the compute type.

    Returns:
        All classes where their activations fit, on a CPU and where no gradient is asked for.
    """
    if not x.is_cuda or not torch.is_grad_enabled():
        return len(names)
    free = torch.cuda.get_device_properties(x.device).total_memory - torch.cuda.memory_allocated(x.device)
    per_class = prompts * sum(names) / len(names) * config.layers * KEPT * config.width * x.element_size()
    if per_class * len(names) <= WHOLE * free:
        return len(names)
    return max(int(CHUNK * free / per_class), 1)


Made = TypeVar("Made")
Maker = Callable[[tuple[int, ...], torch.device], Made]


def cached_tensors(maxsize: int) -> Callable[[Maker[Made]], Maker[Made]]:
    """An `lru_cache` for functions that create tensors.

    It is bypassed while a program is traced (torch.export, torch.compile, fake tensors): a tensor that
    is created then belongs to that program and must not be returned to later callers.
    """

    def decorate(make: Maker[Made]) -> Maker[Made]:
        kept = lru_cache(maxsize=maxsize)(make)

        @wraps(make)
        def call(numbers: tuple[int, ...], device: torch.device) -> Made:
            if torch.compiler.is_compiling() or type(torch.empty(0)) is not Tensor:
                return make(numbers, device)
            # A tensor created in inference mode could not be used in a later training step.
            with torch.inference_mode(False):
                return kept(numbers, device)

        return call

    return decorate


@cached_tensors(maxsize=256)
def constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Integers on a device, created once, so that a training step copies none of them from the host."""
    return torch.tensor(values, dtype=torch.long, device=device)


class Ragged:
    """S sequences of given lengths, R rows in all, T the longest.

    Packed tensors are (..., R, d), sequence after sequence; padded ones (..., S, T, d), with zeros
    behind each sequence. empty: (S, T), true for padding; None if no sequence is padded.
    """

    empty: Tensor | None = None

    def __init__(self, lengths: tuple[int, ...], device: torch.device) -> None:
        longest = max(lengths)
        self.lengths, self.shape = lengths, (len(lengths), longest)
        if min(lengths) == longest:
            return
        # From Python numbers: `nonzero` would have no known length in a traced program.
        slots = [s * longest + t for s, n in enumerate(lengths) for t in range(n)]
        self._slots = torch.tensor(slots, device=device)
        self._ends = torch.tensor([end - 1 for end in accumulate(lengths)], device=device)
        self.empty = torch.tensor([[t >= n for t in range(longest)] for n in lengths], device=device)

    def pad(self, x: Tensor) -> Tensor:
        """(..., R, d) -> (..., S, T, d)."""
        if self.empty is None:
            return torch.unflatten(x, -2, self.shape)
        room = x.new_zeros(*x.shape[:-2], self.empty.numel(), x.shape[-1])
        return torch.unflatten(room.index_copy(-2, self._slots, x), -2, self.shape)

    def pack(self, x: Tensor) -> Tensor:
        """(..., S, T, d) -> (..., R, d), leaving the padding out."""
        flat = x.flatten(-3, -2)
        return flat if self.empty is None else flat.index_select(-2, self._slots)

    def last(self, x: Tensor) -> Tensor:
        """Last rows of the sequences: (..., R, d) -> (..., S, d)."""
        if self.empty is None:
            return torch.unflatten(x, -2, self.shape)[..., -1, :]
        return x.index_select(-2, self._ends)

    def places(self, first: int = 0) -> tuple[int, ...]:
        """Position of every row in its sequence, counted from `first`."""
        return tuple(first + t for n in self.lengths for t in range(n))


@cached_tensors(maxsize=64)
def ragged(lengths: tuple[int, ...], device: torch.device) -> Ragged:
    """The layout of sequences of these lengths; a run asks for the same few many times."""
    return Ragged(lengths, device)


NEVER = float("-inf")
KeysValues = tuple[Tensor, Tensor]


def attend_with_prefix(
    q: Tensor, own: KeysValues, prefix: KeysValues, hidden: Tensor | None, empty: Tensor | None = None
) -> Tensor:
    """Attention of names to their prompt's prefix and, causally, to themselves.

    q: (..., heads, M, C, N, d), the last N of T own rows, or with `empty` one row that sees all T.
    own: keys and values (..., heads, M, C, T, d). prefix: (..., heads, M, P, d). hidden: (M, P), true
    for padding of the prefixes; empty: (C, T), true for padding of the names. Returns the shape of q.
    The prefix is never expanded over the classes: its scores are one product over all C·N rows.
    """
    C, N, d = q.shape[-3:]
    P, T = prefix[0].shape[-2], own[0].shape[-2]
    q = q * d**-0.5
    shared = torch.unflatten(q.flatten(-3, -2) @ prefix[0].mT, -2, (C, N))
    if hidden is not None:
        shared = shared.masked_fill(hidden[:, None, None], NEVER)
    within = q @ own[0].mT
    if N > 1:
        within = within.masked_fill(torch.ones(N, T, dtype=torch.bool, device=q.device).triu(1 + T - N), NEVER)
    if empty is not None:
        within = within.masked_fill(empty[:, None], NEVER)
    weights = torch.cat([shared, within], dim=-1).softmax(dim=-1)
    from_prefix = weights[..., :P].flatten(-3, -2) @ prefix[1]
    return torch.unflatten(from_prefix, -2, (C, N)) + weights[..., P:] @ own[1]


@lru_cache(maxsize=64)
def _unshared(head: int, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Which of the rows [prefix, names] make up [prefix, name, prefix, name, ..]."""
    ends = accumulate(lengths, initial=head)
    return tuple(
        row for start, n in zip(ends, lengths, strict=False) for row in (*range(head), *range(start, start + n))
    )


@cached_tensors(maxsize=32)
def _row_blocks(numbers: tuple[int, ...], device: torch.device) -> RowBlocks:
    """Tables for `kernels.attention`. numbers: last, M, M prefix lengths, lengths of the names (sequences if M = 0)."""
    last, M, prefixes, names = bool(numbers[0]), numbers[1], numbers[2 : 2 + numbers[1]], numbers[2 + numbers[1] :]
    if not M:
        return divide([Span(0, names)], device, last=last)
    starts, head = list(accumulate(prefixes, initial=0)), sum(prefixes)
    named = [Span(head + m * sum(names), names, range(starts[m], starts[m + 1])) for m in range(M)]
    return divide(named if last else [Span(0, prefixes), *named], device, last=last)


class Sequences:
    """N whole sequences, each attending to itself alone."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.rows, self.device = ragged(tuple(lengths), device), device

    def row_blocks(self, *, last: bool) -> RowBlocks:
        """Tables of the attention kernel; last: for `attend_last`."""
        return _row_blocks((last, 0, *self.rows.lengths), self.device)

    def replace(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Put tokens (L, W), or (N, L, W), in place of the L rows behind each SOS. x: (R, W)."""
        padded = self.rows.pad(x)
        tokens = tokens.to(x.dtype).expand(len(padded), -1, -1)
        return self.rows.pack(torch.cat([padded[:, :1], tokens, padded[:, 1 + tokens.shape[1] :]], dim=1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Every row attends to itself and to those before it: (..., heads, R, d)."""
        q, k, v = (self.rows.pad(part).transpose(-4, -3) for part in (q, k, v))
        return self.rows.pack(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(-4, -3))

    def last(self, x: Tensor) -> Tensor:
        """Rows of EOT: (..., R, W) -> (..., N, W)."""
        return self.rows.last(x)

    def attend_last(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Rows of EOT attend to their whole sequence. q: (..., heads, N, d). Returns the shape of q."""
        seen = None if self.rows.empty is None else ~self.rows.empty[:, None]
        k, v = self.rows.pad(k), self.rows.pad(v)
        return F.scaled_dot_product_attention(q.unsqueeze(-2), k, v, attn_mask=seen).squeeze(-2)


class Prompts:
    """M prefixes [SOS, context], then the C names once for each: a name attends to its prompt's prefix and itself."""

    def __init__(self, prefixes: Sequence[int], names: Sequence[int], device: torch.device) -> None:
        self.prefix, self.name = ragged(tuple(prefixes), device), ragged(tuple(names), device)
        self.head, self.M, self.device = sum(prefixes), len(prefixes), device

    def row_blocks(self, *, last: bool) -> RowBlocks:
        """Tables of the attention kernel; last: for `attend_last`."""
        return _row_blocks((last, self.M, *self.prefix.lengths, *self.name.lengths), self.device)

    def replace(self, x: Tensor, tokens: Sequence[Tensor | None]) -> Tensor:
        """Put tokens (L_m, W) in place of the context of prompt m, unless they are None. x: (R, W)."""
        begun = list(torch.split(x[: self.head], list(self.prefix.lengths)))
        for m, own in enumerate(tokens):
            if own is not None:
                begun[m] = torch.cat([begun[m][:1], own.to(x.dtype)])
        return torch.cat([*begun, x[self.head :]])

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Every row attends to its prompt up to itself: (..., heads, R, d)."""
        before, own = self._split(q, k, v)
        # With one leading dimension: the fused kernels, and ONNX, take no more than four dimensions.
        flat = [part.flatten(0, -4) for part in before]
        begun = F.scaled_dot_product_attention(flat[0], flat[1], flat[2], is_causal=True).view_as(before[0])
        named = attend_with_prefix(own[0], (own[1], own[2]), (before[1], before[2]), self.prefix.empty)
        return torch.cat([self.prefix.pack(begun), self.name.pack(named).flatten(-3, -2)], dim=-2)

    def last(self, x: Tensor) -> Tensor:
        """Rows of EOT: (..., R, W) -> (..., M·C, W)."""
        return self.name.last(torch.unflatten(x[..., self.head :, :], -2, (self.M, -1))).flatten(-3, -2)

    def attend_last(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Rows of EOT attend to their whole prompt. q: (..., heads, M·C, d). Returns the shape of q."""
        before, own = self._split(k, v)
        asked = torch.unflatten(q, -2, (self.M, -1, 1))
        mixed = attend_with_prefix(asked, (own[0], own[1]), (before[0], before[1]), self.prefix.empty, self.name.empty)
        return mixed.flatten(-4, -2)

    def unshared(self, x: Tensor) -> Tensor:
        """One prompt's rows (R, W) in the layout of `Sequences`: the prefix repeated in front of every name."""
        return x.index_select(0, constant(_unshared(self.head, self.name.lengths), x.device))

    def _split(self, *parts: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Split each (..., heads, R, d) into prefixes (..., heads, M, P, d) and names (..., heads, M, C, T, d)."""
        pieces = [torch.split(part, [self.head, part.shape[-2] - self.head], dim=-2) for part in parts]
        before = [self.prefix.pad(first) for first, _ in pieces]
        own = [self.name.pad(torch.unflatten(rest, -2, (self.M, -1))) for _, rest in pieces]
        return before, own


def attend(attention: Attention, x: Tensor, layout: Sequences | Prompts, updates: BlockUpdates) -> Tensor:
    """Every row attends to its sequence up to itself. x: normed rows (..., R, W) -> (..., heads, R, W / heads)."""
    if not kernel.attends(x, attention.heads):
        return layout.attend(*attention.project(x, updates=updates))
    together = attention.together(x, updates)
    return attention.split(kernel.attend(together, None, layout.row_blocks(last=False), attention.heads))


def attend_last(attention: Attention, x: Tensor, layout: Sequences | Prompts, updates: BlockUpdates) -> Tensor:
    """Rows of EOT attend to their whole sequence. x: (..., R, W) -> (..., heads, N, W / heads)."""
    last = layout.last(x)
    if updates or not kernel.attends(x, attention.heads):
        return layout.attend_last(*attention.project(x, last, updates))
    width = x.shape[-1]
    queries, others = attention.qkv.part(last, slice(width)), attention.qkv.part(x, slice(width, None))
    return attention.split(kernel.attend(queries, others, layout.row_blocks(last=True), attention.heads))


@dataclass(frozen=True)
class Changes:
    """What a call changes inside the blocks.

    deep: block index -> tokens that replace context rows at its input; see the layout's `replace`.
    updates: block index -> what is added to the outputs of the block's linear layers and norms.
    """

    deep: Mapping[int, Any] = field(default_factory=dict)
    updates: TowerUpdates = field(default_factory=dict)


class TextTower(nn.Module):
    """Token embeddings with positions through the blocks; the EOT row becomes the feature."""

    def __init__(self, config: TextConfig, embed_dim: int) -> None:
        super().__init__()
        self.config = config
        # With `_weight`, since the random initialisation of nn.Embedding imports torch._dynamo on the meta device.
        weight = torch.empty(config.vocab_size, config.width)
        self.embedding = nn.Embedding(config.vocab_size, config.width, _weight=weight)
        self.positions = nn.Parameter(torch.empty(config.context_length, config.width))
        self.blocks = Blocks(config)
        self.ln_final = nn.LayerNorm(config.width, eps=config.eps)
        self.projection = Linear(config.width, embed_dim, bias=False)
        self._chosen: dict[tuple[object, ...], int] = {}

    def embed(self, ids: Sequence[int]) -> Tensor:
        """Token embeddings (R, W) of R ids, without positions."""
        embedded: Tensor = self.embedding(constant(tuple(ids), self.positions.device))
        return embedded

    def encode_ids(self, sequences: Sequence[Sequence[int]], updates: TowerUpdates | None = None) -> Tensor:
        """Id sequences [SOS .. EOT] of any lengths -> features (N, D)."""
        return self.encode_packed(self.embed(_joined(sequences)), [len(ids) for ids in sequences], updates=updates)

    def encode_packed(
        self,
        x: Tensor,
        lengths: Sequence[int],
        deep: Mapping[int, Tensor] | None = None,
        updates: TowerUpdates | None = None,
    ) -> Tensor:
        """Embedded sequences end to end (R, W), each from SOS to EOT -> features (N, D).

        deep: block index -> tokens (L, W), or (N, L, W) for each sequence, that replace the L rows
        behind SOS at the input of that block. Positions are added once, at the beginning.
        """
        layout = Sequences(lengths, x.device)
        return self._encode(x + self._positions(layout.rows.places()), layout, Changes(deep or {}, updates or {}))

    def encode_prompts(
        self,
        contexts: Sequence[Tensor] | Tensor,
        names: Sequence[Sequence[int]],
        deep: Sequence[Mapping[int, Tensor]] | None = None,
        updates: TowerUpdates | None = None,
        at_once: int | None = None,
    ) -> Tensor:
        """Every class under every context: features (M, C, D).

        contexts: M contexts, each (L_m, W) shared by the classes or (C, L_m, W) with one per class; or one
        tensor (B, L, W) of B shared contexts, whose B may be symbolic.
        names: ids of each class's own tokens, with EOT and without SOS.
        deep: for each context, block index -> tokens (L_m, W) or (C, L_m, W) that replace its rows at the
        input of that block. From the first block with tokens per class on, the prefix is no longer shared.
        at_once: classes that are encoded together, as many as fit by default; see `chunking.py`.
        """
        updates = updates or {}
        if isinstance(contexts, Tensor) and contexts.dim() == 3 and deep is None:
            x, layout = self._begin_batch(contexts, names)
            return self._encode(x, layout, Changes(updates=updates))
        deep = deep or [{} for _ in contexts]
        learned = [(context, *more.values()) for context, more in zip(contexts, deep, strict=True)]
        shared = [m for m, tokens in enumerate(learned) if all(t.dim() == 2 for t in tokens)]
        own = [m for m in range(len(learned)) if m not in shared]
        found = {m: self._own(contexts[m], names, deep[m], updates) for m in own}
        if shared:
            together = self._chunks([contexts[m] for m in shared], names, [deep[m] for m in shared], updates, at_once)
            found |= dict(zip(shared, together, strict=True))
        return torch.stack([found[m] for m in range(len(learned))])

    def _own(
        self, context: Tensor, names: Sequence[Sequence[int]], deep: Mapping[int, Tensor], updates: TowerUpdates
    ) -> Tensor:
        """Tokens per class, at the start or from some block on: features (C, D). context: (C, L, W) or (L, W)."""
        lengths = [1 + context.shape[-2] + len(ids) for ids in names]
        if context.dim() == 2:
            first = min(len(self.blocks) - 1, *(layer for layer, tokens in deep.items() if tokens.dim() == 3))
            x, layout = self._begin([context], names)
            before = {layer: [deep[layer]] for layer in deep if layer < first}
            x = self._pass(Rows(x), layout, Changes(before, updates), range(first)).total()
            later = {layer: deep[layer] for layer in deep if layer >= first}
            return self._encode(layout.unshared(x), Sequences(lengths, x.device), Changes(later, updates), first)
        sos = self.embed([self.config.sot_id])
        tails = torch.split(self.embed(_joined(names)), [len(ids) for ids in names])
        rows = torch.cat([part for c, tail in enumerate(tails) for part in (sos, context[c], tail)])
        return self.encode_packed(rows, lengths, deep, updates)

    def _chunks(
        self,
        contexts: Sequence[Tensor],
        names: Sequence[Sequence[int]],
        deep: Sequence[Mapping[int, Tensor]],
        updates: TowerUpdates,
        at_once: int | None,
    ) -> Tensor:
        """`_shared` of at most `at_once` classes at a time, each computed again for its gradient."""
        like = contexts[0].new_empty(0, dtype=compute_type(contexts[0]))
        most = at_once or self._at_once([len(ids) for ids in names], len(contexts), like)
        if most >= len(names):
            return self._shared(contexts, names, deep, updates)
        chunks = [names[start : start + most] for start in range(0, len(names), most)]
        options: Any = {"use_reentrant": False, "preserve_rng_state": False}
        found = [checkpoint(self._shared, contexts, chunk, deep, updates, **options) for chunk in chunks]
        return torch.cat(found, dim=1)

    def _at_once(self, names: Sequence[int], prompts: int, like: Tensor) -> int:
        """`classes_at_once`, chosen at the first use: free memory changes, and a recorded step must not."""
        key = len(names), sum(names), prompts, like.dtype, like.device, torch.is_grad_enabled()
        if key not in self._chosen:
            self._chosen[key] = classes_at_once(names, prompts, self.config, like)
        return self._chosen[key]

    def _shared(
        self,
        contexts: Sequence[Tensor],
        names: Sequence[Sequence[int]],
        deep: Sequence[Mapping[int, Tensor]],
        updates: TowerUpdates,
    ) -> Tensor:
        """M contexts (L_m, W), each for all classes: features (M, C, D)."""
        x, layout = self._begin(contexts, names)
        layers = {layer for tokens in deep for layer in tokens}
        replaced = {layer: [tokens.get(layer) for tokens in deep] for layer in layers}
        return torch.unflatten(self._encode(x, layout, Changes(replaced, updates)), 0, (layout.M, -1))

    def _begin(self, contexts: Sequence[Tensor], names: Sequence[Sequence[int]]) -> tuple[Tensor, Prompts]:
        """Packed rows (R, W) of M contexts (L_m, W) and their names, with positions, and their layout."""
        sos = self.embed([self.config.sot_id])
        layout = Prompts([1 + len(context) for context in contexts], [len(ids) for ids in names], sos.device)
        rows = [part for context in contexts for part in (sos, context)] + [self.embed(_joined(names))] * layout.M
        places = layout.prefix.places() + _joined([layout.name.places(1 + len(context)) for context in contexts])
        return torch.cat(rows) + self._positions(places), layout

    def _begin_batch(self, contexts: Tensor, names: Sequence[Sequence[int]]) -> tuple[Tensor, Prompts]:
        """Packed rows (B, R, W) of B contexts (B, L, W), each with all names, with positions, and their layout."""
        batch, length, _ = contexts.shape
        sos, tails = self.embed([self.config.sot_id]), self.embed(_joined(names))
        layout = Prompts([1 + length], [len(ids) for ids in names], sos.device)
        rows = torch.cat([sos.expand(batch, -1, -1), contexts, tails.expand(batch, -1, -1)], dim=-2)
        return rows + self._positions((*range(1 + length), *layout.name.places(1 + length))), layout

    def _encode(self, x: Tensor, layout: Sequences | Prompts, changes: Changes, first: int = 0) -> Tensor:
        """Packed rows with positions (..., R, W) through the blocks from `first` on -> features of EOTs (..., N, D)."""
        last = len(self.blocks) - 1
        rows = self._pass(Rows(x), layout, changes, range(first, last))
        if last in changes.deep:
            rows = Rows(layout.replace(rows.total(), changes.deep[last]))
        block = list(self.blocks)[last]
        own = changes.updates.get(last, NO_UPDATES)
        x, inputs = normed(rows, block.ln_1, own.get("ln_1"))
        x = block.finish(layout.last(x), attend_last(block.attn, inputs, layout, own), own).total()
        outside = changes.updates.get(OUTSIDE, NO_UPDATES)
        feature: Tensor = self.projection(updated(self.ln_final, x, outside.get("ln_final")))
        return feature

    def _pass(self, rows: Rows, layout: Sequences | Prompts, changes: Changes, layers: range) -> Rows:
        """All packed rows (..., R, W) through some blocks."""
        for layer, block in zip(layers, list(self.blocks)[layers.start : layers.stop], strict=True):
            if layer in changes.deep:
                rows = Rows(layout.replace(rows.total(), changes.deep[layer]))
            own = changes.updates.get(layer, NO_UPDATES)
            x, inputs = normed(rows, block.ln_1, own.get("ln_1"))
            rows = block.finish(x, attend(block.attn, inputs, layout, own), own)
        return rows

    def _positions(self, places: Sequence[int]) -> Tensor:
        """Position embeddings (R, W) of rows at these places of their sequences."""
        return self.positions[constant(tuple(places), self.positions.device)]


def _joined(sequences: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """All numbers, sequence after sequence."""
    return tuple(number for sequence in sequences for number in sequence)
