"""The closed form: head and choice against literal twins, and what it does in the corners."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import astuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset, LabelledImage
from dca.methods.closed_form import ClosedForm
from dca.methods.shared import experts as shared_experts
from dca.methods.shared import product_of_experts
from dca.methods.shared.experts import KernelRidge, TextGaussian
from dca.methods.shared.product_of_experts import (
    Experts,
    ExpertsHead,
    FixedHyperparameters,
    Hyperparameters,
    class_weights,
    held_out_logits,
    select_hyperparameters,
    text_gain,
)
from dca.model.classifier import Classifier
from dca.training.session import Session
from dca.training.support import ImageSupport
from methods.test_experts import literal_noise
from oracles.variances import literal_variances

C, D, TAU = 4, 24, 100.0


def make_experts(
    counts: tuple[int, ...],
    *,
    noise: float = 0.3,
    text_noise: float = 0.3,
    seed: int = 0,
    fixed: FixedHyperparameters | None = None,
) -> Experts:
    """Images scattered about C class centres, and texts about the same centres."""
    rng = torch.Generator().manual_seed(seed)
    centers = F.normalize(torch.randn(len(counts), D, dtype=torch.float64, generator=rng), dim=-1)
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    x = F.normalize(centers[y] + noise * torch.randn(len(y), D, dtype=torch.float64, generator=rng), dim=-1)
    t = F.normalize(centers + text_noise * torch.randn(len(counts), D, dtype=torch.float64, generator=rng), dim=-1)
    gaussian = TextGaussian.from_features(x, y, t)
    kernel = KernelRidge(x, y, len(counts), gaussian.groups, 2.0)
    return Experts(gaussian, TAU, kernel, fixed or FixedHyperparameters())


def literal_loss(experts: Experts, numbers: Hyperparameters) -> float:
    """Smoothed log-loss of the left-out images, each class with the same weight."""
    logits, y = held_out_logits(experts, numbers), experts.labels
    smoothing, classes = 1 / (len(y) + 2), logits.shape[1]
    target = (1 - smoothing) * F.one_hot(y, classes).double() + smoothing / classes
    return float((class_weights(y) * -(target * logits.log_softmax(-1)).sum(-1)).sum())


def test_the_choice_is_the_best_of_the_grid() -> None:
    experts = make_experts((5, 6, 4, 7), noise=0.5)
    numbers = select_hyperparameters(experts)
    best = literal_loss(experts, numbers)
    for k in product_of_experts.TEXT_SHOTS:
        for g in product_of_experts.RIDGES:
            fixed = FixedHyperparameters(text_shots=k, ridge=g, scales=(None, None, 0.0))
            other = select_hyperparameters(Experts(experts.gaussian, TAU, None, fixed))
            assert (other.text_shots, other.ridge, other.kernel) == (k, g, 0.0)
            # Scales of Gaussian and text alone; the kernel can only make it better.
            assert best <= literal_loss(experts, other) + 1e-9
    for change in (0.9, 1.1):
        for place in (2, 3, 4):
            values = list(astuple(numbers))
            values[place] *= change
            assert literal_loss(experts, Hyperparameters(*values)) >= best - 1e-9


def test_given_numbers_are_kept() -> None:
    fixed = FixedHyperparameters(2.0, 3.0, 0.1, (0.5, 0.01, 1.5))
    assert select_hyperparameters(make_experts((5, 5, 5, 5), fixed=fixed)) == Hyperparameters(
        2.0, 3.0, 0.5, 0.01, 1.5, 0.1
    )


def test_text_that_says_nothing_gets_no_weight() -> None:
    useless = select_hyperparameters(make_experts((8,) * C, noise=0.4, text_noise=100.0, seed=3))
    helpful = select_hyperparameters(make_experts((8,) * C, noise=1.0, text_noise=0.05, seed=3))
    assert useless.text_shots <= 0.5
    assert useless.text * TAU < 1.0
    assert helpful.text_shots >= 1
    assert helpful.text * TAU > 1.0


def test_with_one_image_per_class_text_decides() -> None:
    experts = make_experts((1,) * C, text_noise=0.1)
    gain, scale = text_gain(experts.zero_shot, experts.labels)
    numbers = select_hyperparameters(experts)
    length = experts.gaussian.whiten(30.0).mean_length(2 * gain)
    assert astuple(numbers)[:5] == pytest.approx((2 * gain, 30.0, 3 * math.log(C) / length**2, scale / 2, 0.0))
    assert 0 < gain <= 1
    assert held_out_logits(experts, numbers).isnan().all()


def test_the_gain_is_the_share_of_the_uncertainty_that_text_removes() -> None:
    logits = torch.log(torch.tensor([[0.7, 0.1, 0.2], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]], dtype=torch.float64))
    labels = torch.tensor([0, 1, 2])
    gain, scale = text_gain(logits, labels)
    p = (scale * logits).softmax(-1)[torch.arange(3), labels]
    assert gain == pytest.approx(1 - float(-p.log().mean()) / math.log(3))
    assert 0.1 < gain < 1
    assert text_gain(torch.zeros(3, 3, dtype=torch.float64), labels)[0] == pytest.approx(0, abs=1e-12)


def test_images_without_a_fellow_are_not_left_out_and_do_not_vote() -> None:
    experts = make_experts((6, 1, 5, 6))
    able = experts.gaussian.peers
    assert able.tolist() == [y != 1 for y in experts.labels.tolist()]
    held = held_out_logits(experts, select_hyperparameters(experts))
    assert torch.equal(held.isnan().any(dim=1), ~able)


def test_copies_of_one_image_are_no_fellows() -> None:
    experts = make_experts((2, 3, 3, 3))
    experts.gaussian.groups[:2] = 0  # before anything is computed
    assert experts.gaussian.peers.tolist() == [False, False, *[True] * 9]


def literal_probabilities(experts: Experts, n: Hyperparameters, f: Tensor) -> Tensor:
    """p(y | f) by the equations of the method, with explicit inverses."""
    x, y, t = experts.gaussian.x, experts.labels, experts.gaussian.text
    means = torch.stack([x[y == c].mean(0) for c in range(len(t))])
    center = means.mean(0)
    r = (means - center).norm(dim=-1).mean() / (t - t.mean(0)).norm(dim=-1).mean()
    moved = center + r * (t - t.mean(0))
    counts = torch.bincount(y)[:, None].double()
    m = (n.text_shots * moved + counts * means) / (n.text_shots + counts)
    S = (x - means[y]).T @ (x - means[y]) / (len(x) - len(t))
    P = torch.linalg.inv(S + n.ridge * literal_variances(x, y))
    noise = literal_noise(experts.gaussian, n.text_shots, n.ridge)
    gaussian = f @ P @ m.T - (m @ P * m).sum(-1) / 2 + noise
    apart = np.mean([1 - float(a @ b) for i, a in enumerate(x) for b in x[:i]])
    K = torch.exp(-2 / apart * (1 - x @ x.T))
    omega = len(x) / (len(t) * counts[y, 0])
    lam = n.kernel_ridge * torch.linalg.eigvalsh(omega.sqrt()[:, None] * K * omega.sqrt()).mean()
    A = torch.linalg.solve(K + lam * torch.diag(1 / omega), F.one_hot(y, len(t)).double())
    kernel = torch.exp(-2 / apart * (1 - f @ x.T)) @ A
    return (n.gaussian * gaussian + n.text * TAU * f @ t.T + n.kernel * kernel).softmax(-1)


def test_the_head_is_the_one_that_is_written_down() -> None:
    experts, n = make_experts((5, 3, 6, 4)), Hyperparameters(1.5, 0.3, 0.2, 0.02, 3.0, 0.1)
    f = F.normalize(torch.randn(9, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), dim=-1)
    W, b = experts.gaussian.whiten(n.ridge).linear(n.text_shots)
    assert experts.kernel is not None
    head = ExpertsHead.from_parameters(
        n.gaussian * W + n.text * TAU * experts.gaussian.text,
        n.gaussian * b,
        experts.kernel,
        n.kernel * experts.kernel.coefficients(n.kernel_ridge),
    )
    assert (head(f.float()).double() - literal_probabilities(experts, n, f)).abs().max() < 1e-5


def test_more_images_than_vote_are_drawn_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    experts = make_experts((8,) * C, noise=0.5)
    monkeypatch.setattr(shared_experts, "MAX_VOTERS", 16)
    assert len(experts.gaussian.voters) == len(set(experts.gaussian.voters.tolist())) == 16
    assert select_hyperparameters(experts) == select_hyperparameters(experts)


GIVEN = {"text_shots": 1.0, "ridge": 3.0, "gaussian_scale": 0.4, "text_scale": 0.02, "kernel_scale": 2.0}


@pytest.fixture(scope="module")
def tiny() -> CLIP:
    return make_clip()


def part(sample: Dataset, classes: list[int]) -> Dataset:
    """The sample with these classes only, in this order."""
    train = tuple(LabelledImage(i.image, classes.index(i.label)) for c in classes for i in sample.train if i.label == c)
    labels, names = [sample.labels[c] for c in classes], tuple(sample.names[c] for c in classes)
    return dataclasses.replace(sample, labels=tuple(labels), names=names, train=train, val=(), test=())


def fitted(data: Dataset, clip: CLIP, **options: float) -> ClosedForm:
    method = Classifier("closed_form", backbone=clip, device="cpu", kernel_ridge=0.3, **options).fit(data).method_
    assert isinstance(method, ClosedForm)
    return method


def same(one: ClosedForm, other: ClosedForm) -> None:
    f = F.normalize(torch.randn(7, 16, generator=torch.Generator().manual_seed(5)), dim=-1)
    assert one.problem.names == other.problem.names
    assert (one.classify(f) - other.classify(f)).abs().max() < 1e-6


def test_a_class_added_is_a_fit_of_all_classes_with_the_same_numbers(sample: Dataset, tiny: CLIP) -> None:
    method = fitted(part(sample, [0, 1, 2, 3, 4]), tiny, **GIVEN)
    more = part(sample, [0, 1, 2, 3, 4, 5])
    images = ImageSupport([i for i in more.train if i.label == 5], Session(device="cpu"), tiny, 1)
    same(method.with_class(sample.names[5], images), fitted(more, tiny, **GIVEN))
    with pytest.raises(UserError, match="needs images of a new class"):
        method.with_class("zebra", ImageSupport([], Session(device="cpu"), tiny, 1))


def test_a_class_removed_or_renamed_is_a_fit_of_the_others_with_the_same_numbers(sample: Dataset, tiny: CLIP) -> None:
    five = part(sample, [0, 1, 2, 3, 4])
    method = fitted(five, tiny, **GIVEN)
    same(method.without_class(2), fitted(part(sample, [0, 1, 3, 4]), tiny, **GIVEN))
    renamed = dataclasses.replace(five, names=(*five.names[:1], "a dog of the house", *five.names[2:]))
    same(method.with_name(1, "a dog of the house"), fitted(renamed, tiny, **GIVEN))


def test_held_out_predictions_are_those_of_a_fit_without_the_image(sample: Dataset, tiny: CLIP) -> None:
    """Through the whole library: unlike in the equations, r, x̄ and λ change, so this is close, not exact."""
    five = part(sample, [0, 1, 2, 3, 4])
    method = fitted(five, tiny, **GIVEN)
    held = method.leave_one_out()
    rest = dataclasses.replace(five, train=five.train[1:])
    again = fitted(rest, tiny, **GIVEN).classify(method.image_features[:1]).double().numpy()
    assert held.how == "leave-one-out"
    assert np.abs(held.probabilities[0] - again[0]).max() < 0.1


def test_damaged_results_are_named(sample: Dataset, tiny: CLIP) -> None:
    method = fitted(part(sample, [0, 1, 2, 3, 4]), tiny, **GIVEN)
    state = method.state_dict()
    for name, wrong in (
        ("image_labels", state["image_labels"] + 3),
        ("hyperparameters", state["hyperparameters"][:, :2]),
    ):
        with pytest.raises(UserError, match="not those of a 'closed_form' model") as caught:
            method.restore({**state, name: wrong})
        assert any(name in line for line in caught.value.details)


def test_copies_and_series_are_noted(sample: Dataset) -> None:
    """With 4 images of each class: none noted; of these, two that are copies; every image with one much like it."""
    fitted = Classifier("closed_form", shots=4, backbone=make_clip(), device="cpu").fit(sample).method_
    assert isinstance(fitted, ClosedForm)
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, fitted.encoder.feature_dim, generator=rng), torch.arange(10).repeat_interleave(4)

    def notes(features: Tensor, groups: Tensor) -> list[str]:
        method = fitted._copy_for_names(fitted.problem.names)
        method.image_features, method.image_groups, method.image_labels = F.normalize(features, dim=-1), groups, y
        return [note for note in method.notes() if "class names" not in note]

    alone = torch.arange(40)
    assert notes(x, alone) == []
    copied = torch.where(alone < 4, 0, alone)  # all images of the first class
    copied[8] = 4  # of another class: no copy of its own
    assert notes(x, copied) == [
        "3 of 40 photos are copies or near-copies of others of their class, which count as one photo."
    ]
    series = x[alone // 2 * 2] + 0.1 * torch.randn(x.shape, generator=rng)
    (said,) = notes(series, alone)
    assert said.startswith("40 of 40 photos are much like another one of their class, as in a series: a series counts")
