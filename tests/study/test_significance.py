from __future__ import annotations

import random

import pytest

from dca.stats.paired import holm, mean_difference, sign_test, sign_test_datasets
from dca.stats.student import t_quantile
from oracles import significance as literal


def some_draws(seed: int, groups: int, most: int) -> list[list[float]]:
    rng = random.Random(seed)
    return [[rng.gauss(1, 2 + group) for _ in range(rng.randint(2, most))] for group in range(groups)]


@pytest.mark.parametrize(("groups", "most"), [(2, 2), (3, 3), (11, 5)])
def test_intervals_over_datasets_and_over_draws_equal_their_definitions(groups: int, most: int) -> None:
    draws = some_draws(groups, groups, most)
    found = mean_difference([[[value] for value in values] for values in draws])
    assert found.effect == pytest.approx(sum(sum(g) / len(g) for g in draws) / groups)
    quantile = literal.t_quantile(0.975, groups - 1)
    assert found.over_datasets() == pytest.approx(literal.interval_over_datasets(draws, quantile), rel=1e-6)
    quantile = literal.t_quantile(0.975, literal.welch_freedom(draws))
    assert found.over_draws() == pytest.approx(literal.interval_over_draws(draws, quantile), rel=1e-6)
    assert (found.groups, found.pairs) == (groups, sum(map(len, draws)))


def test_pairs_of_a_draw_are_averaged_before_draws_and_draws_before_datasets() -> None:
    found = mean_difference([[[0.0, 2.0], [4.0]], [[1.0]]])
    assert found.draws == ((1.0, 4.0), (1.0,))
    assert found.means == (2.5, 1.0)
    assert found.effect == 1.75
    assert found.over_draws() is None, "the second dataset has one draw"
    assert mean_difference([[[1.0], [2.0]]]).over_datasets() is None


def test_an_interval_over_datasets_covers_new_datasets_and_one_over_draws_does_not() -> None:
    """Datasets differ by 3 points, draws by 0.3: of 400 studies of a true 0, intervals over datasets miss 5 %."""
    rng, missed = random.Random(5), {"datasets": 0, "draws": 0}
    for _ in range(400):
        levels = [rng.gauss(0, 3) for _ in range(3)]
        found = mean_difference([[[level + rng.gauss(0, 0.3)] for _ in range(3)] for level in levels])
        for name, ends in (("datasets", found.over_datasets()), ("draws", found.over_draws())):
            assert ends is not None
            missed[name] += not ends[0] < 0 < ends[1]
    assert 6 <= missed["datasets"] <= 36
    assert missed["draws"] > 200


def test_equal_values_have_an_interval_of_one_point() -> None:
    found = mean_difference([[[2.0], [2.0]], [[2.0], [2.0]], [[2.0], [2.0]]])
    assert found.over_datasets() == found.over_draws() == (2.0, 2.0)


@pytest.mark.parametrize("differences", [[], [[]], [[[]]], [[[1.0]], []]])
def test_nothing_to_compare_is_an_error(differences: list[list[list[float]]]) -> None:
    with pytest.raises(ValueError, match="at least one difference"):
        mean_difference(differences)


@pytest.mark.parametrize("seed", range(12))
def test_the_sign_test_equals_counting_all_signs_also_with_zeros(seed: int) -> None:
    rng = random.Random(seed)
    values = [rng.choice([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0]) for _ in range(rng.randint(1, 11))]
    assert sign_test(values) == pytest.approx(literal.sign_test(values), abs=1e-12)


@pytest.mark.parametrize("methods", [1, 2, 5, 21, 40])
def test_the_fewest_datasets_of_a_sign_test_are_those_that_can_reach_5_percent(methods: int) -> None:
    needed = sign_test_datasets(methods)
    assert methods * literal.sign_test([1.0] * needed) <= 0.05
    assert methods * literal.sign_test([1.0] * (needed - 1)) > 0.05


@pytest.mark.parametrize("seed", range(6))
def test_holm_equals_its_definition(seed: int) -> None:
    rng = random.Random(seed)
    values = [rng.choice([0.001, 0.01, 0.02, 0.04, 0.3, 0.9]) for _ in range(rng.randint(0, 9))]
    assert holm(values) == pytest.approx(literal.holm(values))


def test_the_quantile_of_the_intervals_is_that_of_the_literal_integral() -> None:
    assert t_quantile(0.975, 2) == pytest.approx(literal.t_quantile(0.975, 2), rel=1e-6)
