"""What a fit says about its training images."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn import functional as F

from dca.methods.shared.experts import TextGaussian
from dca.methods.shared.product_of_experts import Experts, FixedHyperparameters, held_out_logits, select_hyperparameters
from dca.model.copies import SharedImages
from dca.model.findings import (
    ClassRecall,
    ConfusedPair,
    Findings,
    confused_pairs,
    doubtful_labels,
    missing_classes,
    rare_classes,
    recall_by_class,
    score_held_out,
    weak_classes,
)
from dca.model.records import HeldOutPrediction, TrainingImage

LABELS = ["cat", "dog", 7]
ALONE = TrainingImage(0, "alone.jpg", "")


def row(label: int, predicted: int, probability: float, own: float) -> TrainingImage:
    return TrainingImage(label, f"{label}/{predicted}.jpg", "", HeldOutPrediction(predicted, probability, own))


def test_labels_much_less_probable_than_another_are_doubtful_the_worst_first() -> None:
    images = [
        row(0, 1, 0.9, 0.05),
        row(1, 1, 0.9, 0.9),
        row(2, 0, 0.8, 0.01),
        row(0, 1, 0.5, 0.4),
        TrainingImage(0, "alone.jpg", ""),
    ]
    found = doubtful_labels(images, LABELS)
    assert [(r.index, r.image, r.label, r.suggested) for r in found] == [
        (2, "2/0.jpg", "7", "cat"),
        (0, "0/1.jpg", "cat", "dog"),
    ]
    assert found[0].probability == pytest.approx(0.8)
    assert len(doubtful_labels(images, LABELS, odds=1.2)) == 3


@pytest.mark.parametrize(("classes", "noise", "most"), [(150, 0.45, 0.02), (10, 0.45, 0.0)])
def test_few_labels_are_doubtful_where_none_is_wrong(classes: int, noise: float, most: float) -> None:
    """Six images of each class, some of which are not recognised: hardly one is worth a look."""
    rng = torch.Generator().manual_seed(5)
    centers = F.normalize(torch.randn(classes, 48, dtype=torch.float64, generator=rng), dim=-1)
    y = torch.arange(classes).repeat_interleave(6)
    x = F.normalize(centers[y] + noise / 2 * torch.randn(len(y), 48, dtype=torch.float64, generator=rng), dim=-1)
    gaussian = TextGaussian.from_features(x, y, F.normalize(torch.randn(centers.shape, generator=rng), dim=-1))
    experts = Experts(gaussian, 10.0, None, FixedHyperparameters())
    held = held_out_logits(experts, select_hyperparameters(experts)).softmax(dim=-1)
    best, predicted = held.max(dim=-1)
    images = [row(int(y[i]), int(predicted[i]), float(best[i]), float(held[i, y[i]])) for i in range(len(y))]
    names = [str(c) for c in range(classes)]
    mistakes = int((predicted != y).sum())
    usual = len(doubtful_labels(images, names))
    assert mistakes > 1
    assert usual <= most * len(y)
    if classes > 100:  # of many classes, one is ten times as probable by chance
        assert len(doubtful_labels(images, names, odds=10.0)) > 3 * usual


def test_pairs_that_are_confused_more_than_once_are_named_in_both_directions() -> None:
    images = [
        row(0, 1, 0.9, 0.05),
        row(1, 0, 0.9, 0.05),
        row(2, 0, 0.8, 0.1),
        row(0, 0, 1.0, 1.0),
        TrainingImage(0, "alone.jpg", ""),
    ]
    assert confused_pairs(images, LABELS) == (ConfusedPair(("cat", "dog"), 2),)


def test_recall_counts_held_out_images_of_each_class() -> None:
    images = [row(0, 0, 0.9, 0.9), row(0, 1, 0.9, 0.1), TrainingImage(0, "copy.jpg", ""), row(1, 1, 0.8, 0.8)]
    found = recall_by_class([*images, TrainingImage(2, "alone.jpg", "")], LABELS)
    assert found == (ClassRecall("cat", 1, 2, 3), ClassRecall("dog", 1, 1, 1), ClassRecall("7", 0, 0, 1))
    assert list(map(str, found)) == ["cat 1 of 2", "dog 1 of 1", "7 (1 photo: cannot be measured)"]
    assert missing_classes(found) == {2: "1 photo: cannot be measured"}
    assert ClassRecall("x", 0, 0, 3).missing == "3 photos, copies or a series of one: cannot be measured"
    assert recall_by_class([TrainingImage(0, "alone.jpg", "")], LABELS) == ()


def test_rare_classes_have_a_quarter_of_the_largest() -> None:
    recall = [ClassRecall(*each) for each in (("a", 9, 16, 16), ("b", 1, 4, 4), ("c", 5, 5, 5), ("d", 0, 2, 2))]
    assert [one.label for one in rare_classes(recall)] == ["d", "b"], "the smallest first; c is above a quarter"
    assert rare_classes([ClassRecall("a", 1, 3, 3), ClassRecall("b", 0, 1, 1)]) == ()
    assert [str(one) for one in rare_classes([ClassRecall("a", 3, 4, 4), ClassRecall("b", 0, 0, 1)])] == [
        "b (1 photo: cannot be measured)"
    ]
    assert rare_classes([]) == ()


def test_weak_classes_are_far_below_the_median_and_not_by_chance() -> None:
    usual = [ClassRecall(str(n), 15, 16, 16) for n in range(4)]
    for right, n, weak in ((0, 16, True), (7, 16, True), (9, 16, False), (0, 1, True), (0, 0, False)):
        found = weak_classes([*usual, ClassRecall("x", right, n, 16)])
        assert [one.label for one in found] == (["x"] if weak else []), (right, n)
    poor = [ClassRecall(str(n), 8, 16, 16) for n in range(4)]
    assert weak_classes([*poor, ClassRecall("x", 0, 2, 2)]) == (), "0 of 2 says little where others have a half"
    worst = [ClassRecall("x", 2, 16, 16), ClassRecall("y", 0, 16, 16)]
    assert [one.label for one in weak_classes([*usual, *worst])] == ["y", "x"]
    assert weak_classes([]) == ()


def test_findings_come_back_from_their_record_and_older_ones_know_less() -> None:
    shared = SharedImages(("cat", "dog"), 2, (("a", "b"),))
    scores = score_held_out([row(0, 0, 0.9, 0.9), row(0, 1, 0.9, 0.1), row(1, 1, 0.8, 0.8)], LABELS, (0.5, 1.0, None))
    recall = (ClassRecall("cat", 1, 2, 3),)
    found = Findings((), (ConfusedPair(("cat", "dog"), 2),), None, ("note",), recall, (shared,), scores)
    values = found.to_dict()
    assert Findings.from_dict(json.loads(json.dumps(values))) == found
    assert values["scores"]["dog"] == {"precision": 0.5, "recall": 1.0, "f1": 2 / 3, "roc_auc": 1.0, "images": 1}
    assert values["mean_scores"] == {"precision": 0.75, "recall": 0.75, "f1": 2 / 3, "roc_auc": 0.75}
    del values["recall"], values["scores"], values["mean_scores"], values["shared_images"]
    assert Findings.from_dict(values).recall == ()
    assert Findings.from_dict(values).scores == {}
