"""What more images would bring: the rule, the halves, and where nothing can be said."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dca.methods.shared import product_of_experts
from dca.methods.shared.experts import KernelRidge, TextGaussian
from dca.methods.shared.product_of_experts import (
    Experts,
    _split_in_halves,
    expected_gain,
    learning_curve,
    select_hyperparameters,
)


def make(shots: int, noise: float = 0.8, classes: int = 4, D: int = 12) -> Experts:
    rng = torch.Generator().manual_seed(3)
    centers = F.normalize(torch.randn(classes, D, dtype=torch.float64, generator=rng), dim=-1)
    y = torch.arange(classes).repeat_interleave(shots)
    x = F.normalize(centers[y] + noise * torch.randn(len(y), D, dtype=torch.float64, generator=rng), dim=-1)
    gaussian = TextGaussian.from_features(x, y, centers)
    return Experts(gaussian, 10.0, KernelRidge(x, y, classes, gaussian.groups, 2.0))


@pytest.mark.parametrize(("whole", "half", "gain"), [(0.2, 0.3, 0.2 * (1 - 2 / 3)), (0.1, 0.4, 0.05), (0.3, 0.2, 0.0)])
def test_the_error_falls_by_the_same_factor_again(
    whole: float, half: float, gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = make(8)
    monkeypatch.setattr(product_of_experts, "_held_out_error", lambda part, numbers: whole if part is experts else half)
    shots, found = expected_gain(experts, select_hyperparameters(experts)) or (0, 0.0)
    assert shots == 16
    assert found == pytest.approx(gain)


def test_a_hard_task_gains_and_few_images_say_nothing() -> None:
    hard = make(8, noise=0.6)
    gain = expected_gain(hard, select_hyperparameters(hard))
    assert gain is not None
    assert 0 <= gain[1] < 0.5
    for few in (make(1), make(3)):
        assert expected_gain(few, select_hyperparameters(few)) is None


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


def test_the_curve_ends_where_the_gain_says() -> None:
    experts = make(8, noise=0.6)
    numbers = select_hyperparameters(experts)
    points = learning_curve(experts, numbers)
    assert [point.shots for point in points] == [2, 4, 8, 16, 32]
    assert [point.expected for point in points] == [False, False, False, True, True]
    shots, gain = expected_gain(experts, numbers) or (0, 0.0)
    assert shots == points[3].shots
    assert points[3].accuracy - points[2].accuracy == pytest.approx(gain)
    assert [point.shots for point in learning_curve(make(4), select_hyperparameters(make(4)))] == [2, 4, 8, 16]
    assert learning_curve(make(3), select_hyperparameters(make(3))) == []


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
    assert expected_gain(experts, select_hyperparameters(experts)) is None
    assert learning_curve(experts, select_hyperparameters(experts)) == []
