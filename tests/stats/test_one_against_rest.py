"""Scores of a class against the others by counting, and as scikit-learn has them."""

from __future__ import annotations

import numpy as np
import pytest

from dca.stats.one_against_rest import area_under_roc, areas_under_roc, mean_scores, score_classes


def drawn(seed: int, n: int = 60, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes - 1, n)  # the last class has no image
    probabilities = rng.dirichlet(np.ones(classes), n) + 0.3 * np.eye(classes)[truth]
    probabilities = np.round(probabilities / probabilities.sum(axis=1, keepdims=True), 1)  # with ties
    return truth, probabilities


def literal_auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Every pair by itself."""
    pairs = [(a > b) + (a == b) / 2 for a in scores[positive] for b in scores[~positive]]
    return float(np.mean(pairs))


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_counting(seed: int) -> None:
    truth, probabilities = drawn(seed)
    predicted = probabilities.argmax(axis=1)
    found = score_classes(truth, predicted, 5, areas_under_roc(probabilities, truth))
    for c, one in enumerate(found[:-1]):
        tp = sum(t == p == c for t, p in zip(truth, predicted, strict=True))
        fp, fn = sum(predicted == c) - tp, sum(truth == c) - tp
        assert one.recall == pytest.approx(tp / (tp + fn))
        assert one.precision == pytest.approx(tp / (tp + fp) if tp + fp else 0)
        assert one.f1 == pytest.approx(2 * tp / (2 * tp + fp + fn))
        assert one.roc_auc == pytest.approx(literal_auc(probabilities[:, c], truth == c))
        assert one.images == sum(truth == c)
    assert (found[-1].recall, found[-1].roc_auc, found[-1].images) == (None, None, 0)


@pytest.mark.parametrize("seed", range(5))
def test_means_are_those_of_scikit_learn(seed: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    truth, probabilities = drawn(seed)
    predicted = probabilities.argmax(axis=1)
    found = mean_scores(score_classes(truth, predicted, 5, areas_under_roc(probabilities, truth)))
    expected = metrics.precision_recall_fscore_support(
        truth, predicted, labels=range(4), average="macro", zero_division=0
    )
    assert (found.precision, found.recall, found.f1) == pytest.approx(expected[:3])
    areas = [metrics.roc_auc_score(truth == c, probabilities[:, c]) for c in range(4)]
    assert found.roc_auc == pytest.approx(np.mean(areas))


def test_a_class_that_is_never_predicted_has_no_precision_but_counts() -> None:
    found = score_classes(np.array([0, 0, 1]), np.array([0, 0, 0]), 3)
    assert [one.precision for one in found] == [pytest.approx(2 / 3), 0.0, None]
    assert [one.f1 for one in found] == [pytest.approx(0.8), 0.0, None]
    assert mean_scores(found).precision == pytest.approx(1 / 3)
    assert mean_scores(found).roc_auc is None


def test_an_area_needs_images_of_both_kinds() -> None:
    assert area_under_roc(np.array([0.1, 0.2]), np.array([True, True])) is None
    assert area_under_roc(np.array([0.2, 0.2]), np.array([True, False])) == 0.5
