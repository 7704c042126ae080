"""Features in memory equal those of the store on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from dca.features.store import FeatureStore, MemoryStore

KEYS = [f"{n:064x}" for n in range(4)]


def test_both_stores_compute_what_is_missing_once(tmp_path: Path):
    wanted = [KEYS[2], KEYS[0], KEYS[2], KEYS[3]]
    for store in (MemoryStore(), FeatureStore(tmp_path)):
        asked: list[list[int]] = []

        def compute(places: Sequence[int], asked: list[list[int]] = asked) -> list[Tensor]:
            asked.append(list(places))
            return [torch.tensor([[float(int(wanted[place], 16))] * 3]) for place in places]

        for _ in range(2):
            assert store.get_or_compute({"backbone": "x"}, wanted, compute)[:, 0].tolist() == [2.0, 0.0, 2.0, 3.0]
        assert asked == [[0, 1, 3]]
        assert store.known_keys({"backbone": "x"}, KEYS) == {KEYS[0], KEYS[2], KEYS[3]}
        assert store.known_keys({"backbone": "y"}, KEYS) == set()


def test_no_keys_are_no_rows():
    assert MemoryStore().get_or_compute({}, [], lambda places: []).shape == (0, 0)
