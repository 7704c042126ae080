from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dca.methods.shared import transduction
from dca.methods.shared.transduction import (
    LABELLED_WEIGHTS,
    Labelled,
    TransductionOptions,
    transduce,
    transduce_with_best_weight,
)
from oracles.transduction import transduce as literally

C, D = 3, 6


def clusters(per_class: int, spread: float = 0.4, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Unit features (N, D) about three centres, and their classes (N,)."""
    generator = torch.Generator().manual_seed(seed)
    centres = F.normalize(torch.randn(C, D, generator=torch.Generator().manual_seed(7)).double(), dim=-1)
    labels = torch.arange(C).repeat_interleave(per_class)
    noise = torch.randn(len(labels), D, generator=generator).double()
    return F.normalize(centres[labels] + spread * noise, dim=-1), labels


def weak_predictions(labels: Tensor, seed: int = 2) -> Tensor:
    """Predictions (N, C) that are right more often than not."""
    logits = torch.randn(len(labels), C, generator=torch.Generator().manual_seed(seed)).double()
    return (logits + 1.2 * F.one_hot(labels, C)).softmax(dim=-1)


@pytest.mark.parametrize("shots", [0, 2])
def test_equals_the_equations_written_out(shots: int) -> None:
    features, labels = clusters(5)
    predictions = weak_predictions(labels)
    shown = Labelled(*clusters(shots, seed=3)) if shots else None
    options = TransductionOptions(labelled_weight=0.2, scale=4.0, rounds=3, inner_rounds=2)
    found = transduce(features, predictions, shown, options)
    z, means, variances = literally(
        features.tolist(), predictions.tolist(),
        [] if shown is None else shown.features.tolist(), [] if shown is None else shown.labels.tolist(),
        power=0.5 if shots else 1.0, gamma=0.2, scale=4.0, rounds=3, inner_rounds=2,
    )  # fmt: skip
    for mine, theirs in ((found.predictions, z), (found.means, means), (found.variances, variances)):
        torch.testing.assert_close(mine, torch.tensor(theirs, dtype=torch.float64), atol=1e-12, rtol=1e-10)


def test_a_class_without_labelled_images_starts_at_the_most_probable_ones() -> None:
    features, labels = clusters(5)
    predictions = weak_predictions(labels)
    one, y = clusters(1, seed=3)
    found = transduce(features, predictions, Labelled(one[:2], y[:2]), TransductionOptions(rounds=2))
    z, means, _ = literally(
        features.tolist(), predictions.tolist(), one[:2].tolist(), y[:2].tolist(), power=0.5, gamma=0.02, rounds=2
    )
    torch.testing.assert_close(found.predictions, torch.tensor(z, dtype=torch.float64), atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(found.means, torch.tensor(means, dtype=torch.float64), atol=1e-12, rtol=1e-10)


def test_unlabelled_images_correct_weak_predictions() -> None:
    features, labels = clusters(60)
    predictions = weak_predictions(labels)
    before = float((predictions.argmax(dim=-1) == labels).double().mean())
    found = transduce(features, predictions, options=TransductionOptions(scale=2.0))
    after = float((found.predictions.argmax(dim=-1) == labels).double().mean())
    assert after > before + 0.1
    torch.testing.assert_close(found.predictions.sum(dim=-1), torch.ones(len(labels)).double())


def test_the_order_of_images_and_classes_does_not_matter() -> None:
    features, labels = clusters(6)
    predictions = weak_predictions(labels)
    shown = Labelled(*clusters(2, seed=3))
    found = transduce(features, predictions, shown).predictions
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(transduce(features[order], predictions[order], shown).predictions, found[order])
    classes = torch.tensor([2, 0, 1])
    moved = Labelled(shown.features, classes.argsort()[shown.labels])
    torch.testing.assert_close(transduce(features, predictions[:, classes], moved).predictions, found[:, classes])


def test_later_images_are_classified_by_the_same_gaussians() -> None:
    features, labels = clusters(60)
    found = transduce(
        features, weak_predictions(labels), Labelled(*clusters(4, seed=3)), TransductionOptions(scale=2.0)
    )
    later, truth = clusters(100, seed=9)
    predictions = weak_predictions(truth, seed=10)
    after = found.classify(later, predictions)
    assert (after.argmax(dim=-1) == truth).double().mean() > (predictions.argmax(dim=-1) == truth).double().mean()
    torch.testing.assert_close(after.sum(dim=-1), torch.ones(len(truth)).double())


def test_one_image_and_a_prediction_of_exactly_zero() -> None:
    features, _ = clusters(1)
    certain = torch.tensor([[1.0, 0.0, 0.0]]).double()
    found = transduce(features[:1], certain)
    assert found.predictions.isfinite().all()
    assert found.means.isfinite().all()
    assert int(found.predictions.argmax()) == 0


def test_similarities_are_found_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = clusters(9)
    predictions = weak_predictions(labels)
    whole = transduce(features, predictions).predictions
    monkeypatch.setattr(transduction, "MAX_VALUES", 4 * len(features))
    torch.testing.assert_close(transduce(features, predictions).predictions, whole)


def test_the_weight_of_labelled_images_is_the_best_on_validation_images() -> None:
    features, labels = clusters(30)
    predictions, shown = weak_predictions(labels), Labelled(*clusters(2, spread=1.5, seed=3))
    held = Labelled(*clusters(20, seed=12))
    options = TransductionOptions(scale=2.0)
    near = (held.features @ features.T).argmax(dim=-1)
    by_weight = [
        transduce(features, predictions, shown, TransductionOptions(scale=2.0, labelled_weight=weight))
        for weight in LABELLED_WEIGHTS
    ]
    right = [int((one.predictions[near].argmax(dim=-1) == held.labels).sum()) for one in by_weight]
    assert len(set(right)) > 1
    best = by_weight[right.index(max(right))]
    found = transduce_with_best_weight(features, predictions, shown, held, options)
    torch.testing.assert_close(found.predictions, best.predictions)
