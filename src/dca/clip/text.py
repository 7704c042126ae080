"""The text tower: causal, so tokens after EOT do not matter and a common prefix is computed once.

Four facts allow an exact and fast computation. A row attends only to the rows before it, so a
sequence may end at its EOT. The prefix [SOS, w_1 .. w_L] of a prompt is the same for every class,
so its keys and values are computed once. Only the EOT row leaves the last block, so only that row
needs a query and an MLP there. And a linear layer treats every row alike, so all sequences, and
all prompts, pass the blocks together, without padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dca.clip.blocks import NO_UPDATES, OUTSIDE, Blocks, Rows, TowerUpdates, normed, updated
from dca.clip.chunking import classes_at_once
from dca.clip.config import TextConfig
from dca.clip.linear import Linear, compute_type
from dca.clip.packing import Prompts, Sequences
from dca.clip.ragged import constant
from dca.clip.text_attention import attend, attend_last


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
