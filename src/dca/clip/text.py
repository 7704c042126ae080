"""The text tower: causal, so nothing behind EOT matters and a shared beginning is shared work.

Three facts make the exact fast route. A row sees only the rows before it, so a sequence may
end at its EOT. The beginning [SOS, w_1 .. w_L] of a prompt is the same for every class, so
its keys and values are computed once. Only the EOT row leaves the last block, so only that
row needs a query and an MLP there. Sequences of equal length run together: no padding at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from dca.clip.blocks import Block, Blocks
from dca.clip.config import TextConfig
from dca.clip.tokens import ExtraTokens

EOT = slice(-1, None)
KeysValues = tuple[Tensor, Tensor]


def by_length(sequences: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], list[Sequence[int]]]]:
    """Groups of equally long sequences, shortest first: their places, and themselves."""
    for length in sorted({len(s) for s in sequences}):
        places = [i for i, s in enumerate(sequences) if len(s) == length]
        yield places, [sequences[i] for i in places]


def attend_with_prefix(q: Tensor, own: KeysValues, prefix: KeysValues) -> Tensor:
    """Attention of class tokens to a shared prefix and, causally, to their own sequence.

    q: (C, heads, R, d), the last R of T own rows. own: keys and values (C, heads, T, d).
    prefix: keys and values (heads, P, d). Returns (C, heads, R, d). The prefix is never
    expanded over the classes: its scores are one product over all C·R rows.
    """
    classes, heads, rows, d = q.shape
    T = own[0].shape[-2]
    q = q * d**-0.5
    folded = q.transpose(0, 1).reshape(heads, classes * rows, d)
    shared = (folded @ prefix[0].transpose(-1, -2)).view(heads, classes, rows, -1).transpose(0, 1)
    within = q @ own[0].transpose(-1, -2)
    future = torch.ones(rows, T, dtype=torch.bool, device=q.device).triu(1 + T - rows)
    within = within.masked_fill(future, float("-inf"))
    weights = torch.cat([shared, within], dim=-1).softmax(dim=-1)
    P = prefix[0].shape[-2]
    to_prefix = weights[..., :P].transpose(0, 1).reshape(heads, classes * rows, P)
    from_prefix = (to_prefix @ prefix[1]).view(heads, classes, rows, d).transpose(0, 1)
    return from_prefix + weights[..., P:] @ own[1]


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

    def embed(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Token embeddings (N, T, W) of equally long id sequences, without positions."""
        ids = torch.tensor(sequences, dtype=torch.long, device=self.positions.device)
        embedded: Tensor = self.embedding(ids)
        return embedded

    def encode_embedded(self, x: Tensor, extra: ExtraTokens | None = None) -> Tensor:
        """Embeddings (N, T, W) that begin with SOS and end with EOT -> features (N, D).

        Positions are added here, before extra tokens enter: those carry none.
        """
        x = x + self.positions[: x.shape[-2]]
        present = extra.present if extra is not None else 0
        last = len(self.blocks) - 1
        for layer, block in enumerate(self.blocks):
            if extra is not None:
                x, present = extra.insert(x, layer, present)
            x = block(x, causal=True, rows=EOT if layer == last else None)
        return self._read(x)

    def encode_ids(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Id sequences [SOS .. EOT] of any lengths -> features (N, D)."""
        parts = [(places, self.encode_embedded(self.embed(group))) for places, group in by_length(sequences)]
        return _restore(parts)

    def encode_sequences(self, sequences: Sequence[Tensor], extra: ExtraTokens | None = None) -> Tensor:
        """Embedded sequences (T_i, W) of any lengths, each from SOS to EOT -> features (N, D).

        Extra tokens (N, V, W) belong to the sequences one by one; (V, W) to all.
        """
        parts = []
        for places, _ in by_length([range(len(s)) for s in sequences]):
            x = torch.stack([sequences[i] for i in places])
            parts.append((places, self.encode_embedded(x, _of_group(extra, places))))
        return _restore(parts)

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
        of a block. Whatever is of each class cannot share the prefix and takes the next best route.
        """
        features = []
        for m, context in enumerate(contexts):
            replaced = deep[m] if deep else {}
            shared = context.dim() == 2 and all(tokens.dim() == 2 for tokens in replaced.values())
            features.append((self._shared if shared else self._own)(context, names, replaced))
        return torch.stack(features)

    def _own(self, context: Tensor, names: Sequence[Sequence[int]], deep: Mapping[int, Tensor]) -> Tensor:
        """Tokens of each class: nothing but SOS is shared. context: (C, L, W) or (L, W). Features (C, D)."""
        own = context.expand(len(names), *context.shape[-2:])
        extra = ExtraTokens(deep, present=context.shape[-2]) if deep else None
        parts = []
        for places, group in by_length(names):
            sos = self.embed([[self.config.sot_id]]).expand(len(group), 1, -1)
            x = torch.cat([sos, own[places], self.embed(group)], dim=1)
            parts.append((places, self.encode_embedded(x, _of_group(extra, places))))
        return _restore(parts)

    def _shared(self, context: Tensor, names: Sequence[Sequence[int]], deep: Mapping[int, Tensor]) -> Tensor:
        """One context (L, W) for all classes: its keys and values once, then each group. (C, D)."""
        prefix = self._prefix(context, deep)
        start = 1 + len(context)
        parts = []
        last = len(self.blocks) - 1
        for places, group in by_length(names):
            x = self.embed(group)
            x = x + self.positions[start : start + x.shape[1]]
            for layer, (block, shared) in enumerate(zip(self.blocks, prefix, strict=True)):
                x = _block_with_prefix(block, x, shared, only_last=layer == last)
            parts.append((places, self._read(x)))
        return _restore(parts)

    def _prefix(self, context: Tensor, deep: Mapping[int, Tensor]) -> list[KeysValues]:
        """Keys and values of [SOS, w_1 .. w_L] at every block, each (heads, 1 + L, d)."""
        x = torch.cat([self.embed([[self.config.sot_id]])[0], context])
        x = (x + self.positions[: len(x)])[None]
        keys_values = []
        last = len(self.blocks) - 1
        extra, present = ExtraTokens(deep, present=len(context)), len(context)
        for layer, block in enumerate(self.blocks):
            x, present = extra.insert(x, layer, present)
            normed = block.ln_1(x)
            q, k, v = block.attn.project(normed)
            keys_values.append((k[0], v[0]))
            if layer < last:
                mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = block.finish(x, mixed)
        return keys_values

    def _read(self, x: Tensor) -> Tensor:
        """The last row, normalised and projected: (N, T, W) -> (N, D)."""
        feature: Tensor = self.projection(self.ln_final(x[:, -1]))
        return feature


def _block_with_prefix(block: Block, x: Tensor, prefix: KeysValues, *, only_last: bool) -> Tensor:
    """One block over class rows x (C, T, W) that also see the shared prefix."""
    normed = block.ln_1(x)
    if only_last:
        q, k, v = block.attn.project_last(normed, EOT)
        x = x[:, EOT]
    else:
        q, k, v = block.attn.project(normed)
    return block.finish(x, attend_with_prefix(q, (k, v), prefix))


def _of_group(extra: ExtraTokens | None, places: list[int]) -> ExtraTokens | None:
    """The extra tokens of the sequences at `places`."""
    if extra is None:
        return None
    layers = {layer: tokens if tokens.dim() == 2 else tokens[places] for layer, tokens in extra.layers.items()}
    return dataclasses.replace(extra, layers=layers)


def _restore(parts: Sequence[tuple[list[int], Tensor]]) -> Tensor:
    """Put grouped rows back into the order they came in."""
    order = [place for places, _ in parts for place in places]
    rows = torch.cat([part for _, part in parts])
    inverse = torch.empty(len(order), dtype=torch.long)
    inverse[torch.tensor(order)] = torch.arange(len(order))
    return rows[inverse.to(rows.device)]
