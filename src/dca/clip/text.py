"""The text tower: causal, so nothing behind EOT matters and a shared beginning is shared work.

Four facts make the exact fast route. A row sees only the rows before it, so a sequence may
end at its EOT. The beginning [SOS, w_1 .. w_L] of a prompt is the same for every class, so
its keys and values are computed once. Only the EOT row leaves the last block, so only that
row needs a query and an MLP there. And a linear layer does not care to which sequence a row
belongs, so all sequences, and all prompts, pass the blocks together, without padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dca.clip.blocks import Blocks
from dca.clip.config import TextConfig
from dca.clip.packing import Prompts, Sequences
from dca.clip.ragged import constant


class TextTower(nn.Module):
    """Token embeddings with positions through the blocks; the EOT row becomes the feature."""

    def __init__(self, config: TextConfig, embed_dim: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Parameter(torch.empty(config.context_length, config.width))
        self.blocks = Blocks(config)
        self.ln_final = nn.LayerNorm(config.width, eps=config.eps)
        self.projection = nn.Linear(config.width, embed_dim, bias=False)

    def embed(self, ids: Sequence[int]) -> Tensor:
        """Token embeddings (R, W) of R ids, without positions."""
        embedded: Tensor = self.embedding(constant(tuple(ids), self.positions.device))
        return embedded

    def encode_ids(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Id sequences [SOS .. EOT] of any lengths -> features (N, D)."""
        return self.encode_packed(self.embed(_joined(sequences)), [len(ids) for ids in sequences])

    def encode_packed(self, x: Tensor, lengths: Sequence[int], deep: Mapping[int, Tensor] | None = None) -> Tensor:
        """Embedded sequences end to end (R, W), each from SOS to EOT -> features (N, D).

        deep: at the input of a block, tokens (L, W), or (N, L, W) of each sequence, that replace the
        L rows behind SOS. Positions are added once, at the beginning.
        """
        layout = Sequences(lengths, x.device)
        return self._encode(x + self._positions(layout.rows.places()), layout, deep or {})

    def encode_prompts(
        self,
        contexts: Sequence[Tensor],
        names: Sequence[Sequence[int]],
        deep: Sequence[Mapping[int, Tensor]] | None = None,
    ) -> Tensor:
        """Every class under every context: features (M, C, D).

        contexts: M learned contexts, (L_m, W) shared by the classes or (C, L_m, W) of each.
        names: ids of each class's own tokens, EOT included, SOS not.
        deep: for each context, tokens (L_m, W) or (C, L_m, W) that replace its rows at the input
        of a block. What is of each class cannot share the prefix from there on: the blocks before still do.
        """
        deep = deep or [{} for _ in contexts]
        learned = [(context, *more.values()) for context, more in zip(contexts, deep, strict=True)]
        shared = [m for m, tokens in enumerate(learned) if all(t.dim() == 2 for t in tokens)]
        found = {m: self._own(contexts[m], names, deep[m]) for m in range(len(contexts)) if m not in shared}
        if shared:
            together = self._shared([contexts[m] for m in shared], names, [deep[m] for m in shared])
            found |= dict(zip(shared, together, strict=True))
        return torch.stack([found[m] for m in range(len(contexts))])

    def _own(self, context: Tensor, names: Sequence[Sequence[int]], deep: Mapping[int, Tensor]) -> Tensor:
        """Tokens of each class, from the start or from a block on: features (C, D). context: (C, L, W) or (L, W)."""
        lengths = [1 + context.shape[-2] + len(ids) for ids in names]
        if context.dim() == 2:
            first = min(len(self.blocks) - 1, *(layer for layer, tokens in deep.items() if tokens.dim() == 3))
            x, layout = self._begin([context], names)
            x = self._pass(x, layout, {layer: [deep[layer]] for layer in deep if layer < first}, range(first))
            later = {layer: deep[layer] for layer in deep if layer >= first}
            return self._encode(layout.unshared(x), Sequences(lengths, x.device), later, first)
        sos = self.embed([self.config.sot_id])
        tails = torch.split(self.embed(_joined(names)), [len(ids) for ids in names])
        rows = torch.cat([part for c, tail in enumerate(tails) for part in (sos, context[c], tail)])
        return self.encode_packed(rows, lengths, deep)

    def _shared(
        self, contexts: Sequence[Tensor], names: Sequence[Sequence[int]], deep: Sequence[Mapping[int, Tensor]]
    ) -> Tensor:
        """M contexts (L_m, W), each for all classes: features (M, C, D)."""
        x, layout = self._begin(contexts, names)
        layers = {layer for tokens in deep for layer in tokens}
        replaced = {layer: [tokens.get(layer) for tokens in deep] for layer in layers}
        return torch.unflatten(self._encode(x, layout, replaced), 0, (layout.M, -1))

    def _begin(self, contexts: Sequence[Tensor], names: Sequence[Sequence[int]]) -> tuple[Tensor, Prompts]:
        """Packed rows (R, W) of M contexts (L_m, W) and their names, with positions, and how they lie."""
        sos = self.embed([self.config.sot_id])
        layout = Prompts([1 + len(context) for context in contexts], [len(ids) for ids in names], sos.device)
        rows = [part for context in contexts for part in (sos, context)] + [self.embed(_joined(names))] * layout.M
        places = layout.prefix.places() + _joined([layout.name.places(1 + len(context)) for context in contexts])
        return torch.cat(rows) + self._positions(places), layout

    def _encode(self, x: Tensor, layout: Sequences | Prompts, deep: Mapping[int, Any], first: int = 0) -> Tensor:
        """Packed rows with positions (R, W) through the blocks from `first` on -> a feature for each EOT (N, D)."""
        last = len(self.blocks) - 1
        x = self._pass(x, layout, deep, range(first, last))
        if last in deep:
            x = layout.replace(x, deep[last])
        block = list(self.blocks)[last]
        normed = block.ln_1(x)
        q, k, v = block.attn.project(normed, queries=layout.last(normed))
        feature: Tensor = self.projection(self.ln_final(block.finish(layout.last(x), layout.attend_last(q, k, v))))
        return feature

    def _pass(self, x: Tensor, layout: Sequences | Prompts, deep: Mapping[int, Any], layers: range) -> Tensor:
        """Packed rows (R, W) through some blocks, all rows of each."""
        for layer, block in zip(layers, list(self.blocks)[layers.start : layers.stop], strict=True):
            if layer in deep:
                x = layout.replace(x, deep[layer])
            x = block.finish(x, layout.attend(*block.attn.project(block.ln_1(x))))
        return x

    def _positions(self, places: Sequence[int]) -> Tensor:
        """Position embeddings (R, W) of rows at these places of their sequences."""
        return self.positions[constant(tuple(places), self.positions.device)]


def _joined(sequences: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """All numbers, sequence after sequence."""
    return tuple(number for sequence in sequences for number in sequence)
