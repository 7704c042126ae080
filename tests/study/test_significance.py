from __future__ import annotations

import random

import pytest

from dca.stats.paired import STREAM, holm, paired_bootstrap, signed_rank
from oracles import significance as literal


def some_differences(seed: int, groups: int, most: int) -> list[list[float]]:
    rng = random.Random(seed)
    return [[rng.gauss(1, 2) for _ in range(rng.randint(1, most))] for _ in range(groups)]


@pytest.mark.parametrize(("groups", "most"), [(1, 1), (1, 5), (3, 3), (11, 4)])
def test_the_bootstrap_equals_loops_over_datasets_and_pairs(groups: int, most: int) -> None:
    differences = some_differences(groups, groups, most)
    found = paired_bootstrap(differences, samples=300)
    means = literal.bootstrap_means(differences, 300, STREAM)
    assert found.low == pytest.approx(literal.percentile(means, 0.025), abs=1e-12)
    assert found.high == pytest.approx(literal.percentile(means, 0.975), abs=1e-12)
    assert found.effect == pytest.approx(sum(sum(g) / len(g) for g in differences) / groups)
    assert (found.groups, found.pairs) == (groups, sum(map(len, differences)))


def test_the_bootstrap_is_the_same_each_time_and_covers_the_effect() -> None:
    differences = some_differences(7, 8, 3)
    found = paired_bootstrap(differences)
    assert found == paired_bootstrap(differences)
    assert found.low < found.effect < found.high


def test_datasets_count_equally_however_many_pairs_they_have() -> None:
    assert paired_bootstrap([[1.0] * 9, [5.0]]).effect == 3.0


@pytest.mark.parametrize("differences", [[], [[1.0], []]])
def test_nothing_to_compare_is_an_error(differences: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="at least one difference"):
        paired_bootstrap(differences)


@pytest.mark.parametrize("seed", range(12))
def test_the_signed_rank_test_equals_counting_all_signs_also_with_ties_and_zeros(seed: int) -> None:
    rng = random.Random(seed)
    values = [rng.choice([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0]) for _ in range(rng.randint(1, 11))]
    assert signed_rank(values) == pytest.approx(literal.signed_rank(values), abs=1e-12)


@pytest.mark.parametrize("n", [3, 10, 33])
def test_the_signed_rank_test_equals_scipy_without_ties(n: int) -> None:
    stats = pytest.importorskip("scipy.stats", reason="needs scipy")
    rng = random.Random(n)
    values = [rng.gauss(0.4, 1) for _ in range(n)]
    assert signed_rank(values) == pytest.approx(stats.wilcoxon(values, method="exact").pvalue, rel=1e-9)


def test_differences_that_are_equal_but_for_rounding_are_ties() -> None:
    assert signed_rank([0.1 + 0.2, -0.3, 0.5]) == signed_rank([0.3, -0.3, 0.5])


@pytest.mark.parametrize("seed", range(6))
def test_holm_equals_its_definition(seed: int) -> None:
    rng = random.Random(seed)
    values = [rng.choice([0.001, 0.01, 0.02, 0.04, 0.3, 0.9]) for _ in range(rng.randint(0, 9))]
    assert holm(values) == pytest.approx(literal.holm(values))
