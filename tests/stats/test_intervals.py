from __future__ import annotations

import numpy as np
import pytest
from scipy.special import betainc
from scipy.stats import beta, binomtest

from dca.stats.beta import beta_quantile, incomplete_beta
from dca.stats.intervals import (
    WORTH,
    exact_interval,
    held_out_interval,
    held_out_macro_interval,
    image_weights,
    macro_accuracy,
    wilson_interval,
)


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


@pytest.mark.parametrize(("right", "n"), [(0, 7), (7, 7), (1, 12), (11, 12), (90, 100), (1, 2)])
def test_the_exact_interval_is_that_of_scipy(right: int, n: int):
    expected = binomtest(right, n).proportion_ci(0.95, "exact")
    assert exact_interval(right / n, n) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert exact_interval(0.3, 0) == (0.0, 1.0)
    assert exact_interval(0.98, 26.4)[1] == 1.0, "half an image that is wrong is none"


@pytest.mark.parametrize(("a", "b"), [(0.55, 1.55), (9.0, 4.0), (300.2, 1.1), (1.0, 1.0)])
def test_the_beta_distribution_is_that_of_scipy(a: float, b: float):
    for share in (0.001, 0.025, 0.5, 0.975):
        assert beta_quantile(share, a, b) == pytest.approx(beta.ppf(share, a, b), abs=1e-9)
        assert incomplete_beta(a, b, share) == pytest.approx(betainc(a, b, share), abs=1e-12)


def test_the_interval_of_a_mean_over_classes_is_widened_by_its_rare_classes():
    """Literally: the ends of the classes, and the square root of the sum of their squared distances."""
    labels, right = np.repeat([0, 1, 2], [40, 40, 2]), np.ones(82, dtype=bool)
    right[[80, 81]] = False
    measured, worth = macro_accuracy(right, labels)
    accuracy = measured + 0.25 * (1 - measured)
    found = held_out_macro_interval(accuracy, right, labels)
    pooled = exact_interval(accuracy, WORTH * worth)
    distance = 0.0
    for n, wrong in ((40, 0.0), (40, 0.0), (2, 1.0)):
        share = 1 - 0.75 * wrong
        distance += (exact_interval(share, WORTH * n)[1] - share) ** 2
    assert found[0] == pooled[0]
    assert found[1] == pytest.approx(accuracy + distance**0.5 / 3)
    assert found[1] > pooled[1]
    copied, groups = np.r_[np.arange(82), 80, 80], np.r_[np.arange(82), 80, 80]
    assert held_out_macro_interval(accuracy, right[copied], labels[copied], groups) == pytest.approx(found)


def test_the_interval_of_balanced_classes_is_that_of_all_their_images():
    labels = np.repeat(np.arange(6), 8)
    right = np.arange(48) % 8 > 0
    assert held_out_macro_interval(7 / 8, right, labels) == held_out_interval(7 / 8, 48)
    assert held_out_macro_interval(1.0, np.ones(48, dtype=bool), labels)[1] == 1.0


def test_weights_give_every_class_and_every_image_the_same():
    weights = image_weights([0, 0, 0, 1], [7, 7, 8, 9])
    assert weights.tolist() == [0.125, 0.125, 0.25, 0.5]
    assert image_weights([4, 4, 9]).tolist() == [0.25, 0.25, 0.5]


def test_all_right_and_all_wrong_are_exactly_one_and_zero():
    for classes in range(1, 30):
        labels = np.arange(3 * classes) % classes
        assert macro_accuracy(np.ones(len(labels), dtype=bool), labels)[0] == 1.0
        found = macro_accuracy(np.zeros(len(labels), dtype=bool), labels)[0]
        assert found == pytest.approx(0.0, abs=1e-12)
        assert np.copysign(1.0, found) == 1.0, "no -0.0"
