"""The text tower: causal, so tokens after EOT do not matter and a common prefix is computed once.

Four facts allow an exact and fast computation. A row attends only to the rows before it, so a
sequence may end at its EOT. The prefix [SOS, w_1 .. w_L] of a prompt is the same for every class,
so its keys and values are computed once. Only the EOT row leaves the last block, so only that row
needs a query and an MLP there. And a linear layer treats every row alike, so all sequences, and
all prompts, pass the blocks together, without padding.

Sequences are therefore packed end to end: linear layers take packed rows (..., R, W) in any order, and only attention
needs to know where a sequence begins. A layout knows it: `SequenceLayout` for whole sequences, `PromptLayout` for
names that share a prefix. Attention itself is the fused one where it runs, else the plain one of the layout, which
pads. Leading dimensions are a batch of equal layouts; their size may be symbolic (torch.export).

With very many classes on a GPU, classes are encoded in chunks and activations are recomputed in the backward pass
(gradient checkpointing). Only the features of all classes are kept, so losses over all of them stay exact.
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

from dca.backbones.blocks import (
    NO_UPDATES,
    OUTSIDE,
    Attention,
    Blocks,
    BlockUpdates,
    Linear,
    Residual,
    TowerConfig,
    TowerUpdates,
    add_and_normalize,
    apply_with_update,
    autocast_dtype,
)
from dca.backbones.clip.config import TextConfig
from dca.backbones.dual_encoder import TextTower
from dca.backbones.fast.attention import (
    RowBlocks,
    SequenceGroup,
    divide_into_blocks,
    fused_attention,
    fused_attention_usable,
)

# Share of a GPU's free memory that activations of the text tower may take, for all classes or per chunk.
ALL_CLASSES_SHARE, CHUNK_SHARE = 0.25, 0.15
# Values that a block keeps per row for the gradient, in widths of the tower: two norms, q, k and v, the hidden layer.
KEPT_WIDTHS = 9
MINUS_INFINITY = float("-inf")
KeysValues = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class BlockChanges:
    """What a call changes inside the blocks.

    deep: block index -> tokens that replace context rows at its input; see the layout's `replace`.
    updates: block index -> what is added to the outputs of the block's linear layers and norms.
    """

    deep: Mapping[int, Any] = field(default_factory=dict)
    updates: TowerUpdates = field(default_factory=dict)


class CausalTextTower(TextTower):
    """Token embeddings with positions through the blocks; the EOT row becomes the feature."""

    outside_norms = ("ln_final",)

    def __init__(self, config: TextConfig, embed_dim: int) -> None:
        super().__init__()
        self.config = config
        self.layers, self.width = config.layers, config.width
        # With `_weight`, since the random initialisation of nn.Embedding imports torch._dynamo on the meta device.
        weight = torch.empty(config.vocab_size, config.width)
        self.embedding = nn.Embedding(config.vocab_size, config.width, _weight=weight)
        self.positions = nn.Parameter(torch.empty(config.context_length, config.width))
        self.blocks = Blocks(config)
        self.ln_final = nn.LayerNorm(config.width, eps=config.eps)
        self.projection = Linear(config.width, embed_dim, bias=False)
        self._chunk_sizes: dict[tuple[object, ...], int] = {}

    def embed(self, ids: Sequence[int]) -> Tensor:
        """Token embeddings (R, W) of R ids, without positions."""
        embedded: Tensor = self.embedding(cached_indices(tuple(ids), self.positions.device))
        return embedded

    def encode_ids(self, sequences: Sequence[Sequence[int]], updates: TowerUpdates | None = None) -> Tensor:
        """Id sequences [SOS .. EOT] of any lengths -> features (N, D)."""
        return self.encode_packed(self.embed(_concatenate(sequences)), [len(ids) for ids in sequences], updates=updates)

    def encode_embedded(self, sequences: Sequence[Tensor]) -> Tensor:
        """Embedded sequences (T_i, W), each from SOS to EOT -> features (N, D)."""
        return self.encode_packed(torch.cat(list(sequences)), [len(rows) for rows in sequences])

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
        layout = SequenceLayout(lengths, x.device)
        x = x + self._position_embeddings(layout.rows.positions())
        return self._run_tower(x, layout, BlockChanges(deep or {}, updates or {}))

    def encode_prompts(
        self,
        contexts: Sequence[Tensor] | Tensor,
        names: Sequence[Sequence[int]],
        deep: Sequence[Mapping[int, Tensor]] | None = None,
        updates: TowerUpdates | None = None,
        chunk_size: int | None = None,
    ) -> Tensor:
        """Every class under every context: features (M, C, D).

        contexts: M contexts, each (L_m, W) shared by the classes or (C, L_m, W) with one per class; or one
        tensor (B, L, W) of B shared contexts, whose B may be symbolic.
        names: ids of each class's own tokens, with EOT and without SOS.
        deep: for each context, block index -> tokens (L_m, W) or (C, L_m, W) that replace its rows at the
        input of that block. From the first block with tokens per class on, the prefix is no longer shared.
        chunk_size: number of classes that are encoded together; by default as many as fit, see `classes_per_chunk`.
        """
        updates = updates or {}
        if isinstance(contexts, Tensor) and contexts.dim() == 3 and deep is None:
            x, layout = self._embed_prompt_batch(contexts, names)
            return self._run_tower(x, layout, BlockChanges(updates=updates))
        deep = deep or [{} for _ in contexts]
        learned = [(context, *tokens.values()) for context, tokens in zip(contexts, deep, strict=True)]
        shared = [m for m, tensors in enumerate(learned) if all(t.dim() == 2 for t in tensors)]
        features = {
            m: self._encode_per_class(contexts[m], names, deep[m], updates)
            for m in range(len(learned))
            if m not in shared
        }
        if shared:
            shared_contexts, shared_deep = [contexts[m] for m in shared], [deep[m] for m in shared]
            of_shared = self._encode_in_chunks(shared_contexts, names, shared_deep, updates, chunk_size)
            features |= dict(zip(shared, of_shared, strict=True))
        return torch.stack([features[m] for m in range(len(learned))])

    def _encode_per_class(
        self, context: Tensor, names: Sequence[Sequence[int]], deep: Mapping[int, Tensor], updates: TowerUpdates
    ) -> Tensor:
        """A context with tokens per class, at the start or from some block on: features (C, D).

        context: (C, L, W), or (L, W) if only deeper tokens differ between classes.
        """
        lengths = [1 + context.shape[-2] + len(ids) for ids in names]
        if context.dim() == 2:
            first = min(len(self.blocks) - 1, *(layer for layer, tokens in deep.items() if tokens.dim() == 3))
            x, layout = self._embed_prompts([context], names)
            before = {layer: [deep[layer]] for layer in deep if layer < first}
            x = self._run_blocks(Residual(x), layout, BlockChanges(before, updates), range(first)).total()
            later = {layer: deep[layer] for layer in deep if layer >= first}
            sequences = SequenceLayout(lengths, x.device)
            return self._run_tower(layout.repeat_prefix(x), sequences, BlockChanges(later, updates), first)
        sos = self.embed([self.config.sot_id])
        embedded_names = torch.split(self.embed(_concatenate(names)), [len(ids) for ids in names])
        rows = torch.cat([part for c, name in enumerate(embedded_names) for part in (sos, context[c], name)])
        return self.encode_packed(rows, lengths, deep, updates)

    def _encode_in_chunks(
        self,
        contexts: Sequence[Tensor],
        names: Sequence[Sequence[int]],
        deep: Sequence[Mapping[int, Tensor]],
        updates: TowerUpdates,
        chunk_size: int | None,
    ) -> Tensor:
        """`_encode_shared` of at most `chunk_size` classes at a time, with gradient checkpointing."""
        like = contexts[0].new_empty(0, dtype=autocast_dtype(contexts[0]))
        size = chunk_size or self._choose_chunk_size([len(ids) for ids in names], len(contexts), like)
        if size >= len(names):
            return self._encode_shared(contexts, names, deep, updates)
        chunks = [names[start : start + size] for start in range(0, len(names), size)]
        options: Any = {"use_reentrant": False, "preserve_rng_state": False}
        features = [checkpoint(self._encode_shared, contexts, chunk, deep, updates, **options) for chunk in chunks]
        return torch.cat(features, dim=1)

    def _choose_chunk_size(self, lengths: Sequence[int], prompts: int, like: Tensor) -> int:
        """`classes_per_chunk`, kept from its first use: free memory changes, and a recorded step must not."""
        key = len(lengths), sum(lengths), prompts, like.dtype, like.device, torch.is_grad_enabled()
        if key not in self._chunk_sizes:
            self._chunk_sizes[key] = classes_per_chunk(lengths, prompts, self.config, like)
        return self._chunk_sizes[key]

    def _encode_shared(
        self,
        contexts: Sequence[Tensor],
        names: Sequence[Sequence[int]],
        deep: Sequence[Mapping[int, Tensor]],
        updates: TowerUpdates,
    ) -> Tensor:
        """M contexts (L_m, W), each for all classes: features (M, C, D)."""
        x, layout = self._embed_prompts(contexts, names)
        layers = {layer for tokens in deep for layer in tokens}
        replaced = {layer: [tokens.get(layer) for tokens in deep] for layer in layers}
        return torch.unflatten(self._run_tower(x, layout, BlockChanges(replaced, updates)), 0, (layout.M, -1))

    def _embed_prompts(self, contexts: Sequence[Tensor], names: Sequence[Sequence[int]]) -> tuple[Tensor, PromptLayout]:
        """Packed rows (R, W) of M contexts (L_m, W) and their names, with positions, and their layout."""
        sos = self.embed([self.config.sot_id])
        layout = PromptLayout([1 + len(context) for context in contexts], [len(ids) for ids in names], sos.device)
        rows = [part for context in contexts for part in (sos, context)]
        rows += [self.embed(_concatenate(names))] * layout.M
        positions = layout.prefix.positions()
        positions += _concatenate([layout.name.positions(1 + len(context)) for context in contexts])
        return torch.cat(rows) + self._position_embeddings(positions), layout

    def _embed_prompt_batch(self, contexts: Tensor, names: Sequence[Sequence[int]]) -> tuple[Tensor, PromptLayout]:
        """Packed rows (B, R, W) of B contexts (B, L, W), each with all names, with positions, and their layout."""
        batch, length, _ = contexts.shape
        sos, embedded_names = self.embed([self.config.sot_id]), self.embed(_concatenate(names))
        layout = PromptLayout([1 + length], [len(ids) for ids in names], sos.device)
        rows = torch.cat([sos.expand(batch, -1, -1), contexts, embedded_names.expand(batch, -1, -1)], dim=-2)
        return rows + self._position_embeddings((*range(1 + length), *layout.name.positions(1 + length))), layout

    def _position_embeddings(self, positions: Sequence[int]) -> Tensor:
        """Position embeddings (R, W) of rows at these positions of their sequences."""
        return self.positions[cached_indices(tuple(positions), self.positions.device)]

    def _run_tower(
        self, x: Tensor, layout: SequenceLayout | PromptLayout, changes: BlockChanges, first: int = 0
    ) -> Tensor:
        """Packed rows with positions (..., R, W) through the blocks from `first` on -> features of EOTs (..., N, D)."""
        last = len(self.blocks) - 1
        residual = self._run_blocks(Residual(x), layout, changes, range(first, last))
        if last in changes.deep:
            residual = Residual(layout.replace(residual.total(), changes.deep[last]))
        block = list(self.blocks)[last]
        updates = changes.updates.get(last, NO_UPDATES)
        x, inputs = add_and_normalize(residual, block.ln_1, updates.get("ln_1"))
        mixed = attend_last(block.attn, inputs, layout, updates)
        x = block.add_attention_and_mlp(layout.last(x), mixed, updates).total()
        outside = changes.updates.get(OUTSIDE, NO_UPDATES)
        feature: Tensor = self.projection(apply_with_update(self.ln_final, x, outside.get("ln_final")))
        return feature

    def _run_blocks(
        self, residual: Residual, layout: SequenceLayout | PromptLayout, changes: BlockChanges, layers: range
    ) -> Residual:
        """All packed rows (..., R, W) through some blocks."""
        for layer, block in zip(layers, list(self.blocks)[layers.start : layers.stop], strict=True):
            if layer in changes.deep:
                residual = Residual(layout.replace(residual.total(), changes.deep[layer]))
            updates = changes.updates.get(layer, NO_UPDATES)
            x, inputs = add_and_normalize(residual, block.ln_1, updates.get("ln_1"))
            residual = block.add_attention_and_mlp(x, attend(block.attn, inputs, layout, updates), updates)
        return residual


def classes_per_chunk(names: Sequence[int], prompts: int, config: TowerConfig, x: Tensor) -> int:
    """How many classes to encode together.

    Args:
        names: Number of tokens of each class name.
        prompts: Number of prompts M, each of which is encoded with all names.
        config: Sizes of the text tower.
        x: A tensor on the device that is used, in the compute type.

    Returns:
        All classes where their activations fit, on a CPU, and where no gradient is computed.
    """
    if not x.is_cuda or not torch.is_grad_enabled():
        return len(names)
    free = torch.cuda.get_device_properties(x.device).total_memory - torch.cuda.memory_allocated(x.device)
    per_class = prompts * sum(names) / len(names) * config.layers * KEPT_WIDTHS * config.width * x.element_size()
    if per_class * len(names) <= ALL_CLASSES_SHARE * free:
        return len(names)
    return max(int(CHUNK_SHARE * free / per_class), 1)


# Attention of packed rows.


def attend(attention: Attention, x: Tensor, layout: SequenceLayout | PromptLayout, updates: BlockUpdates) -> Tensor:
    """Every row attends to its sequence up to itself. x: normed rows (..., R, W) -> (..., heads, R, W / heads)."""
    if not fused_attention_usable(x, attention.heads):
        return layout.attend(*attention.project(x, updates=updates))
    qkv = attention.project_joint(x, updates)
    return attention.split_heads(fused_attention(qkv, None, layout.row_blocks(last=False), attention.heads))


def attend_last(
    attention: Attention, x: Tensor, layout: SequenceLayout | PromptLayout, updates: BlockUpdates
) -> Tensor:
    """Rows of EOT attend to their whole sequence. x: (..., R, W) -> (..., heads, N, W / heads)."""
    last = layout.last(x)
    if updates or not fused_attention_usable(x, attention.heads):
        return layout.attend_last(*attention.project(x, last, updates))
    width = x.shape[-1]
    queries = attention.qkv.forward_slice(last, slice(width))
    keys_values = attention.qkv.forward_slice(x, slice(width, None))
    return attention.split_heads(fused_attention(queries, keys_values, layout.row_blocks(last=True), attention.heads))


class SequenceLayout:
    """N whole sequences, each attending to itself alone. Queries, keys and values are (..., heads, R, d)."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.rows, self.device = cached_packing(tuple(lengths), device), device

    def row_blocks(self, *, last: bool) -> RowBlocks:
        """Tables of the fused attention; last: for `attend_last`."""
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
        visible = None if self.rows.padding is None else ~self.rows.padding[:, None]
        k, v = self.rows.pad(k), self.rows.pad(v)
        return F.scaled_dot_product_attention(q.unsqueeze(-2), k, v, attn_mask=visible).squeeze(-2)


class PromptLayout:
    """M prefixes [SOS, context], then the C names once for each: a name attends to its prompt's prefix and itself."""

    def __init__(self, prefixes: Sequence[int], names: Sequence[int], device: torch.device) -> None:
        self.prefix, self.name = cached_packing(tuple(prefixes), device), cached_packing(tuple(names), device)
        self.prefix_rows, self.M, self.device = sum(prefixes), len(prefixes), device

    def row_blocks(self, *, last: bool) -> RowBlocks:
        """Tables of the fused attention; last: for `attend_last`."""
        return _row_blocks((last, self.M, *self.prefix.lengths, *self.name.lengths), self.device)

    def replace(self, x: Tensor, tokens: Sequence[Tensor | None]) -> Tensor:
        """Put tokens (L_m, W) in place of the context of prompt m, unless they are None. x: (R, W)."""
        prefixes = list(torch.split(x[: self.prefix_rows], list(self.prefix.lengths)))
        for m, context in enumerate(tokens):
            if context is not None:
                prefixes[m] = torch.cat([prefixes[m][:1], context.to(x.dtype)])
        return torch.cat([*prefixes, x[self.prefix_rows :]])

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Every row attends to its prompt up to itself: (..., heads, R, d)."""
        prefix, name = self._split(q, k, v)
        # With one leading dimension: the fused kernels, and ONNX, take no more than four dimensions.
        flat = [part.flatten(0, -4) for part in prefix]
        of_prefixes = F.scaled_dot_product_attention(flat[0], flat[1], flat[2], is_causal=True).view_as(prefix[0])
        of_names = attend_with_prefix(name[0], (name[1], name[2]), (prefix[1], prefix[2]), self.prefix.padding)
        return torch.cat([self.prefix.pack(of_prefixes), self.name.pack(of_names).flatten(-3, -2)], dim=-2)

    def last(self, x: Tensor) -> Tensor:
        """Rows of EOT: (..., R, W) -> (..., M·C, W)."""
        return self.name.last(torch.unflatten(x[..., self.prefix_rows :, :], -2, (self.M, -1))).flatten(-3, -2)

    def attend_last(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Rows of EOT attend to their whole prompt. q: (..., heads, M·C, d). Returns the shape of q."""
        prefix, name = self._split(k, v)
        queries = torch.unflatten(q, -2, (self.M, -1, 1))
        mixed = attend_with_prefix(
            queries, (name[0], name[1]), (prefix[0], prefix[1]), self.prefix.padding, self.name.padding
        )
        return mixed.flatten(-4, -2)

    def repeat_prefix(self, x: Tensor) -> Tensor:
        """One prompt's rows (R, W) in the layout of `SequenceLayout`: the prefix repeated in front of every name."""
        rows = _rows_with_repeated_prefix(self.prefix_rows, self.name.lengths)
        return x.index_select(0, cached_indices(rows, x.device))

    def _split(self, *parts: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Split each (..., heads, R, d) into prefixes (..., heads, M, P, d) and names (..., heads, M, C, T, d)."""
        pieces = [torch.split(part, [self.prefix_rows, part.shape[-2] - self.prefix_rows], dim=-2) for part in parts]
        prefixes = [self.prefix.pad(prefix) for prefix, _ in pieces]
        names = [self.name.pad(torch.unflatten(name, -2, (self.M, -1))) for _, name in pieces]
        return prefixes, names


def attend_with_prefix(
    q: Tensor, own: KeysValues, prefix: KeysValues, prefix_padding: Tensor | None, name_padding: Tensor | None = None
) -> Tensor:
    """Attention of names to their prompt's prefix and, causally, to themselves.

    q: (..., heads, M, C, N, d), the last N of T own rows, or with `name_padding` one row that sees all T.
    own: keys and values (..., heads, M, C, T, d). prefix: (..., heads, M, P, d). prefix_padding: (M, P), true
    for padding of the prefixes; name_padding: (C, T), true for padding of the names. Returns the shape of q.
    The prefix is never expanded over the classes: its scores are one product over all C·N rows.
    """
    C, N, d = q.shape[-3:]
    P, T = prefix[0].shape[-2], own[0].shape[-2]
    q = q * d**-0.5
    to_prefix = torch.unflatten(q.flatten(-3, -2) @ prefix[0].mT, -2, (C, N))
    if prefix_padding is not None:
        to_prefix = to_prefix.masked_fill(prefix_padding[:, None, None], MINUS_INFINITY)
    to_own = q @ own[0].mT
    if N > 1:
        later = torch.ones(N, T, dtype=torch.bool, device=q.device).triu(1 + T - N)
        to_own = to_own.masked_fill(later, MINUS_INFINITY)
    if name_padding is not None:
        to_own = to_own.masked_fill(name_padding[:, None], MINUS_INFINITY)
    weights = torch.cat([to_prefix, to_own], dim=-1).softmax(dim=-1)
    from_prefix = weights[..., :P].flatten(-3, -2) @ prefix[1]
    return torch.unflatten(from_prefix, -2, (C, N)) + weights[..., P:] @ own[1]


class Packing:
    """S sequences of given lengths, R rows in all, T the longest, packed end to end or padded.

    Packed tensors are (..., R, d), sequence after sequence; padded ones (..., S, T, d), with zeros
    behind each sequence. padding: (S, T), true for padding; None if no sequence is padded.
    """

    padding: Tensor | None = None

    def __init__(self, lengths: tuple[int, ...], device: torch.device) -> None:
        longest = max(lengths)
        self.lengths, self.shape = lengths, (len(lengths), longest)
        if min(lengths) == longest:
            return
        # From Python numbers: `nonzero` would have no known length in a traced program.
        slots = [s * longest + t for s, n in enumerate(lengths) for t in range(n)]
        self._slots = torch.tensor(slots, device=device)
        self._ends = torch.tensor([end - 1 for end in accumulate(lengths)], device=device)
        self.padding = torch.tensor([[t >= n for t in range(longest)] for n in lengths], device=device)

    def pad(self, x: Tensor) -> Tensor:
        """(..., R, d) -> (..., S, T, d)."""
        if self.padding is None:
            return torch.unflatten(x, -2, self.shape)
        zeros = x.new_zeros(*x.shape[:-2], self.padding.numel(), x.shape[-1])
        return torch.unflatten(zeros.index_copy(-2, self._slots, x), -2, self.shape)

    def pack(self, x: Tensor) -> Tensor:
        """(..., S, T, d) -> (..., R, d), leaving the padding out."""
        flat = x.flatten(-3, -2)
        return flat if self.padding is None else flat.index_select(-2, self._slots)

    def last(self, x: Tensor) -> Tensor:
        """Last rows of the sequences: (..., R, d) -> (..., S, d)."""
        if self.padding is None:
            return torch.unflatten(x, -2, self.shape)[..., -1, :]
        return x.index_select(-2, self._ends)

    def positions(self, first: int = 0) -> tuple[int, ...]:
        """Position of every row in its sequence, counted from `first`."""
        return tuple(first + t for n in self.lengths for t in range(n))


# Index tensors, created once: a training step asks for the same few many times and copies none from the host.

Created = TypeVar("Created")
CreateTensors = Callable[[tuple[int, ...], torch.device], Created]


def cache_tensors(maxsize: int) -> Callable[[CreateTensors[Created]], CreateTensors[Created]]:
    """An `lru_cache` for functions that create tensors.

    It is bypassed while a program is traced (torch.export, torch.compile, fake tensors): a tensor that
    is created then belongs to that program and must not be returned to later callers.
    """

    def decorate(create: CreateTensors[Created]) -> CreateTensors[Created]:
        cached = lru_cache(maxsize=maxsize)(create)

        @wraps(create)
        def call(numbers: tuple[int, ...], device: torch.device) -> Created:
            if torch.compiler.is_compiling() or type(torch.empty(0)) is not Tensor:
                return create(numbers, device)
            # A tensor created in inference mode could not be used in a later training step.
            with torch.inference_mode(False):
                return cached(numbers, device)

        return call

    return decorate


@cache_tensors(maxsize=256)
def cached_indices(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Integers on a device."""
    return torch.tensor(values, dtype=torch.long, device=device)


@cache_tensors(maxsize=64)
def cached_packing(lengths: tuple[int, ...], device: torch.device) -> Packing:
    """The packing of sequences of these lengths."""
    return Packing(lengths, device)


@cache_tensors(maxsize=32)
def _row_blocks(numbers: tuple[int, ...], device: torch.device) -> RowBlocks:
    """Tables of the fused attention. numbers: last, M, M prefix lengths, lengths of the names (sequences if M = 0)."""
    last, M, prefixes, names = bool(numbers[0]), numbers[1], numbers[2 : 2 + numbers[1]], numbers[2 + numbers[1] :]
    if not M:
        return divide_into_blocks([SequenceGroup(0, names)], device, last=last)
    starts, prefix_rows = list(accumulate(prefixes, initial=0)), sum(prefixes)
    groups = [SequenceGroup(prefix_rows + m * sum(names), names, range(starts[m], starts[m + 1])) for m in range(M)]
    return divide_into_blocks(groups if last else [SequenceGroup(0, prefixes), *groups], device, last=last)


@lru_cache(maxsize=64)
def _rows_with_repeated_prefix(prefix_rows: int, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Which of the rows [prefix, names] make up [prefix, name, prefix, name, ..]."""
    starts = accumulate(lengths, initial=prefix_rows)
    names = [range(start, start + n) for start, n in zip(starts, lengths, strict=False)]
    return tuple(row for name in names for row in (*range(prefix_rows), *name))


def _concatenate(sequences: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """All numbers, sequence after sequence."""
    return tuple(number for sequence in sequences for number in sequence)
