from __future__ import annotations

from pathlib import Path

import pytest

from dca.stats.paired import MeanDifference
from dca.stats.student import decided_distance, values_to_decide
from dca.study.claims import JudgedClaim, ToDecide, claims, evaluate_claim, region_outcome
from helpers.made_runs import blocks_under, write_run


def judged(name: str, runs: Path) -> JudgedClaim:
    claim = next(claim for claim in claims() if claim.name == name)
    return evaluate_claim(claim, blocks_under(runs))


SETS = ("dtd", "eurosat", "ucf101")


def pair(runs: Path, difference: float, seeds: int = 3, shots: int = 4, sets: int = 3, **other: object) -> None:
    """DCA and another variant of it on three datasets; the first is better by this difference, more or less."""
    for place, data in enumerate(SETS[:sets]):
        for seed in range(1, seeds + 1):
            noise = 0.001 * (place - 1) + 0.0005 * (seed - 2)
            for change, accuracy in (({}, 0.5 + difference + noise), (other, 0.5)):
                write_run(runs, accuracy, method="dca", data=data, shots=shots, seed=seed, options=change)


@pytest.mark.parametrize(
    ("means", "outcome"),
    [
        ((1.0, 1.2, 0.8), "holds"),
        ((-1.0, -1.2, -0.8), "does not hold"),
        ((1.0, 5.0, 0.1), "not decided"),
        ((1.0, 1.01), "not decided"),
        ((1.0,), "not decided"),
        ((1.0, 1.0, 1.0), "holds"),
        ((0.0, 0.0, 0.0), "does not hold"),
    ],
)
def test_the_interval_over_datasets_decides_from_three_datasets_on(means: tuple[float, ...], outcome: str) -> None:
    """However many pairs there are: here nine of each dataset, all alike."""
    found = MeanDifference(tuple((mean,) * 9 for mean in means), 9 * len(means))
    assert region_outcome(found, 0.0, float("inf")) == outcome


def test_datasets_that_agree_more_closely_than_their_draws_decide_nothing() -> None:
    found = MeanDifference(((-0.4, 0.6), (0.7, -0.5), (-0.3, 0.51)), 6)
    low, high = found.over_datasets() or (0.0, 0.0)
    assert 0 < low < high < 0.15
    assert region_outcome(found, 0.0, float("inf")) == "not decided"
    assert found.deviation == pytest.approx(0.5, abs=0.1), "what the draws leave"
    assert region_outcome(MeanDifference(((0.1,), (0.1,), (0.105,)), 3), 0.0, float("inf")) == "holds"


def test_a_claim_holds_or_does_not_or_is_not_measured(tmp_path: Path) -> None:
    pair(tmp_path / "good", 0.02, intra="l1")
    pair(tmp_path / "bad", -0.02, n_prompts=1)
    one = judged("intra-loss", tmp_path / "good")
    assert one.outcome == "not decided", "L2 and 16 shots were not measured"
    assert [c.outcome for c in one.comparisons] == ["holds", "not measured", "not measured"]
    assert one.to_decide() is None, "more datasets would not help what was measured"
    assert one.weakest is not None
    assert one.weakest.words == "L_in-d_m − L_in-L1, K = 4"
    assert one.weakest.by_dataset == pytest.approx({"dtd": 1.9, "eurosat": 2.0, "ucf101": 2.1})
    assert judged("more-prompts", tmp_path / "bad").outcome == "does not hold"
    assert judged("more-prompts", tmp_path / "good").outcome == "not measured"
    assert judged("shift-over-dapt", tmp_path / "good").outcome == "not measured"


def test_two_datasets_decide_nothing_however_many_seeds(tmp_path: Path) -> None:
    pair(tmp_path, 0.2, seeds=9, sets=2, n_prompts=1)
    found = judged("more-prompts", tmp_path)
    assert found.outcome == "not decided"
    need = found.to_decide()
    assert need is not None
    assert (need.datasets, need.needed, need.distance) == (2, 3, None)


def test_what_would_decide_is_the_power_of_the_datasets_that_were_seen(tmp_path: Path) -> None:
    for data, difference in zip(SETS, (0.04, 0.0, 0.02), strict=True):
        for change, accuracy in (({}, 0.5 + difference), ({"n_prompts": 1}, 0.5)):
            write_run(tmp_path, accuracy, method="dca", data=data, options=change)
    found = judged("more-prompts", tmp_path)
    need = found.to_decide()
    assert found.outcome == "not decided"
    assert need is not None
    assert need.deviation == pytest.approx(2.0)
    assert need.needed == values_to_decide(2.0, 2.0, (0.0, float("inf"))) == 10
    assert need.distance == pytest.approx(decided_distance(2.0, 3))


def test_one_comparison_of_many_refutes_a_claim_only_beyond_chance(tmp_path: Path) -> None:
    """DCA above five other M: below one of them at 95 %, which of five comparisons chance may give."""
    for prompts in (1, 2, 3, 5, 6):
        for data, noise in zip(SETS, (-0.006, 0.0, 0.006), strict=True):
            level = 0.02 if prompts == 6 else -0.1
            write_run(tmp_path, 0.5 + level + noise, method="dca", data=data, options={"n_prompts": prompts})
    for data in SETS:
        write_run(tmp_path, 0.5, method="dca", data=data)
    found = judged("four-prompts", tmp_path)
    assert sorted(c.outcome for c in found.comparisons) == ["does not hold", *["holds"] * 4]
    assert found.refuting_level == pytest.approx(0.99)
    assert found.outcome == "not decided"
    need = found.to_decide()
    assert need is not None
    assert need.needed == values_to_decide(-2.0, 0.6, (0.0, float("inf")), fewest=4, level=0.99)


def test_the_comparison_that_decides_is_the_weakest(tmp_path: Path) -> None:
    """Not the one with the least effect: here that one is certain, the other is not."""
    for data, noise in zip(SETS, (-0.3, 0.0, 0.5), strict=True):
        write_run(tmp_path, 0.1, method="zero_shot", data=data)
        write_run(tmp_path, 0.15 + noise / 1000, method="cocoop", data=data)
        write_run(tmp_path, 0.25 + noise, method="coop", data=data)
    found = judged("tuning-over-zero-shot", tmp_path)
    assert found.weakest is not None
    assert (found.weakest.words, found.weakest.outcome) == ("CoOp − CLIP", "not decided")


def test_a_claim_of_robustness_needs_an_interval_inside_the_margin(tmp_path: Path) -> None:
    pair(tmp_path / "small", 0.002, alpha=1)
    pair(tmp_path / "large", 0.03, alpha=1)
    assert judged("alpha-robust", tmp_path / "small").outcome == "holds"
    assert judged("alpha-robust", tmp_path / "large").outcome == "does not hold"


def test_every_number_of_shots_that_was_run_counts(tmp_path: Path) -> None:
    for shots, difference in ((1, 0.02), (4, 0.02), (16, -0.02)):
        pair(tmp_path, difference, shots=shots, test_metric="cosine")
    found = judged("metric-dca", tmp_path)
    assert [c.outcome for c in found.comparisons] == ["holds", "holds", "does not hold"]
    assert found.outcome == "does not hold"


def test_targets_count_for_their_source_and_changed_images_for_their_dataset(tmp_path: Path) -> None:
    for source in SETS:
        for seed in (1, 2, 3):
            for method, level in (("dca", 0.02), ("dapt", 0.0)):
                targets = [0.9, 0.6 + level + seed / 1000, 0.5 + level]
                write_run(
                    tmp_path / "three", targets, method=method, data=source, seed=seed,
                    protocol="domain-shift", targets=[f"{source}@blur", f"{source}@noise"],
                )  # fmt: skip
    found = judged("shift-over-dapt", tmp_path / "three")
    assert found.outcome == "holds"
    assert found.weakest is not None
    assert found.weakest.difference is not None
    assert (found.weakest.difference.groups, found.weakest.difference.pairs) == (3, 18)
    assert found.weakest.difference.effect == pytest.approx(2.0), "the source's own test images do not count"
    for method, level in (("dca", 0.02), ("dapt", 0.0)):
        targets = [f"eurosat@{kind}" for kind in ("blur", "noise", "dark")]
        write_run(tmp_path / "one", [0.5 + level] * 3, method=method, protocol="domain-shift", targets=targets)
    found = judged("shift-over-dapt", tmp_path / "one")
    assert found.outcome == "not decided", "three changes of one dataset are one dataset"
    assert list(found.comparisons[0].by_dataset) == ["eurosat"]
    assert found.to_decide() == ToDecide(1, None, None, None)
