"""Which rows of a packed text batch see which: whole sequences, or names behind shared prefixes.

Linear layers take rows (R, W) as they come; only attention needs to know where a sequence begins.
Queries, keys and values are (heads, R, d). `last` gives the rows that leave the tower.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.clip.ragged import constant, ragged

NEVER = float("-inf")
KeysValues = tuple[Tensor, Tensor]


def attend_with_prefix(
    q: Tensor, own: KeysValues, prefix: KeysValues, hidden: Tensor | None, empty: Tensor | None = None
) -> Tensor:
    """Attention of names to their prompt's prefix and, causally, to themselves.

    q: (heads, M, C, N, d), the last N of T own rows, or with `empty` one row that sees all T.
    own: keys and values (heads, M, C, T, d). prefix: (heads, M, P, d). hidden: (M, P), prefix rows
    that are padding; empty: (C, T), own rows that are. Returns the shape of q. The prefix is never
    expanded over the classes: its scores are one product over all C·N rows.
    """
    C, N, d = q.shape[2:]
    P, T = prefix[0].shape[-2], own[0].shape[-2]
    q = q * d**-0.5
    shared = torch.unflatten(q.flatten(2, 3) @ prefix[0].mT, 2, (C, N))
    if hidden is not None:
        shared = shared.masked_fill(hidden[:, None, None], NEVER)
    within = q @ own[0].mT
    if N > 1:
        within = within.masked_fill(torch.ones(N, T, dtype=torch.bool, device=q.device).triu(1 + T - N), NEVER)
    if empty is not None:
        within = within.masked_fill(empty[:, None], NEVER)
    weights = torch.cat([shared, within], dim=-1).softmax(dim=-1)
    from_prefix = weights[..., :P].flatten(2, 3) @ prefix[1]
    return torch.unflatten(from_prefix, 2, (C, N)) + weights[..., P:] @ own[1]


@lru_cache(maxsize=64)
def _unshared(head: int, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Which of the rows [prefix, names] stand in [prefix, name, prefix, name, ..]."""
    ends = accumulate(lengths, initial=head)
    return tuple(
        row for start, n in zip(ends, lengths, strict=False) for row in (*range(head), *range(start, start + n))
    )


class Sequences:
    """N whole sequences, each seeing itself alone."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.rows = ragged(tuple(lengths), device)

    def replace(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Put tokens (L, W), or (N, L, W), in place of the L rows behind each SOS. x: (R, W)."""
        padded = self.rows.pad(x)
        tokens = tokens.to(x.dtype).expand(len(padded), -1, -1)
        return self.rows.pack(torch.cat([padded[:, :1], tokens, padded[:, 1 + tokens.shape[1] :]], dim=1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Every row sees itself and those before it: (heads, R, d)."""
        q, k, v = (self.rows.pad(part).transpose(0, 1) for part in (q, k, v))
        return self.rows.pack(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1))

    def last(self, x: Tensor) -> Tensor:
        """Rows of EOT: (R, W) -> (N, W)."""
        return self.rows.last(x)

    def attend_last(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Rows of EOT see their whole sequence. q: (heads, N, d). Returns (heads, N, d)."""
        seen = None if self.rows.empty is None else ~self.rows.empty[:, None]
        k, v = self.rows.pad(k), self.rows.pad(v)
        return F.scaled_dot_product_attention(q.unsqueeze(-2), k, v, attn_mask=seen).squeeze(-2)


class Prompts:
    """M prefixes [SOS, context], then the C names once for each: every name sees its prompt's prefix and itself."""

    def __init__(self, prefixes: Sequence[int], names: Sequence[int], device: torch.device) -> None:
        self.prefix, self.name = ragged(tuple(prefixes), device), ragged(tuple(names), device)
        self.head, self.M = sum(prefixes), len(prefixes)

    def replace(self, x: Tensor, tokens: Sequence[Tensor | None]) -> Tensor:
        """Put tokens (L_m, W) in place of the context of prompt m, where there are any. x: (R, W)."""
        begun = list(torch.split(x[: self.head], list(self.prefix.lengths)))
        for m, own in enumerate(tokens):
            if own is not None:
                begun[m] = torch.cat([begun[m][:1], own.to(x.dtype)])
        return torch.cat([*begun, x[self.head :]])

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Every row sees its prompt up to itself: (heads, R, d)."""
        before, own = self._split(q, k, v)
        begun = F.scaled_dot_product_attention(before[0], before[1], before[2], is_causal=True)
        named = attend_with_prefix(own[0], (own[1], own[2]), (before[1], before[2]), self.prefix.empty)
        return torch.cat([self.prefix.pack(begun), self.name.pack(named).flatten(1, 2)], dim=1)

    def last(self, x: Tensor) -> Tensor:
        """Rows of EOT: (R, W) -> (M·C, W)."""
        return self.name.last(torch.unflatten(x[self.head :], 0, (self.M, -1))).flatten(0, 1)

    def attend_last(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Rows of EOT see their whole prompt. q: (heads, M·C, d). Returns (heads, M·C, d)."""
        before, own = self._split(k, v)
        asked = torch.unflatten(q, 1, (self.M, -1, 1))
        mixed = attend_with_prefix(asked, (own[0], own[1]), (before[0], before[1]), self.prefix.empty, self.name.empty)
        return mixed.flatten(1, 3)

    def unshared(self, x: Tensor) -> Tensor:
        """One prompt's rows (R, W) as `Sequences` has them: the prefix again in front of every name."""
        return x.index_select(0, constant(_unshared(self.head, self.name.lengths), x.device))

    def _split(self, *parts: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Of each (heads, R, d): the prefixes (heads, M, P, d), and the names (heads, M, C, T, d)."""
        before = [self.prefix.pad(part[:, : self.head]) for part in parts]
        own = [self.name.pad(torch.unflatten(part[:, self.head :], 1, (self.M, -1))) for part in parts]
        return before, own
