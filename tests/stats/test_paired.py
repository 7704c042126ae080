from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dca.stats.paired import likely_share, mcnemar, paired_difference, rejects


def outcomes(both: int, b: int, c: int, neither: int) -> tuple[list[int], list[int]]:
    first = [1] * both + [1] * b + [0] * c + [0] * neither
    second = [1] * both + [0] * b + [1] * c + [0] * neither
    return first, second


def likelihood(b: int, c: int, n: int, delta: float, q: float) -> float:
    """Log-likelihood of the table when p_b = q + δ, p_c = q."""
    shares = ((b, q + delta), (c, q), (n - b - c, 1 - 2 * q - delta))
    if any(share < -1e-12 or (count and share <= 0) for count, share in shares):
        return -math.inf
    return sum(count * math.log(share) for count, share in shares if count)


@pytest.mark.parametrize(("b", "c", "n"), [(12, 2, 50), (3, 3, 20), (9, 0, 10), (1, 4, 30)])
@pytest.mark.parametrize("delta", [-0.4, -0.05, 0.0, 0.1, 0.6])
def test_the_nuisance_share_is_the_most_likely_one(b: int, c: int, n: int, delta: float) -> None:
    low, high = max(0.0, -delta), (1 - delta) / 2
    grid = np.linspace(low, high, 20001)
    best = grid[np.argmax([likelihood(b, c, n, delta, float(q)) for q in grid])]
    assert likely_share(b, c, n, delta) == pytest.approx(best, abs=2e-4)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_the_interval_holds_the_difference_and_ends_where_the_test_rejects(b: int, c: int, rest: int) -> None:
    first, second = outcomes(rest, b, c, 0)
    found = paired_difference(first, second)
    assert -1 <= found.low <= found.difference <= found.high <= 1
    assert found.low < found.high
    for end, outside in ((found.low, found.low - 1e-6), (found.high, found.high + 1e-6)):
        if -1 < outside < 1:
            assert rejects(b, c, found.n, outside)
            assert not rejects(b, c, found.n, end + 1e-9 * (1 if end == found.low else -1))
    swapped = paired_difference(second, first)
    assert (-swapped.high, -swapped.low) == pytest.approx((found.low, found.high))
    assert swapped.p_value == found.p_value


def test_models_that_never_differ_still_have_an_interval() -> None:
    found = paired_difference([1] * 20, [1] * 20)
    z = 1.959963984540054
    assert found.high == pytest.approx(z**2 / (20 + z**2), abs=1e-9)
    assert found.low == -found.high
    assert found.p_value == 1


def test_the_interval_covers_as_often_as_it_says() -> None:
    rng, n, p = np.random.default_rng(1), 60, (0.5, 0.25, 0.1, 0.15)
    hits, draws = 0, 400
    for both, b, c, _ in rng.multinomial(n, p, size=draws):
        found = paired_difference(*outcomes(int(both), int(b), int(c), n - int(both + b + c)))
        hits += found.low <= p[1] - p[2] <= found.high
    assert 0.92 <= hits / draws <= 0.98


def test_mcnemar_is_the_binomial_test() -> None:
    for b, c in ((0, 6), (3, 9), (10, 10)):
        total = b + c
        chance = [math.comb(total, k) / 2**total for k in range(total + 1)]
        literal = sum(p for p in chance if p <= chance[b] + 1e-15)
        assert mcnemar(b, c) == pytest.approx(literal)


def test_lists_of_two_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="same length"):
        paired_difference([1], [1, 0])
    with pytest.raises(ValueError, match="same length"):
        paired_difference([], [])
