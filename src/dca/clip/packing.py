"""Which rows of a packed text batch attend to which: whole sequences, or names that share a prefix.

Linear layers take packed rows (..., R, W) in any order; only attention needs to know where a sequence
begins. Queries, keys and values are (..., heads, R, d). `last` selects the rows that leave the tower.
Leading dimensions are a batch of equal layouts; their size may be symbolic (torch.export).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.clip.kernels.blocks_of_rows import RowBlocks, Span, divide
from dca.clip.ragged import cached_tensors, constant, ragged

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
