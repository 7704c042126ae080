"""Models that are really fitted again in folds, and the estimate from them where it is hardest: noise, copies, rare."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dca.methods.base import HeldOutPredictions
from dca.methods.shared.experts import TextGaussian
from dca.methods.shared.familiarity import find_occasions
from dca.methods.shared.product_of_experts import (
    ExpertPool,
    Experts,
    ExpertsHead,
    FixedHyperparameters,
    Refits,
    _ScaleFitter,
    class_weights,
    fit_scales,
    refit_in_folds,
    select_hyperparameters,
)
from dca.model.estimate import estimate_accuracy
from dca.model.records import Estimate
from dca.stats.folds import fold_shortage

D = 64


def unit(*shape: int, seed: int) -> Tensor:
    drawn = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return F.normalize(drawn, dim=-1)


def build(x: Tensor, labels: Tensor, classes: int, groups: Tensor | None = None) -> Experts:
    gaussian = TextGaussian.from_features(x, labels, torch.zeros(classes, x.shape[1]), groups)
    return Experts.build(gaussian, 100.0, FixedHyperparameters(), width=2.0, most=3000)


def refit(pool: ExpertPool) -> Refits:
    return refit_in_folds(pool, pool.source.groups)


def estimate_from(refits: Refits, labels: Tensor) -> Estimate:
    shortage = fold_shortage(labels.numpy(), np.arange(len(labels)), refits.left_out)
    held = HeldOutPredictions(refits.probabilities.numpy(), "cross-validation", shortage)
    return estimate_accuracy(held, labels.numpy(), None)


def test_the_order_of_the_images_does_not_matter() -> None:
    labels = torch.arange(3).repeat_interleave(4)
    x = F.normalize(unit(3, D, seed=1)[labels] + 0.8 * unit(12, D, seed=2), dim=-1)
    shuffled = torch.randperm(12, generator=torch.Generator().manual_seed(4))
    found, again = (
        refit(ExpertPool((build(x, labels, 3),))),
        refit(ExpertPool((build(x[shuffled], labels[shuffled], 3),))),
    )
    assert torch.allclose(found.probabilities[shuffled], again.probabilities, atol=1e-6)


def test_predictions_are_those_of_a_model_that_never_saw_the_fold() -> None:
    labels = torch.arange(3).repeat_interleave(5)
    x = F.normalize(unit(3, D, seed=1)[labels] + 0.8 * unit(15, D, seed=2), dim=-1)
    found = refit(ExpertPool((build(x, labels, 3),)))
    assert found.folds == 4
    for out in torch.from_numpy(found.left_out):
        rest = build(x[~out], labels[~out], 3)
        head = ExpertsHead.from_experts(rest, select_hyperparameters(rest), torch.float64)
        assert torch.allclose(found.probabilities[out], head(x[out]), atol=1e-9)


@pytest.mark.parametrize("shots", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_noise_is_estimated_as_guessing(shots: int) -> None:
    classes, covered, estimates = 6, 0, []
    for task in range(60):
        labels = torch.arange(classes).repeat_interleave(shots)
        experts = build(unit(len(labels), D, seed=task), labels, classes)
        head = ExpertsHead.from_experts(experts, select_hyperparameters(experts), torch.float64)
        new, truth = unit(600, D, seed=10_000 + task), torch.arange(classes).repeat(100)
        accuracy = float((head.logits(new).argmax(-1) == truth).double().mean())
        found = estimate_from(refit(ExpertPool((experts,))), labels)
        covered += found.low <= accuracy <= found.high
        estimates.append(found.accuracy)
    assert covered >= 57
    assert np.mean(estimates) == pytest.approx(1 / 6, abs=0.06)


def test_the_same_photos_in_two_classes_are_told_apart_by_nothing() -> None:
    labels = torch.arange(2).repeat_interleave(6)
    x = unit(6, D, seed=3).repeat(2, 1)
    found = estimate_from(refit(ExpertPool((build(x, labels, 2, torch.arange(6).repeat(2)),))), labels)
    assert found.accuracy <= 0.6
    assert found.low < 0.5 < found.high


@pytest.mark.parametrize("counts", [(60, 2), (20, 2, 2, 2), (8, 8, 8, 2, 2, 2), (60, 4)])
def test_rare_classes_of_noise_are_not_estimated_to_be_recognised(counts: tuple[int, ...]) -> None:
    C, covered, errors = len(counts), 0, []
    labels = torch.arange(C).repeat_interleave(torch.tensor(counts))
    for task in range(30):
        experts = build(unit(len(labels), D, seed=task), labels, C)
        head = ExpertsHead.from_experts(experts, select_hyperparameters(experts), torch.float64)
        predicted = head.logits(unit(100 * C, D, seed=500 + task)).argmax(-1)
        truth = float((predicted == torch.arange(C).repeat_interleave(100)).double().mean())
        found = estimate_from(refit(ExpertPool((experts,))), labels)
        covered += found.low <= truth <= found.high
        errors.append(found.accuracy - truth)
    assert covered >= 27
    assert abs(np.mean(errors)) < 2.5 * np.std(errors) / len(errors) ** 0.5 + 0.01


def test_an_image_of_a_rare_class_is_predicted_by_all_models_that_lack_it() -> None:
    labels = torch.tensor([0] * 12 + [1] * 2)
    x = F.normalize(unit(2, D, seed=1)[labels] + 0.8 * unit(14, D, seed=2), dim=-1)
    whole = build(x, labels, 2)
    assert not whole.gaussian.can_choose
    found, expected = refit(ExpertPool((whole,))), torch.zeros(14, 2, dtype=torch.float64)
    assert found.left_out.sum(axis=0).tolist() == [1] * 12 + [2] * 2
    for out in torch.from_numpy(found.left_out):
        rest = build(x[~out], labels[~out], 2)
        head = ExpertsHead.from_experts(rest, select_hyperparameters(rest, choose=False), torch.float64)
        expected[out] += head(x[out])
    assert torch.allclose(found.probabilities, expected / expected.sum(dim=-1, keepdim=True), atol=1e-9)


@pytest.mark.parametrize(
    ("counts", "chooses"),
    [((8, 8), True), ((2,) * 6, True), ((6, 6, 2, 2), True), ((16,) * 10 + (2,) * 10, True), ((200, 40), True),
     ((8, 2), False), ((112, 4), False), ((30, 6, 3), False), ((30, 2, 2, 2), False)],
)  # fmt: skip
def test_nothing_is_chosen_by_the_few_votes_of_rare_classes(counts: tuple[int, ...], chooses: bool) -> None:
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    x = unit(len(labels), D, seed=1)
    assert build(x, labels, len(counts)).gaussian.can_choose == chooses
    twice = torch.arange(len(labels)).repeat(2)
    copied = build(x.repeat(2, 1), labels.repeat(2), len(counts), twice)
    assert copied.gaussian.can_choose == chooses, "a copy is no further vote"


def test_a_class_of_one_photo_is_not_chosen_against() -> None:
    """Only images of the large class can be left out: their votes alone would choose that all are of that class."""
    centers = unit(2, D, seed=1)
    labels = torch.tensor([0] * 150 + [1])
    found = []
    for task in range(5):
        x = F.normalize(centers[labels] + 0.9 * unit(151, D, seed=10 + task), dim=-1)
        experts = build(x, labels, 2)
        assert experts.gaussian.can_hold_out
        assert not experts.gaussian.can_choose
        head = ExpertsHead.from_experts(experts, select_hyperparameters(experts), torch.float64)
        new = F.normalize(centers[1] + 0.9 * unit(100, D, seed=100 + task), dim=-1)
        found.append(float((head.logits(new).argmax(-1) == 1).double().mean()))
    assert np.mean(found) > 0.5


def test_classes_without_votes_are_left_out_of_the_choice() -> None:
    labels = torch.tensor([0] * 10 + [1] * 10 + [2])
    x = F.normalize(unit(3, D, seed=1)[labels] + 0.8 * unit(21, D, seed=2), dim=-1)
    experts = build(x, labels, 3)
    assert experts.gaussian.can_choose
    fitter = _ScaleFitter(experts)
    assert fitter.classes.tolist() == [0, 1]
    scores = torch.stack([experts.gaussian.whiten(1.0).voters_held_out(0.0)])
    _, found, _ = fitter.fit_best([scores], (None,))
    alone = fit_scales(scores[..., :2], labels[:20], class_weights(labels[:20]), smoothing=1 / 23)
    assert torch.allclose(found, alone.values)
    against = fit_scales(scores, labels[:20], class_weights(labels[:20]), smoothing=1 / 23)
    assert not torch.allclose(found, against.values, rtol=1e-3)


def test_series_that_say_nothing_of_their_class_are_estimated_as_guessing() -> None:
    """Two occasions of each class, six photos of each: a photo is known by its siblings, and nothing else is known."""
    classes, estimates, covered, siblings = 4, [], 0, []
    labels, occasions = torch.arange(classes).repeat_interleave(12), torch.arange(2 * classes).repeat_interleave(6)
    for task in range(12):
        x = F.normalize(unit(2 * classes, D, seed=task)[occasions] + 0.2 * unit(48, D, seed=100 + task), dim=-1)
        pool = ExpertPool((build(x, labels, classes),))
        found = find_occasions(x, labels, torch.arange(48))
        assert len(found.unique()) == 8
        refits = refit_in_folds(pool, found)
        shortage = fold_shortage(labels.numpy(), found.numpy(), refits.left_out)
        held = HeldOutPredictions(refits.probabilities.numpy(), "cross-validation", shortage, found.numpy())
        estimate = estimate_accuracy(held, labels.numpy(), None, np.arange(48))
        assert estimate.n == 48
        estimates.append(estimate.accuracy)
        covered += estimate.low <= 1 / classes <= estimate.high
        siblings.append(estimate_from(refit(pool), labels).accuracy)
    assert np.mean(siblings) == pytest.approx(1.0, abs=0.01)
    assert np.mean(estimates) < 0.35
    assert covered >= 11


def test_leave_one_out_of_many_images_leaves_series_out_too() -> None:
    labels, occasions = torch.arange(3).repeat_interleave(8), torch.arange(12).repeat_interleave(2)
    x = F.normalize(unit(12, D, seed=1)[occasions] + 0.1 * unit(24, D, seed=2), dim=-1)
    pool = ExpertPool((build(x, labels, 3),))
    assert pool.with_groups(torch.arange(24) + 7) is pool, "nothing more leaves together"
    found, selected = pool.with_groups(occasions), pool.select()
    expected = ExpertPool((build(x, labels, 3, occasions),)).held_out_logits(selected, fixed_shares=True)
    assert torch.allclose(found.held_out_logits(selected, fixed_shares=True), expected)
    assert not torch.allclose(pool.held_out_logits(selected, fixed_shares=True), expected, atol=0.1)
