"""Models that are really fitted again in folds, and the estimate from them where it is hardest: noise, copies, rare."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from dca.methods.base import HeldOutPredictions, fold_shortage
from dca.methods.shared.experts import TextGaussian
from dca.methods.shared.product_of_experts import (
    ExpertPool,
    Experts,
    ExpertsHead,
    FixedHyperparameters,
    Refits,
    _ScaleFitter,
    assign_even_folds,
    class_weights,
    fit_scales,
    refit_in_folds,
    select_hyperparameters,
)
from dca.model.estimate import estimate_accuracy
from dca.model.records import Estimate

D = 64


def unit(*shape: int, seed: int) -> Tensor:
    drawn = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return F.normalize(drawn, dim=-1)


def build(x: Tensor, labels: Tensor, classes: int, groups: Tensor | None = None) -> Experts:
    gaussian = TextGaussian.from_features(x, labels, torch.zeros(classes, x.shape[1]), groups)
    return Experts.build(gaussian, 100.0, FixedHyperparameters(), width=2.0, most=3000)


def estimate_from(refits: Refits, labels: Tensor) -> Estimate:
    shortage = fold_shortage(labels.numpy(), np.arange(len(labels)), refits.fold_of.numpy())
    held = HeldOutPredictions(refits.logits.softmax(-1).numpy(), "cross-validation", shortage)
    return estimate_accuracy(held, labels.numpy(), None)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.integers(0, 4), st.integers(0, 99))
def test_folds_are_even_keep_copies_together_and_leave_every_class_an_image(
    counts: list[int], copies: int, seed: int
) -> None:
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    groups = torch.arange(len(labels))
    chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[: copies + 1]
    groups[chosen] = groups[chosen[0]].clone()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed + 1))
    folds = assign_even_folds(labels, groups, order)
    assert folds.max() < 4
    for group in groups.unique():
        assert len(folds[groups == group].unique()) == 1
    for c in range(len(counts)):
        for fold in range(int(folds.max()) + 1):
            assert ((labels == c) & (folds != fold)).any()
    if not copies:
        for c, n in enumerate(counts):
            sizes = torch.bincount(folds[labels == c].clamp_min(0), minlength=1)
            assert n == 1 or sizes.max() - (sizes[sizes > 0].min()) <= 1
    same = assign_even_folds(torch.arange(3).repeat_interleave(5), torch.arange(15), torch.arange(15))
    for fold in range(4):
        taken = [int((same[5 * c : 5 * c + 5] == fold).sum()) for c in range(3)]
        assert len({*taken}) == 1, "no label shows in the counts"


def test_the_order_of_the_images_does_not_matter() -> None:
    labels = torch.arange(3).repeat_interleave(4)
    x = F.normalize(unit(3, D, seed=1)[labels] + 0.8 * unit(12, D, seed=2), dim=-1)
    shuffled = torch.randperm(12, generator=torch.Generator().manual_seed(4))
    found, again = (
        refit_in_folds(ExpertPool((build(x, labels, 3),))),
        refit_in_folds(ExpertPool((build(x[shuffled], labels[shuffled], 3),))),
    )
    assert torch.allclose(found.logits[shuffled].softmax(-1), again.logits.softmax(-1), atol=1e-6)


def test_predictions_are_those_of_a_model_that_never_saw_the_fold() -> None:
    labels = torch.arange(3).repeat_interleave(5)
    x = F.normalize(unit(3, D, seed=1)[labels] + 0.8 * unit(15, D, seed=2), dim=-1)
    found = refit_in_folds(ExpertPool((build(x, labels, 3),)))
    assert found.folds == 4
    for fold in range(4):
        out = found.fold_of == fold
        rest = build(x[~out], labels[~out], 3)
        head = ExpertsHead.from_experts(rest, select_hyperparameters(rest), torch.float64)
        assert torch.allclose(found.logits[out].softmax(-1), head(x[out]), atol=1e-9)


@pytest.mark.parametrize("shots", [2, 4])
def test_noise_is_estimated_as_guessing(shots: int) -> None:
    classes, covered, estimates = 6, 0, []
    for task in range(60):
        labels = torch.arange(classes).repeat_interleave(shots)
        experts = build(unit(len(labels), D, seed=task), labels, classes)
        head = ExpertsHead.from_experts(experts, select_hyperparameters(experts), torch.float64)
        new, truth = unit(600, D, seed=10_000 + task), torch.arange(classes).repeat(100)
        accuracy = float((head.logits(new).argmax(-1) == truth).double().mean())
        found = estimate_from(refit_in_folds(ExpertPool((experts,))), labels)
        covered += found.low <= accuracy <= found.high
        estimates.append(found.accuracy)
    assert covered >= 57
    assert np.mean(estimates) == pytest.approx(1 / 6, abs=0.06)


def test_the_same_photos_in_two_classes_are_told_apart_by_nothing() -> None:
    labels = torch.arange(2).repeat_interleave(6)
    x = unit(6, D, seed=3).repeat(2, 1)
    found = estimate_from(refit_in_folds(ExpertPool((build(x, labels, 2, torch.arange(6).repeat(2)),))), labels)
    assert found.accuracy <= 0.6
    assert found.low < 0.5 < found.high


def test_a_rare_class_of_noise_is_not_estimated_to_be_recognised() -> None:
    covered = 0
    for task in range(20):
        labels = torch.tensor([0] * 60 + [1] * 2)
        experts = build(unit(62, D, seed=task), labels, 2)
        head = ExpertsHead.from_experts(experts, select_hyperparameters(experts), torch.float64)
        predicted = head.logits(unit(400, D, seed=500 + task)).argmax(-1)
        truth = float(((predicted[:200] == 0).double().mean() + (predicted[200:] == 1).double().mean()) / 2)
        found = estimate_from(refit_in_folds(ExpertPool((experts,))), labels)
        covered += found.low <= truth <= found.high
    assert covered >= 18


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
