"""Meanings and their wordings as flat integer tables that fit on a GPU.

image -> group -> meanings -> wordings of a style -> token ids. Each arrow is a range
(start, count) or an index, so a whole batch is drawn with a few gathers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from pretrain.captions import STYLES, Meaning

Tables = dict[str, Tensor]
Tokenize = Callable[[Sequence[str]], list[list[int]]]


class TextTable:
    """Collects groups of meanings, each meaning and each text once."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.meanings: dict[Meaning, int] = {}
        self.groups: dict[tuple[Meaning, ...], int] = {}

    def add(self, meanings: Sequence[Meaning]) -> int:
        """Index of the group with these meanings."""
        group = tuple(meanings)
        if group not in self.groups:
            self.groups[group] = len(self.groups)
            for meaning in group:
                self.meanings.setdefault(meaning, len(self.meanings))
        return self.groups[group]

    def tables(self, tokenize: Tokenize, context: int) -> Tables:
        """All tables; see `lookup` for their use."""
        wordings: list[int] = []
        ranges: list[tuple[int, int]] = []
        for meaning in self.meanings:
            for texts in meaning.wordings:
                ranges.append((len(wordings), len(texts)))
                wordings += [self.texts.setdefault(text, len(self.texts)) for text in texts]
        ids = tokenize(list(self.texts))
        lengths = np.array([len(sequence) for sequence in ids], np.int32)
        tokens = np.zeros((len(ids), context), np.int16)
        tokens[np.arange(context) < lengths[:, None]] = np.fromiter(chain.from_iterable(ids), np.int16)
        starts = torch.tensor([0] + [len(g) for g in self.groups]).cumsum(0)
        members = [self.meanings[m] for g in self.groups for m in g]
        return {
            "tokens": torch.from_numpy(tokens),
            "lengths": torch.from_numpy(lengths),
            "wordings": torch.tensor(wordings, dtype=torch.int32),
            "ranges": torch.tensor(ranges, dtype=torch.int32).view(-1, len(STYLES), 2),
            "keys": torch.tensor([m.key for m in self.meanings], dtype=torch.int64),
            "members": torch.tensor(members, dtype=torch.int32),
            "group_start": starts[:-1].to(torch.int32),
            "group_count": starts.diff().to(torch.int32),
        }

    def plain(self) -> list[str]:
        """The plain text of each meaning, for the teacher."""
        return [meaning.text for meaning in self.meanings]


def concatenate(parts: Sequence[Tables]) -> Tables:
    """The tables of several sources as one; indices are shifted accordingly."""
    shift = {"tokens": 0, "wordings": 0, "keys": 0, "members": 0}
    moved: list[Tables] = []
    for part in parts:
        ranges = part["ranges"].clone()
        ranges[..., 0] += shift["wordings"]
        moved.append(
            part
            | {
                "wordings": part["wordings"] + shift["tokens"],
                "ranges": ranges,
                "members": part["members"] + shift["keys"],
                "group_start": part["group_start"] + shift["members"],
            }
        )
        for name in shift:
            shift[name] += len(part[name])
    return {name: torch.cat([part[name] for part in moved]) for name in moved[0]}


def pick(start: Tensor, count: Tensor, u: Tensor) -> Tensor:
    """One position of each range, chosen by u in [0, 1): all (B,)."""
    return (start + (u * count).long().clamp(max=count - 1)).long()


def lookup(tables: Tables, groups: Tensor, styles: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """A meaning and a text for each group.

    groups, styles: (B,). u: (2, B) uniform numbers. Returns the positions of meanings and of
    texts, both (B,). A meaning without wordings in the style uses its plain ones.
    """
    member = pick(tables["group_start"][groups], tables["group_count"][groups], u[0])
    meanings = tables["members"][member].long()
    ranges = tables["ranges"][meanings, styles]
    ranges = torch.where(ranges[:, 1:] > 0, ranges, tables["ranges"][meanings, 0])
    texts = tables["wordings"][pick(ranges[:, 0], ranges[:, 1], u[1])].long()
    return meanings, texts


def token_ids(tables: Tables, texts: Tensor, length: int, eot: int) -> tuple[Tensor, Tensor]:
    """Ids (B, length) of the texts, longer ones cut so that EOT is last, and the positions of EOT (B,)."""
    ids = tables["tokens"][texts, :length].long()
    last = (tables["lengths"][texts].long() - 1).clamp(max=length - 1)
    return ids.scatter(1, last[:, None], eot), last
