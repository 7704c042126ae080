"""Learning on real pictures and real weights: minutes, not seconds. Run with `make test-slow`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import shared
from dca.data import load_dataset
from dca.engine.evaluate import evaluation, probabilities
from dca.experiment.run import Spec, compare, run
from dca.model.classifier import Classifier

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def all_cores() -> None:
    torch.set_num_threads(2)


def test_dca_learns_eurosat_from_16_images_a_class() -> None:
    """At least 45 points above zero-shot; the Mahalanobis head with the text centre not below the Euclidean one."""
    dataset = load_dataset(shared("data", "images", "eurosat"))
    model = Classifier("dca", shots=16, seed=1, backbone=shared("data", "clip_proto"), device="cpu").fit(dataset)
    zero, adapted = compare(model, dataset, lambda *_: None)
    assert zero is not None
    assert adapted is not None
    method = model.method_
    method.options = method.options.__class__(**{**vars(method.options), "test_metric": "euclidean"})
    pictures = [item.picture for item in dataset.test]
    labels = np.array([item.label for item in dataset.test])
    euclidean = evaluation(probabilities([method], pictures)[0], labels, dataset.classes)
    assert adapted.accuracy >= zero.accuracy + 0.45
    assert adapted.accuracy >= euclidean.accuracy


def test_the_demonstration_shows_dca_clearly_ahead(tmp_path: Path) -> None:
    from dca.demo import demo

    outcome = demo(tmp_path / "demo", device="cpu")
    assert outcome.result["accuracy"] >= outcome.result["zero_shot_accuracy"] + 0.15
    for name in ("comparison.png", "predictions.png", "training.png", "metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "demo" / name).stat().st_size > 0


def test_a_real_folder_learns_through_run(tmp_path: Path) -> None:
    spec = Spec(data=str(shared("data", "images", "eurosat")), shots=4, backbone="mini", options={"epochs": 20})
    result = run(spec, tmp_path / "eurosat.dca", device="cpu").result
    assert result["accuracy"] > result["zero_shot_accuracy"]
