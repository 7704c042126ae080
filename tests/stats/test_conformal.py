"""Prediction sets and p-values by their definitions, and how often the sets hold."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dca.methods.shared.conformal import ConformalPredictor
from dca.methods.shared.experts import KernelRidge, TextGaussian
from dca.methods.shared.product_of_experts import ExpertPool, Experts, Hyperparameters
from dca.stats.conformal import (
    add_best,
    class_weights,
    conformal_p_values,
    jackknife_ranks,
    min_images,
    min_images_for_rate,
    smallest_p_value,
    threshold_ranks,
)
from oracles.variances import literal_variances

NUMBERS = Hyperparameters(1.0, 1.0, 0.5, 0.02, 2.0, 0.1)


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def double(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_jackknife_plus_counts_the_models_that_find_a_class_too_strange() -> None:
    held, without = drawn(19, seed=1), drawn(4, 19, 3, seed=2)
    found = jackknife_ranks(held, without).sets(0.9)
    for b in range(4):
        for y in range(3):
            stranger = sum(float(held[i]) < float(without[b, i, y]) for i in range(19))
            assert bool(found[b, y]) == (stranger < 0.9 * 20)
    one_model = without[:, :1].expand(-1, 19, -1)
    assert torch.equal(threshold_ranks(held, without[:, 0]).ranks, jackknife_ranks(held, one_model).ranks)


def test_the_best_class_is_always_in_the_set() -> None:
    probabilities = torch.tensor([[0.2, 0.8], [0.9, 0.1]])
    nothing = torch.zeros(2, 2, dtype=torch.bool)
    assert add_best(nothing, probabilities).tolist() == [[False, True], [True, False]]


def literal_p_value(held: list[float], score: float, weights: list[float]) -> float:
    """By the definition: every held-out image below counts, the nearest one in part."""
    mean = sum(v * v for v in weights) / sum(weights)
    below = sorted((s, v) for s, v in zip(held, weights, strict=True) if s <= score)
    above = [s for s in held if s > score]
    if not above:
        return 1.0
    mass = mean + sum(v for _, v in below[:-1])
    if below:
        nearest, weight = below[-1]
        mass += weight * (score - nearest) / (min(above) - nearest)
    return mass / (mean + sum(weights))


@pytest.mark.parametrize("weights", [None, [1.0, 0.25, 2.0, 0.5, 1.0]])
def test_p_values_are_those_of_the_definition(weights: list[float] | None) -> None:
    held, scores = [4.0, 1.0, 2.0, 8.0, 3.0], [0.5, 1.0, 1.5, 2.0, 2.75, 5.0, 7.99, 8.0, 9.0]
    expected = [literal_p_value(held, score, weights or [1.0] * 5) for score in scores]
    found = conformal_p_values(double(held), double(scores), None if weights is None else double(weights))
    assert found.tolist() == pytest.approx(expected, abs=1e-9)


def test_p_values_are_multiples_of_the_smallest_at_the_held_out_images() -> None:
    held = torch.tensor([3.0, 1.0, 2.0, 4.0])
    found = conformal_p_values(held, double([-9.0, 1.0, 2.0, 3.0, 3.999999999, 4.0]))
    assert found.tolist() == pytest.approx([0.2, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert found.min() == smallest_p_value(torch.ones(4))  # in float64: a rate of 0.05 must not fail by rounding


def test_p_values_can_reach_a_rate_from_the_number_of_images_on_that_it_needs() -> None:
    for rate in (0.01, 0.05, 0.1, 0.3):
        need = min_images_for_rate(rate)
        assert smallest_p_value(torch.ones(need)) <= rate < smallest_p_value(torch.ones(need - 1))


def test_weighted_images_are_worth_classes_times_their_harmonic_mean() -> None:
    for counts in ([5, 5, 5, 4], [60, 4], [2, 3, 30]):
        labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        worth = len(counts) ** 2 / sum(1 / n for n in counts)
        weights = class_weights(labels)
        assert smallest_p_value(weights) == pytest.approx(1 / (1 + worth))
        least = conformal_p_values(torch.arange(len(labels)), torch.tensor([-1.0]), weights)
        assert least.item() == smallest_p_value(weights)


@pytest.mark.parametrize("n", [19, 24, 30, 57, 200])
@pytest.mark.parametrize("rate", [0.05, 0.1, 0.2])
def test_p_values_of_images_like_the_held_out_ones_are_below_a_rate_as_often_as_it_says(n: int, rate: float) -> None:
    """Held-out and new scores from one distribution; without the interpolation, 30 images would give 1/31 at 0.05."""
    generator = torch.Generator().manual_seed(n)
    shares = []
    for _ in range(1500):
        held, new = torch.randn(n, generator=generator), torch.randn(200, generator=generator)
        shares.append((conformal_p_values(held, new) <= rate).double().mean())
    assert 0.85 * rate < float(torch.stack(shares).mean()) < 1.05 * rate


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
def test_with_fewer_images_than_needed_a_set_holds_every_class(coverage: float) -> None:
    least = min_images(coverage)
    for n, every in ((least - 1, True), (least, False)):
        strange = torch.full((1, n, 2), torch.inf)
        assert bool(jackknife_ranks(torch.zeros(n), strange).sets(coverage).all()) is every


def make(seed: int, shots: int = 10, classes: int = 3, D: int = 6) -> tuple[ConformalPredictor, Tensor, Tensor]:
    """Answers of a closed form on scattered images, and new images with their labels."""
    centers = 1.5 * drawn(classes, D, seed=seed)
    y = torch.arange(classes).repeat_interleave(shots)
    new_y = torch.arange(classes).repeat_interleave(20)
    x = torch.nn.functional.normalize(centers[y] + drawn(len(y), D, seed=seed + 1), dim=-1)
    new = torch.nn.functional.normalize(centers[new_y] + drawn(len(new_y), D, seed=seed + 2), dim=-1)
    text = torch.nn.functional.normalize(centers + drawn(classes, D, seed=seed + 3), dim=-1)
    gaussian = TextGaussian.from_features(x, y, text)
    kernel = KernelRidge(x, y, classes, gaussian.groups, 2.0)
    return ConformalPredictor(ExpertPool((Experts(gaussian, 10.0, kernel),)), (NUMBERS,)), new, new_y


def literal_log_p(answers: ConformalPredictor, left: int | None, f: Tensor) -> Tensor:
    """-log p (B, C) of images f by the closed form without image `left`; V, ν, t̃ and the kernel's λ held fixed."""
    (experts,), n = answers.experts.parts, NUMBERS
    source = experts.gaussian
    keep = torch.tensor([i != left for i in range(len(source.x))])
    x, y = source.x[keep], source.labels[keep]
    means = torch.stack([x[y == c].mean(0) for c in range(len(source.text))])
    counts = torch.bincount(y)[:, None].double()
    m = (n.text_shots * source.moved_text + counts * means) / (n.text_shots + counts)
    ridge = n.ridge * literal_variances(source.x, source.labels)
    P = torch.linalg.inv((x - means[y]).T @ (x - means[y]) / source.nu + ridge)
    gaussian = f @ P @ m.T - (m @ P * m).sum(-1) / 2
    kernel = experts.kernel
    assert kernel is not None
    omega = kernel._root.square()
    K = kernel.kernel_values(source.x)
    lam = n.kernel_ridge * torch.linalg.eigvalsh(omega.sqrt()[:, None] * K * omega.sqrt()).mean()
    G = torch.linalg.inv(K[keep][:, keep] + lam * torch.diag(1 / omega[keep]))
    ridge_scores = kernel.kernel_values(f)[:, keep] @ G @ kernel.targets[keep]
    logits = n.gaussian * gaussian + n.text * 10.0 * f @ source.text.T + n.kernel * ridge_scores
    return -logits.log_softmax(-1)


def test_the_sets_are_those_of_models_that_are_refitted_without_each_image() -> None:
    answers, new, _ = make(5, shots=4)
    source = answers.experts.source
    held = torch.stack([literal_log_p(answers, i, source.x[i : i + 1])[0, y] for i, y in enumerate(source.labels)])
    without = torch.stack([literal_log_p(answers, i, new) for i in range(len(source.x))], dim=1)
    assert torch.equal(answers.ranks(new).ranks, jackknife_ranks(held, without).ranks)
    assert answers.ranks(new).images == len(source.x)


def test_sets_hold_as_often_as_they_say() -> None:
    """Guaranteed is 1 - 2α = 0.8; about 0.9 is usual."""
    covered = []
    for seed in range(0, 400, 20):
        answers, new, y = make(seed)
        probabilities = literal_log_p(answers, None, new).neg().exp()
        sets = add_best(answers.ranks(new).sets(0.9), probabilities)
        covered.append(sets[torch.arange(len(y)), y].double().mean())
    assert torch.stack(covered).mean() > 0.85
