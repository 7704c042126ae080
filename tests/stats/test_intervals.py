from __future__ import annotations

import numpy as np
import pytest

from dca.stats.intervals import macro_accuracy, wilson_interval


@pytest.mark.parametrize(("share", "n"), [(0.0, 5), (1.0, 5), (0.7, 10), (0.812, 160)])
def test_wilsons_ends_solve_its_equation(share: float, n: int):
    """(p - end)² = z² end (1 - end) / n, within [0, 1]."""
    low, high = wilson_interval(share, n)
    assert 0 <= low <= share <= high <= 1
    for end in (low, high):
        assert (share - end) ** 2 == pytest.approx(1.959963984540054**2 * end * (1 - end) / n, abs=1e-12)


def test_an_interval_of_all_right_or_all_wrong_holds_its_end():
    assert all(wilson_interval(1.0, n)[1] == 1.0 and wilson_interval(0.0, n)[0] == 0.0 for n in range(1, 200))


def test_macro_accuracy_is_the_mean_of_the_classes():
    accuracy, worth = macro_accuracy([True, True, False, True], [3, 3, 3, 8])
    assert accuracy == pytest.approx((2 / 3 + 1) / 2)
    assert worth == pytest.approx(4 / (1 / 3 + 1))
    assert macro_accuracy([True, False] * 6, np.arange(12) % 3)[1] == pytest.approx(12), "balanced: all images"


def test_copies_weigh_as_one_image():
    accuracy, worth = macro_accuracy([True, True, False, False, True], [3, 3, 3, 8, 8], [0, 0, 1, 1, 2])
    assert (accuracy, worth) == macro_accuracy([True, False, False, True], [3, 3, 8, 8])
    assert macro_accuracy([True, False, False], [0, 0, 1], [5, 5, 6])[0] == pytest.approx(0.25), "a copy is half of it"


def test_wilson_agrees_with_a_value_worked_by_hand():
    # Newcombe (1998), Statistics in Medicine 17, table I: 81 of 263.
    assert np.allclose(wilson_interval(81 / 263, 263), (0.2553, 0.3662), atol=5e-5)
    assert wilson_interval(0.0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("count", [1, 5, 200])
def test_wilson_holds_the_share_and_stays_in_range(count):
    for right in range(count + 1):
        low, high = wilson_interval(right / count, count)
        assert 0 <= low <= right / count <= high <= 1
