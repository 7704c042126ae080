from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from dca.study.claims import LOG_SECONDS, SPREAD, Pairs, pairs_of
from dca.study.results import Variant
from helpers.made_runs import blocks_under, write_run

DCA, DAPT, CLIP = Variant("dca"), Variant("dapt"), Variant("zero_shot")


def values(pairs: Pairs) -> list[float]:
    return [pair.value for pair in pairs.pairs]


def test_pairs_of_one_seed_at_several_shots_are_one_draw(tmp_path: Path) -> None:
    for shots, seed, difference in ((4, 1, 0.1), (8, 1, 0.3), (4, 2, 0.0)):
        write_run(tmp_path, 0.4 + difference, method="dca", shots=shots, seed=seed)
        write_run(tmp_path, 0.4, method="dapt", shots=shots, seed=seed)
    (block,) = blocks_under(tmp_path)
    found = pairs_of(block, DCA, DAPT, [4, 8]).difference()
    assert found is not None
    assert found.draws == (pytest.approx((20.0, 0.0)),)
    assert found.pairs == 3


def test_pairs_share_dataset_shots_and_seed(tmp_path: Path) -> None:
    for seed, (one, other) in enumerate([(0.5, 0.4), (0.6, 0.3)], 1):
        write_run(tmp_path, one, method="dca", seed=seed)
        write_run(tmp_path, other, method="dapt", seed=seed)
    write_run(tmp_path, 0.9, method="dca", seed=3)
    write_run(tmp_path, 0.9, method="dca", data="dtd")
    write_run(tmp_path, 0.1, method="dapt", data="dtd", shots=8)
    (block,) = blocks_under(tmp_path)
    found = pairs_of(block, DCA, DAPT, [4])
    assert found.by_draw == {"eurosat": {1: pytest.approx([10.0]), 2: pytest.approx([30.0])}}
    assert len(found.runs) == 4


def test_zero_shot_is_paired_with_every_seed(tmp_path: Path) -> None:
    write_run(tmp_path, 0.4, method="zero_shot", shots=1)
    for seed in (1, 2):
        write_run(tmp_path, 0.5 + seed / 10, method="dca", seed=seed)
    (block,) = blocks_under(tmp_path)
    assert values(pairs_of(block, DCA, CLIP, [4])) == pytest.approx([20.0, 30.0])
    assert values(pairs_of(block, CLIP, CLIP, [4])) == [0.0]


def test_the_difference_at_other_shots_can_be_subtracted(tmp_path: Path) -> None:
    for shots, one, other in ((1, 0.5, 0.3), (16, 0.8, 0.75)):
        write_run(tmp_path, one, method="dca", shots=shots)
        write_run(tmp_path, other, method="dapt", shots=shots)
    (block,) = blocks_under(tmp_path)
    assert values(pairs_of(block, DCA, DAPT, [1], less_shots=16)) == pytest.approx([15.0])
    assert values(pairs_of(block, DCA, DAPT, [1], less_shots=8)) == []


def test_spread_and_times_are_quantities_too(tmp_path: Path) -> None:
    made = {"dca": [0.5, 0.52, 0.51], "dapt": [0.5, 0.6, 0.4]}
    for method, accuracies in made.items():
        for seed, accuracy in enumerate(accuracies, 1):
            result = {"seconds": 8.0 if method == "dca" else 2.0}
            write_run(tmp_path, accuracy, method=method, seed=seed, result=result)
    (block,) = blocks_under(tmp_path)
    spread = [100 * statistics.stdev(some) for some in made.values()]
    assert values(pairs_of(block, DCA, DAPT, [4], quantity=SPREAD)) == pytest.approx([spread[0] - spread[1]])
    assert values(pairs_of(block, DCA, DAPT, [4], quantity=LOG_SECONDS)) == [2.0] * 3
    assert pairs_of(block, DCA, DAPT, [8], quantity=SPREAD).difference() is None
