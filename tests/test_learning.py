"""Learning on real images and real weights: minutes, not seconds. Run with `make test-slow`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import shared
from dca.datasets import load_dataset
from dca.runs.run import run
from dca.runs.spec import FitSpec
from dca.training.evaluate import evaluate_predictions, predict_probabilities
from dca.training.session import Session

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def all_cores() -> None:
    torch.set_num_threads(2)


def test_dca_learns_eurosat_from_16_images_per_class(tmp_path: Path) -> None:
    """At least 40 points above zero-shot; the Mahalanobis head with the text centre not below the Euclidean one."""
    dataset = load_dataset(shared("data", "images", "eurosat"))
    # An eighth of the test images and a fifth of the published epochs: enough to tell learning from failing.
    dataset = dataclasses.replace(dataset, test=dataset.test[::8])
    spec = FitSpec(data="eurosat", method="dca", shots=16, options={"epochs": 40})
    outcome = run(spec, tmp_path / "m.dca", dataset=dataset, device="cpu")
    assert outcome.classifier is not None
    (target,) = outcome.evaluations
    method = outcome.classifier.method_
    method.options = dataclasses.replace(method.options, test_metric="euclidean")
    images, truth = [item.image for item in dataset.test], np.array([item.label for item in dataset.test])
    (probs,) = predict_probabilities([method.build_head()], images, Session(device="cpu"))
    assert target.adapted.accuracy >= target.zero_shot.accuracy + 0.40
    assert target.adapted.accuracy >= evaluate_predictions(probs, truth, dataset.labels).accuracy


def test_the_demonstration_shows_dca_clearly_ahead(tmp_path: Path) -> None:
    from dca.runs.demo import run_demo

    outcome = run_demo(tmp_path / "demo", device="cpu")
    assert outcome.result.accuracy >= outcome.result.zero_shot_accuracy + 0.15
    zero_shot, default, _ = outcome.result.comparison
    assert default.accuracy >= zero_shot.accuracy + 0.15
    for name in ("comparison.png", "predictions.png", "training.png", "metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "demo" / name).stat().st_size > 0


def test_a_real_folder_learns_through_run(tmp_path: Path) -> None:
    spec = FitSpec(
        data=str(shared("data", "images", "eurosat")), method="dca", shots=4, backbone="mini", options={"epochs": 20}
    )
    result = run(spec, tmp_path / "eurosat.dca", device="cpu").result
    assert result.accuracy > result.zero_shot_accuracy
