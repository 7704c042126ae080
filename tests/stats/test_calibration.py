from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dca.stats import calibration
from dca.stats.calibration import (
    FLOOR,
    apply_temperature,
    bin_predictions,
    calibration_error,
    fit_temperature,
    log_loss,
)


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
    table = bin_predictions([0.1, 0.2, 0.9, 1.0], [True, False, True, True], 2)
    assert table.count.tolist() == [2, 2]
    assert table.right.tolist() == [1, 2]
    assert table.confidence.tolist() == pytest.approx([0.15, 0.95])


def test_lists_of_different_length_are_a_bug_of_the_caller():
    with pytest.raises(ValueError, match="same length"):
        bin_predictions([0.1, 0.2], [True])


def test_the_example_is_true():
    assert doctest.testmod(calibration).failed == 0


def predictions(N: int, C: int, temperature: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels drawn from softmax(z), and the probabilities softmax(temperature z): too sure where it is above 1."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 2, (N, C))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    labels = np.array([rng.choice(C, p=row) for row in p])
    sharp = np.exp(temperature * z)
    return sharp / sharp.sum(1, keepdims=True), labels


def loss(probabilities: np.ndarray, labels: np.ndarray, temperature: float, weights: np.ndarray) -> float:
    """The weighted log-loss of softmax(log p / T), one image at a time."""
    total = 0.0
    for p, y, w in zip(probabilities, labels, weights, strict=True):
        logits = [math.log(max(value, FLOOR)) / temperature for value in p]
        total -= w * (logits[y] - math.log(sum(math.exp(value) for value in logits)))
    return total


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_temperature_has_the_least_log_loss_of_a_fine_grid(sharpness: float, weighted: bool):
    p, y = predictions(60, 4, sharpness)
    weights = np.random.default_rng(1).uniform(0.1, 3, len(y)) if weighted else np.ones(len(y))
    found = fit_temperature(p, y, weights if weighted else None)
    best = loss(p, y, found, weights)
    for factor in (0.5, 0.9, 0.999, 1.001, 1.1, 2.0):
        assert best <= loss(p, y, found * factor, weights)


def test_labels_drawn_from_the_probabilities_need_no_temperature():
    p, y = predictions(20000, 5, 1.0)
    assert fit_temperature(p, y) == pytest.approx(1.0, abs=0.03)
    p, y = predictions(20000, 5, 3.0)
    assert fit_temperature(p, y) == pytest.approx(3.0, abs=0.1)


@given(st.integers(0, 10**6), st.sampled_from([0.2, 1.0, 5.0]), st.integers(2, 6))
def test_a_temperature_changes_no_prediction_and_never_raises_the_log_loss(seed: int, sharpness: float, C: int):
    p, y = predictions(30, C, sharpness, seed)
    found = fit_temperature(p, y)
    changed = apply_temperature(torch.from_numpy(p), found).numpy()
    assert (changed.argmax(1) == p.argmax(1)).all()
    np.testing.assert_allclose(changed.sum(1), 1)
    assert log_loss(changed, y) <= log_loss(p, y) + 1e-9


def test_the_temperature_stays_within_its_bounds():
    right, wrong = np.tile([[0.6, 0.4]], (9, 1)), np.zeros(9, dtype=int)
    assert fit_temperature(right, wrong) == pytest.approx(0.05)
    assert fit_temperature(right, wrong + 1) == pytest.approx(20)
    assert fit_temperature(np.array([[1.0, 0.0]] * 9), wrong + 1) == pytest.approx(20), "zeros are no infinities"
    assert fit_temperature(np.zeros((0, 2)), np.zeros(0, dtype=int)) == 1.0


def test_a_prior_of_one_image_keeps_few_right_predictions_from_certainty():
    """Nine right images and one of doubt: nine tenths."""
    p, y = np.tile([[0.6, 0.4]], (9, 1)), np.zeros(9, dtype=int)
    assert apply_temperature(torch.from_numpy(p), fit_temperature(p, y, prior=1.0))[0, 0].item() == pytest.approx(0.9)


def test_rows_without_a_prediction_stay_without_one():
    assert apply_temperature(torch.tensor([[math.nan, math.nan]]), 2.0).isnan().all()
