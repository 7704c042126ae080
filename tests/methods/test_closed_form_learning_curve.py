"""What more images would bring: the rule, the halves, and where nothing can be said."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dca.methods.shared import product_of_experts
from dca.methods.shared.experts import KernelRidge, TextGaussian
from dca.methods.shared.product_of_experts import (
    ExpertPool,
    Experts,
    ExpertsHead,
    FixedHyperparameters,
    _split_in_halves,
    learning_curve,
    select_hyperparameters,
    take_images,
)
from dca.stats.intervals import exact_interval
from dca.stats.learning_curve import expect_with_twice


def make(shots: int, noise: float = 0.8, classes: int = 4, D: int = 12) -> Experts:
    rng = torch.Generator().manual_seed(3)
    centers = F.normalize(torch.randn(classes, D, dtype=torch.float64, generator=rng), dim=-1)
    y = torch.arange(classes).repeat_interleave(shots)
    x = F.normalize(centers[y] + noise * torch.randn(len(y), D, dtype=torch.float64, generator=rng), dim=-1)
    gaussian = TextGaussian.from_features(x, y, centers)
    return Experts(gaussian, 10.0, KernelRidge(x, y, classes, gaussian.groups, 2.0))


def test_the_curve_goes_on_from_models_of_halves_on_the_other_halves() -> None:
    experts = make(8)
    selected = select_hyperparameters(experts)
    half, now, twice, four = learning_curve(ExpertPool((experts,)), (selected,), experts.gaussian.groups, 0.7)
    assert [point.shots for point in (half, now, twice, four)] == [4, 8, 16, 32]
    assert (now.accuracy, now.expected, twice.expected) == (0.7, False, True)
    accuracies = []
    for seed in range(4):
        for rows, others in permutations(_split_in_halves(experts.labels, experts.gaussian.groups, seed)):
            fixed = FixedHyperparameters(ridge=selected.ridge, kernel_ridge=selected.kernel_ridge)
            part = take_images(experts, rows, fixed, kernel=selected.kernel > 0)
            head = ExpertsHead.from_experts(part, select_hyperparameters(part), torch.float64)
            right = head(experts.gaussian.x[others]).argmax(-1) == experts.labels[others]
            accuracies.append(float(right.double().mean()))
    assert half.accuracy == pytest.approx(sum(accuracies) / 8)
    assert twice.accuracy == expect_with_twice(0.7, half.accuracy, 4)
    assert four.accuracy == expect_with_twice(twice.accuracy, 0.7, 4)
    # The interval of the estimate itself, about what is expected: as many images tell it.
    assert (twice.low, twice.high) == exact_interval(twice.accuracy, 0.55 * 32)


def test_copies_are_no_more_images() -> None:
    experts = make(8)
    gaussian, y = experts.gaussian, experts.labels
    copied = TextGaussian.from_features(gaussian.x.repeat(2, 1), y.repeat(2), gaussian.text, gaussian.groups.repeat(2))
    twice = Experts(copied, 10.0, KernelRidge(copied.x, copied.labels, 4, copied.groups, 2.0))
    curve = learning_curve(ExpertPool((twice,)), (select_hyperparameters(twice),), twice.gaussian.groups, 0.7)
    assert [point.shots for point in curve] == [4, 8, 16, 32]
    assert (curve[2].low, curve[2].high) == exact_interval(curve[2].accuracy, 0.55 * 32)


def test_of_many_images_fewer_halves_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    experts = make(8)
    selected = select_hyperparameters(experts)
    monkeypatch.setattr(product_of_experts, "ENOUGH_ANSWERS", 3 * len(experts.labels))
    three = learning_curve(ExpertPool((experts,)), (selected,), experts.gaussian.groups, 0.7)[0].accuracy
    monkeypatch.setattr(product_of_experts, "ENOUGH_ANSWERS", 0)
    one = learning_curve(ExpertPool((experts,)), (selected,), experts.gaussian.groups, 0.7)[0].accuracy
    split, each = product_of_experts._split_in_halves, []
    for seed in range(3):
        monkeypatch.setattr(
            product_of_experts, "_split_in_halves", lambda labels, groups, _, seed=seed: split(labels, groups, seed)
        )
        each.append(learning_curve(ExpertPool((experts,)), (selected,), experts.gaussian.groups, 0.7)[0].accuracy)
    assert one == each[0]
    assert three == pytest.approx(sum(each) / 3)


def test_a_doubling_brings_the_mean_and_a_part_of_the_last_one_in_log_odds_above_guessing() -> None:
    def above_guessing(p: float) -> float:
        return math.log(p / (1 - p)) - math.log(0.25 / 0.75)

    expected = expect_with_twice(0.8, 0.7, 4)
    now, before = above_guessing(0.8), above_guessing(0.7)
    assert above_guessing(expected) == pytest.approx(1.07 * now + 0.43 * (now - before))
    assert above_guessing(expect_with_twice(0.8, 0.9, 4)) == pytest.approx(1.07 * now), (
        "a half that is better by chance"
    )


@pytest.mark.parametrize("accuracy", [0.0, 0.1, 0.25, 1.0])
def test_more_images_add_nothing_to_guessing_nor_to_certainty(accuracy: float) -> None:
    assert expect_with_twice(accuracy, 0.2, 4) == accuracy


def test_few_images_say_nothing() -> None:
    for few in (make(1), make(3)):
        assert learning_curve(ExpertPool((few,)), (select_hyperparameters(few),), few.gaussian.groups, 0.8) == []


def check_halves(labels: Tensor, groups: Tensor, seed: int) -> None:
    first, second = _split_in_halves(labels, groups, seed)
    assert sorted([*first.tolist(), *second.tolist()]) == list(range(len(labels)))
    assert not {*groups[first].tolist()} & {*groups[second].tolist()}, "copies stay together"


def test_halves_share_no_image_and_no_copy() -> None:
    labels = torch.arange(3).repeat_interleave(6)
    groups = torch.arange(18)
    groups[[0, 1, 2]] = 0
    for seed in range(4):
        check_halves(labels, groups, seed)
        first, _ = _split_in_halves(labels, torch.arange(18), seed)
        assert torch.bincount(labels[first]).tolist() == [3, 3, 3]


def test_halves_of_copies_say_nothing() -> None:
    """Two different images per class, each eight times: no half can leave one out."""
    rng = torch.Generator().manual_seed(5)
    y = torch.arange(3).repeat_interleave(16)
    groups = torch.arange(6).repeat_interleave(8)
    x = F.normalize(torch.randn(6, 12, dtype=torch.float64, generator=rng), dim=-1)[groups]
    text = F.normalize(torch.randn(3, 12, dtype=torch.float64, generator=rng), dim=-1)
    gaussian = TextGaussian.from_features(x, y, text, groups)
    experts = Experts(gaussian, 10.0, KernelRidge(x, y, 3, groups, 2.0))
    assert gaussian.can_hold_out
    assert (
        learning_curve(ExpertPool((experts,)), (select_hyperparameters(experts),), experts.gaussian.groups, 0.8) == []
    )
