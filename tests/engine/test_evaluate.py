from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dca.engine.evaluate
from conftest import make_clip
from dca.clip import CLIP
from dca.data.dataset import Dataset
from dca.data.feature_store import FeatureCache
from dca.engine.evaluate import calibration_error, evaluation, probabilities
from dca.methods.interface import Problem
from dca.methods.registry import all_methods, get_method
from dca.model.classifier import Classifier

SHORT = {"epochs": 1, "warmup_epochs": 0, "batch_size": 8}


@pytest.fixture(scope="module", params=["zero_shot", "coop", "linear_probe", "gda", "dca"])
def model(request: pytest.FixtureRequest, sample: Dataset) -> Classifier:
    recipe = SHORT if get_method(request.param).trains_on != "nothing" else {}
    return Classifier(request.param, seed=3, backbone=make_clip(), **recipe).fit(sample)


def test_stored_features_give_the_same_probabilities(model: Classifier, sample: Dataset, tmp_path: Path) -> None:
    pictures = [item.picture for item in sample.test]
    (plain,) = probabilities([model.method_], pictures)
    cache = FeatureCache(tmp_path)
    for _ in range(2):
        (stored,) = probabilities([model.method_], pictures, cache=cache)
        np.testing.assert_allclose(stored, plain, atol=1e-6)


def test_what_is_stored_is_not_encoded_again(
    model: Classifier, sample: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = [item.picture for item in sample.test]
    cache = FeatureCache(tmp_path)
    probabilities([model.method_], pictures[:20], cache=cache)
    seen = []
    stream = dca.engine.evaluate.stream

    def watched(some, *rest, **more):  # type: ignore[no-untyped-def]
        seen.append(len(some))
        return stream(some, *rest, **more)

    monkeypatch.setattr(dca.engine.evaluate, "stream", watched)
    probabilities([model.method_], pictures, cache=cache)
    assert seen == ([len(pictures) - 20] if model.method_.frozen_images else [len(pictures)])


def test_another_backbone_finds_nothing_stored(sample: Dataset, tmp_path: Path) -> None:
    pictures = [item.picture for item in sample.test]
    cache = FeatureCache(tmp_path)
    for seed in (0, 1):
        fitted = Classifier("zero_shot", backbone=make_clip(seed=seed)).fit(sample)
        (stored,) = probabilities([fitted.method_], pictures, cache=cache)
        np.testing.assert_allclose(stored, fitted.predict_proba(pictures), atol=1e-6)
    assert len(cache.spaces()) == 2


def test_methods_that_touch_the_image_tower_are_never_stored(clip: CLIP) -> None:
    problem = Problem(names=("cat", "dog"), shots=1)

    def touches(name: str, **options: Any) -> bool:
        kind = all_methods()[name]
        return not kind.build(clip, problem, kind.Options(**options)).frozen_images

    touching = {"dca", "vpt", "maple", "dapt", "promptsrc", "clip_lora"}
    assert {name for name in all_methods() if touches(name)} == touching
    assert touches("cross_modal", form="partial")


def test_evaluation_by_hand() -> None:
    probs = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]])
    report = evaluation(probs, np.array([0, 1, 1, 0]), ["a", "b"])
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
    assert calibration_error(probs, right) == pytest.approx(total)
