from __future__ import annotations

from pathlib import Path

import pytest

from dca.stats.paired import MeanDifference
from dca.study.claims import JudgedClaim, claims, evaluate_claim, region_outcome
from helpers.made_runs import blocks_under, write_run


def judged(name: str, runs: Path) -> JudgedClaim:
    claim = next(claim for claim in claims() if claim.name == name)
    return evaluate_claim(claim, blocks_under(runs))


def pair(runs: Path, difference: float, seeds: int = 3, shots: int = 4, **other: object) -> None:
    """DCA and another variant of it on two datasets; the first is better by this difference, more or less."""
    for data in ("dtd", "eurosat"):
        for seed in range(1, seeds + 1):
            noise = 0.001 * seed
            for change, accuracy in (({}, 0.5 + difference + noise), (other, 0.5)):
                write_run(runs, accuracy, method="dca", data=data, shots=shots, seed=seed, options=change)


@pytest.mark.parametrize(
    ("low", "high", "pairs", "outcome"),
    [
        (0.1, 2.0, 6, "holds"),
        (-2.0, -0.1, 6, "does not hold"),
        (-2.0, 0.0, 6, "does not hold"),
        (-0.1, 2.0, 6, "not decided"),
        (0.1, 2.0, 5, "not decided"),
    ],
)
def test_the_interval_decides(low: float, high: float, pairs: int, outcome: str) -> None:
    assert region_outcome(MeanDifference(1.0, low, high, 2, pairs), 0.0, float("inf")) == outcome


def test_a_claim_holds_or_does_not_or_is_not_measured(tmp_path: Path) -> None:
    pair(tmp_path / "good", 0.02, intra="l1")
    pair(tmp_path / "bad", -0.02, n_prompts=1)
    one = judged("intra-loss", tmp_path / "good")
    assert one.outcome == "not decided", "L2 and 16 shots were not measured"
    assert [c.outcome for c in one.comparisons] == ["holds", "not measured", "not measured"]
    assert one.weakest is not None
    assert one.weakest.words == "L_in-d_m − L_in-L1, K = 4"
    assert judged("more-prompts", tmp_path / "bad").outcome == "does not hold"
    assert judged("more-prompts", tmp_path / "good").outcome == "not measured"
    assert judged("shift-over-dapt", tmp_path / "good").outcome == "not measured"


def test_the_comparison_that_decides_is_the_weakest(tmp_path: Path) -> None:
    """Not the one with the least effect: here that one is certain, the other is not."""
    for seed, noise in ((1, -0.3), (2, 0.0), (3, 0.5)):
        for data in ("dtd", "eurosat"):
            write_run(tmp_path, 0.1, method="zero_shot", data=data, seed=seed)
            write_run(tmp_path, 0.15, method="cocoop", data=data, seed=seed)
            write_run(tmp_path, 0.25 + noise, method="coop", data=data, seed=seed)
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


def test_targets_of_several_sources_are_taken_together(tmp_path: Path) -> None:
    for source in ("dtd", "eurosat"):
        for seed in (1, 2, 3):
            for method, level in (("dca", 0.02), ("dapt", 0.0)):
                targets = [0.9, 0.6 + level + seed / 1000, 0.5 + level]
                write_run(
                    tmp_path, targets, method=method, data=source, seed=seed,
                    protocol="domain-shift", targets=[f"{source}-blur", f"{source}-noise"],
                )  # fmt: skip
    found = judged("shift-over-dapt", tmp_path)
    assert found.outcome == "holds"
    assert found.weakest is not None
    assert found.weakest.difference is not None
    assert (found.weakest.difference.groups, found.weakest.difference.pairs) == (2, 12)
    assert found.weakest.difference.effect == pytest.approx(2.0), "the source's own test images do not count"
