"""Scales of experts against a slow general minimiser."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from dca.methods.shared.product_of_experts import class_weights, fit_scales, fit_scales_each, log_loss


def problem(seed: int, experts: int = 3, N: int = 40, C: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(C, (N,), generator=rng)
    noise = torch.randn(experts, N, C, dtype=torch.float64, generator=rng)
    strength = torch.tensor([2.0, 0.0, -1.0][:experts], dtype=torch.float64)  # useful, useless, misleading
    scores = noise + strength[:, None, None] * F.one_hot(labels, C).double()
    return scores * torch.tensor([1.0, 50.0, 1e-3])[:experts, None, None], labels, class_weights(labels)


def smoothed_loss(s: Tensor, scores: Tensor, labels: Tensor, weights: Tensor, smoothing: float) -> Tensor:
    """Σ_i ω_i times the cross-entropy of smoothed labels, as it is written."""
    logits = torch.einsum("e,enc->nc", s, scores)
    C = logits.shape[1]
    target = (1 - smoothing) * F.one_hot(labels, C).double() + smoothing / C
    return (weights * -(target * logits.log_softmax(-1)).sum(-1)).sum()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.1]))
def test_no_other_scales_are_better(seed: int, smoothing: float) -> None:
    scores, labels, weights = problem(seed)
    found = fit_scales(scores, labels, weights, smoothing=smoothing)
    assert (found.values >= 0).all()
    s = found.values.clone().requires_grad_()
    loss = smoothed_loss(s, scores, labels, weights, smoothing)
    assert abs(float(loss.detach()) - found.loss) < 1e-9
    (gradient,) = torch.autograd.grad(loss, s)
    size = scores.square().mean((1, 2)).sqrt()
    # Optimality under s >= 0: no slope at a positive scale, none that goes down at a scale of zero.
    assert ((gradient / size).abs()[found.values > 0] < 1e-5).all()
    assert ((gradient / size)[found.values == 0] > -1e-5).all()


def test_given_scales_are_kept_and_the_others_fitted() -> None:
    scores, labels, weights = problem(3)
    free = fit_scales(scores, labels, weights, smoothing=0.1)
    again = fit_scales(scores, labels, weights, smoothing=0.1, fixed=[float(free.values[0]), None, None])
    assert torch.allclose(free.values, again.values, rtol=1e-3, atol=1e-6)
    fixed = fit_scales(scores, labels, weights, fixed=[0.5, 0.0, None])
    assert fixed.values[:2].tolist() == [0.5, 0.0]
    every = fit_scales(scores, labels, weights, fixed=[0.5, 0.0, 0.0])
    expected = smoothed_loss(torch.tensor([0.5, 0, 0], dtype=torch.float64), scores, labels, weights, 0.0)
    assert abs(every.loss - float(expected)) < 1e-12


def test_an_expert_without_mistakes_has_a_finite_scale() -> None:
    labels = torch.arange(4)
    scores = F.one_hot(labels, 4).double()[None]
    found = fit_scales(scores, labels, class_weights(labels), smoothing=0.2)
    # softmax(s e_y) = smoothed label: e^s / (e^s + 3) = 0.8 + 0.2 / 4
    assert float(found.values[0]) == pytest.approx(np.log(3 * 0.85 / 0.15), rel=1e-6)


def test_classes_have_equal_weight() -> None:
    weights = class_weights(torch.tensor([0, 0, 0, 2]))
    assert weights.tolist() == pytest.approx([1 / 6] * 3 + [1 / 2])
    logits = torch.zeros(4, 3, dtype=torch.float64)
    assert log_loss(logits, torch.tensor([0, 0, 0, 2]), weights) == pytest.approx(np.log(3))


def test_many_problems_together_are_each_alone() -> None:
    scores, labels, weights = problem(5)
    other = torch.stack([scores, scores.flip(0), torch.zeros_like(scores)])
    values, losses = fit_scales_each(other, labels, weights, smoothing=0.1)
    for n, one in enumerate(other):
        alone = fit_scales(one, labels, weights, smoothing=0.1)
        assert torch.allclose(values[n], alone.values, rtol=1e-4, atol=1e-6)
        assert float(losses[n]) == pytest.approx(alone.loss, abs=1e-9)
    assert values[2].tolist() == [0, 0, 0], "experts that say nothing"


def test_scores_that_saturate_every_probability_have_scales_too() -> None:
    labels = torch.arange(4).repeat(5)
    scores = 1e4 * F.one_hot(labels, 4).double()[None].repeat(2, 1, 1)
    scores[1] = 0
    found = fit_scales(scores, labels, class_weights(labels), smoothing=0.05)
    assert 0 < float(found.values[0]) < 1e-2
    assert float(found.values[1]) == 0
