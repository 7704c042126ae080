"""The product of two models' probabilities, against literal twins."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dca.methods.blend import BlendWeights, fit_blend_weights, multiply_probabilities

C = 4


def softmax(z: NDArray[np.float64]) -> NDArray[np.float64]:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def drawn(
    n: int, seed: int, first: float, second: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Labels and probabilities of two models with independent errors; strengths of what they know."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % C
    one, two = (s * np.eye(C)[y] + rng.normal(size=(n, C)) for s in (first, second))
    return softmax(one), softmax(two), y


def losses(p: NDArray[np.float64], y: NDArray[np.int64]) -> NDArray[np.float64]:
    smooth = 1 / (len(y) + 2)
    target = (1 - smooth) * np.eye(C)[y] + smooth / C
    return -(target * np.log(p)).sum(axis=1)


def literal(p: NDArray[np.float64], q: NDArray[np.float64], a: float, b: float) -> NDArray[np.float64]:
    found = p**a * q**b
    return found / found.sum(axis=1, keepdims=True)


def least(f: Callable[[float], float]) -> tuple[float, float]:
    """Where a convex function is least in [0, 4], and its value."""
    low, high = 0.0, 4.0
    for _ in range(40):
        one, two = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, two) if f(one) <= f(two) else (one, high)
    return low, f(low)


@settings(deadline=None, max_examples=8)
@given(st.integers(0, 30))
def test_the_weights_have_the_least_loss_on_images_that_were_left_out(seed: int) -> None:
    p, q, y = drawn(60, seed, 1.5, 1.5)
    p[7], q[11] = np.nan, np.nan
    rest = np.array([i for i in range(60) if i not in (7, 11)])
    classes, counts = np.unique(y[rest], return_counts=True)
    weights = 1 / (counts[y[rest]] * len(classes))

    def loss(a: float, b: float) -> float:
        return float((weights * losses(literal(p[rest], q[rest], a, b), y[rest])).sum())

    alone, before = least(lambda a: loss(a, 0.0))
    b, after = least(lambda b: least(lambda a: loss(a, b))[1])
    a, _ = least(lambda a: loss(a, b))
    found = fit_blend_weights(p, q, y)
    each = [losses(literal(p[rest], q[rest], *s), y[rest]) for s in ((alone, 0.0), (a, b))]
    gains = each[0] - each[1]
    mean = (weights * gains).sum()
    error = np.sqrt((weights**2 * (gains - mean) ** 2).sum())
    if abs(mean - error) < 1e-5:
        return
    if mean < error:
        assert found == BlendWeights()
        return
    assert [found.first, found.second] == pytest.approx([a, b], abs=1e-3)
    assert found.loss == pytest.approx(before - after, abs=1e-6)
    blended = multiply_probabilities(p, q, found)
    np.testing.assert_allclose(blended[rest], literal(p[rest], q[rest], found.first, found.second), atol=1e-12)
    assert np.isnan(blended[[7, 11]]).all()


def test_noise_is_left_out_and_knowledge_is_taken_in() -> None:
    """A worthless model passes about once in 13 times, and one that knows as much as the first nearly always."""
    noise = [fit_blend_weights(*drawn(160, seed, 2.0, 0.0)).second for seed in range(200)]
    knowledge = [fit_blend_weights(*drawn(160, seed, 2.0, 2.0)) for seed in range(40)]
    assert np.mean(np.array(noise) > 0) < 0.15
    assert all(worth.second > 0 for worth in knowledge)
    assert np.mean([worth.points for worth in knowledge]) > 0.03


def test_a_model_without_predictions_has_no_weight() -> None:
    p, q, y = drawn(12, 0, 2.0, 2.0)
    assert fit_blend_weights(p, np.full_like(q, np.nan), y) == BlendWeights()
    assert fit_blend_weights(p, np.full_like(q, 1 / C), y) == BlendWeights(), "it says nothing"


def test_probabilities_of_zero_are_no_end() -> None:
    p, q, y = drawn(40, 0, 2.0, 3.0)
    q = np.eye(C)[q.argmax(axis=1)]
    found = fit_blend_weights(p, q, y)
    assert found.second > 0
    assert np.isfinite(multiply_probabilities(p, q, found)).all()
