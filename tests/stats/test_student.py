from __future__ import annotations

import math

import pytest

from dca.stats.student import (
    decided_distance,
    decision_power,
    t_cdf,
    t_interval,
    t_quantile,
    t_test,
    values_to_decide,
)
from oracles import significance as literal

ABOVE = (0.0, math.inf)


@pytest.mark.parametrize("freedom", [1, 2, 3.7, 8, 30, 200])
@pytest.mark.parametrize("t", [-3.0, -0.2, 0.5, 2.0, 6.0])
def test_the_distribution_equals_the_area_under_its_density(t: float, freedom: float) -> None:
    assert t_cdf(t, freedom) == pytest.approx(literal.t_cdf(t, freedom), abs=1e-9)


@pytest.mark.parametrize("freedom", [1, 2, 10.5, 400])
@pytest.mark.parametrize("share", [0.6, 0.975, 0.9995])
def test_quantiles_are_those_of_scipy(share: float, freedom: float) -> None:
    stats = pytest.importorskip("scipy.stats", reason="needs scipy")
    assert t_quantile(share, freedom) == pytest.approx(stats.t.ppf(share, freedom), rel=1e-9)


def test_the_test_and_the_interval_agree() -> None:
    values = [0.4, 1.9, 2.2, -0.3]
    p = t_test(values)
    low, _ = t_interval(values, 1 - p)
    assert low == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("mean", "n", "region", "inside"),
    [
        (1.0, 3, ABOVE, True),
        (1.5, 6, ABOVE, True),
        (-1.0, 8, ABOVE, False),
        (0.2, 12, (-1.0, 1.0), True),
        (1.8, 9, (-1.0, 1.0), False),
        (-0.5, 5, (-math.inf, 0.6), True),
    ],
)
def test_the_power_equals_the_share_of_tried_studies_that_decide(
    mean: float, n: int, region: tuple[float, float], inside: bool
) -> None:
    found = decision_power(mean, 1.0, n, region, inside=inside)
    tried = literal.share_decided(mean, 1.0, n, region, inside, literal.t_quantile(0.975, n - 1), 20_000)
    assert found == pytest.approx(tried, abs=4 * math.sqrt(0.25 / 20_000))
    assert 0.05 < found < 0.999, "a case that says something"


@pytest.mark.parametrize(("mean", "region"), [(1.0, ABOVE), (-0.7, ABOVE), (0.3, (-1.0, 1.0)), (1.4, (-1.0, 1.0))])
def test_the_number_of_values_is_the_first_that_reaches_80_percent(mean: float, region: tuple[float, float]) -> None:
    inside = region[0] < mean < region[1]
    chances = [decision_power(mean, 1.0, n, region, inside=inside) for n in range(3, 60)]
    needed = next(n for n, p in enumerate(chances, 3) if p >= 0.8)
    assert values_to_decide(mean, 1.0, region) == needed
    assert values_to_decide(mean, 1.0, region, fewest=needed + 7) == needed + 7


def test_the_power_and_the_number_scale_with_the_deviation() -> None:
    assert decision_power(3.0, 3.0, 7, ABOVE, inside=True) == pytest.approx(
        decision_power(1.0, 1.0, 7, ABOVE, inside=True)
    )
    assert values_to_decide(0.0, 1.0, ABOVE) is None, "on the bound no number decides"
    assert values_to_decide(0.5, 0.0, ABOVE) == 3, "values that are always the same decide at once"


@pytest.mark.parametrize("n", [3, 7, 30])
def test_a_difference_at_the_decided_distance_has_80_percent(n: int) -> None:
    distance = decided_distance(2.0, n)
    assert decision_power(distance, 2.0, n, ABOVE, inside=True) == pytest.approx(0.8, abs=1e-6)
    assert decision_power(-distance, 2.0, n, ABOVE, inside=False) == pytest.approx(0.8, abs=1e-6)
