from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.datasets.dataset import Dataset
from dca.features.store import FeatureStore
from dca.methods.base import Problem
from dca.methods.registry import all_methods, get_method
from dca.model.classifier import Classifier
from dca.stats.calibration import calibration_error
from dca.training.evaluate import evaluate_predictions, predict_probabilities
from dca.training.session import Session

SHORT = {"epochs": 1, "warmup_epochs": 0, "batch_size": 8}


@pytest.fixture(scope="module", params=["zero_shot", "coop", "linear_probe", "gda", "dca"])
def model(request: pytest.FixtureRequest, sample: Dataset) -> Classifier:
    recipe = SHORT if get_method(request.param).trains_on != "nothing" else {}
    return Classifier(request.param, seed=3, backbone=make_clip(), **recipe).fit(sample)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(device="cpu", store=FeatureStore(tmp_path / "store"))


def test_stored_features_give_the_same_probabilities(model: Classifier, sample: Dataset, session: Session) -> None:
    images = [item.image for item in sample.test]
    (plain,) = predict_probabilities([model.method_], images, session, stored=False)
    for _ in range(2):
        (stored,) = predict_probabilities([model.method_], images, session)
        np.testing.assert_allclose(stored, plain, atol=1e-6)


def test_what_is_stored_is_not_encoded_again(
    model: Classifier, sample: Dataset, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [item.image for item in sample.test]
    predict_probabilities([model.method_], images[:20], session)
    seen = []
    encode = CLIP.encode_image

    def watched(clip: CLIP, pixels: Any, **more: Any) -> Any:
        seen.append(len(pixels))
        return encode(clip, pixels, **more)

    monkeypatch.setattr(CLIP, "encode_image", watched)
    predict_probabilities([model.method_], images, session)
    assert sum(seen) == (len(images) - 20 if model.method_.has_frozen_image_tower else len(images))


def test_another_backbone_finds_nothing_stored(sample: Dataset, session: Session) -> None:
    images = [item.image for item in sample.test]
    for seed in (0, 1):
        fitted = Classifier("zero_shot", backbone=make_clip(seed=seed)).fit(sample)
        (stored,) = predict_probabilities([fitted.method_], images, session)
        np.testing.assert_allclose(stored, fitted.predict_proba(images), atol=1e-6)
    assert len(session.store.list_spaces()) == 2


def test_rows_sum_to_one_in_float64(model: Classifier, sample: Dataset) -> None:
    """Softmaxes are float32; scikit-learn's log-loss warns about sums that differ by more than float64 rounding."""
    rows = model.predict_proba([item.image for item in sample.test])
    assert rows.dtype == np.float64
    assert np.abs(rows.sum(axis=1) - 1).max() < 1e-15 * rows.shape[1]
    metrics = pytest.importorskip("sklearn.metrics")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics.log_loss([item.label for item in sample.test], rows, labels=range(rows.shape[1]))


def test_methods_that_touch_the_image_tower_are_never_stored(clip: CLIP) -> None:
    problem = Problem(names=("cat", "dog"), shots=1)

    def touches(name: str, **options: Any) -> bool:
        kind = all_methods()[name]
        return not kind.build(clip, problem, kind.Options(**options)).has_frozen_image_tower

    trained = {"dca", "gallop", "vpt", "maple", "dapt", "prolip", "promptsrc", "clip_lora", "clip_svd", "two_sfs"}
    touching = {"blend", *trained}
    assert {name for name in all_methods() if touches(name)} == touching
    assert touches("cross_modal", form="partial")


def test_evaluation_by_hand() -> None:
    probs = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]])
    report = evaluate_predictions(probs, np.array([0, 1, 1, 0]), ["a", "b"])
    assert (report.accuracy, report.n, report.per_class) == (0.75, 4, {"a": 1.0, "b": 0.5})
    # Four bins of one image each: gaps 0.1, 0.6, 0.2, 0.3.
    assert report.ece == pytest.approx((0.1 + 0.6 + 0.2 + 0.3) / 4)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(2, 6), st.integers(0, 10**6))
def test_calibration_error_equals_a_literal_loop(n: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(classes), n)
    right = rng.random(n) < 0.5
    total = 0.0
    for b in range(15):
        inside = [i for i in range(n) if min(int(probs[i].max() * 15), 14) == b]
        if inside:
            accuracy = sum(bool(right[i]) for i in inside) / len(inside)
            confidence = sum(float(probs[i].max()) for i in inside) / len(inside)
            total += len(inside) / n * abs(accuracy - confidence)
    assert calibration_error(probs.max(axis=1), right) == pytest.approx(total)
