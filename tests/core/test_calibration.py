from __future__ import annotations

import doctest

import numpy as np
import pytest

from dca.core import calibration
from dca.core.calibration import binned, calibration_error


def test_the_error_of_known_cases():
    assert calibration_error([1.0, 1.0], [True, True]) == 0
    assert calibration_error([1.0, 1.0], [False, False]) == 1
    assert calibration_error([0.9, 0.9, 0.6, 0.6], [True, False, True, True]) == pytest.approx(0.5 * 0.4 + 0.5 * 0.4)
    assert calibration_error([], []) == 0


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_the_error_equals_a_literal_loop(bins: int):
    rng = np.random.default_rng(3)
    sure = rng.uniform(0, 1, 500)
    right = rng.uniform(0, 1, 500) < sure**2
    place = np.minimum((sure * bins).astype(int), bins - 1)
    literal = sum(
        abs(right[place == b].mean() - sure[place == b].mean()) * (place == b).mean()
        for b in range(bins)
        if (place == b).any()
    )
    assert calibration_error(sure, right, bins) == pytest.approx(literal)


def test_bins_hold_counts_right_ones_and_mean_confidence():
    table = binned([0.1, 0.2, 0.9, 1.0], [True, False, True, True], 2)
    assert table.count.tolist() == [2, 2]
    assert table.right.tolist() == [1, 2]
    assert table.confidence.tolist() == pytest.approx([0.15, 0.95])


def test_lists_of_different_length_are_a_bug_of_the_caller():
    with pytest.raises(ValueError, match="same length"):
        binned([0.1, 0.2], [True])


def test_the_example_is_true():
    assert doctest.testmod(calibration).failed == 0
