"""Estimated accuracy, temperature and held-out rows of a classifier."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dca.backbones.clip import CLIP
from dca.datasets.dataset import Dataset
from dca.methods.base import HeldOutPredictions
from dca.model.card import model_card
from dca.model.classifier import Classifier
from dca.model.estimate import estimate_accuracy, list_predictions
from dca.model.findings import score_held_out
from dca.model.records import Estimate, HeldOutPrediction
from dca.stats.calibration import log_loss
from dca.stats.folds import fold_shortage
from dca.stats.intervals import held_out_macro_interval
from dca.stats.learning_curve import expect_with_all
from dca.training.session import Session

HELD = HeldOutPredictions(np.array([[0.9, 0.1], [0.2, 0.8], [np.nan, np.nan], [0.4, 0.6]]), "leave-one-out")
LABELS = np.array([0, 0, 1, 1])


def test_an_estimate_is_the_macro_accuracy_of_known_rows_with_its_interval():
    zero_shot = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.9, 0.1]])
    found = estimate_accuracy(HELD, LABELS, zero_shot)
    assert (found.accuracy, found.n, found.how) == (0.75, 3, "leave-one-out")
    assert found.zero_shot_accuracy == 0.5, "over the same images"
    assert (found.held_out_accuracy, found.unmeasured) == (None, 0)
    assert (found.low, found.high) == held_out_macro_interval(0.75, [True, False, True], [0, 0, 1])
    assert Estimate.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_images_that_the_models_lack_raise_the_estimate_above_zero_shot():
    held = HeldOutPredictions(HELD.probabilities, "2-fold cross-validation", np.full(4, 0.5))
    found = estimate_accuracy(held, LABELS, None)
    assert found.held_out_accuracy == 0.75
    assert found.accuracy == expect_with_all(0.75, 0.0, 2, 0.5) > 0.75
    assert "75.0 % by models with fewer images" in str(found)
    as_good = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.1, 0.9]])
    assert estimate_accuracy(held, LABELS, as_good).accuracy == 0.75, "images add nothing to zero-shot CLIP"


def test_copies_of_an_image_count_as_one() -> None:
    zero_shot = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.9, 0.1]])
    copied = np.array([0, 1, 1, 1, 2, 3, 3])
    held = HeldOutPredictions(HELD.probabilities[copied], HELD.how)
    alone = estimate_accuracy(HELD, LABELS, zero_shot)
    assert estimate_accuracy(held, LABELS[copied], zero_shot[copied], copied) == alone
    assert alone.n == 3
    halves = np.array([[True, False, True, False], [False, True, False, True]])
    assert fold_shortage(LABELS, np.arange(4), halves).tolist() == [0.5] * 4
    assert fold_shortage(LABELS[copied], copied, halves[:, copied]).tolist() == [0.5] * 7


def test_what_counts_is_what_models_lack_of_the_classes_of_mistaken_images() -> None:
    """Of 8 and 2 images one of the two is mistaken: models of the other one say little of the model of both."""
    labels = np.repeat([0, 1], [8, 2])
    probabilities = np.full((10, 2), 0.1)
    probabilities[np.arange(10), labels] = 0.9
    probabilities[9] = [0.9, 0.1]
    shortage = np.where(labels == 0, 1 / 6 - 1 / 8, 1 - 1 / 2)
    found = estimate_accuracy(HeldOutPredictions(probabilities, "4-fold cross-validation", shortage), labels, None)
    assert found.accuracy == expect_with_all(0.75, 0.0, 2, 0.5)


def test_a_class_that_cannot_be_measured_widens_the_interval_and_is_named():
    held = HeldOutPredictions(np.array([[0.9, 0.1], [0.9, 0.1], [np.nan, np.nan]]), "leave-one-out")
    found, alone = (estimate_accuracy(held, np.array(labels), None) for labels in ([0, 0, 1], [0, 0, 0]))
    assert (found.unmeasured, alone.unmeasured) == (1, 0)
    assert (found.low, found.high) == (alone.low / 2, alone.high / 2 + 0.5)
    assert "1 class has one photo" in found.caveats()[0]
    assert "hardly tell" in found.caveats()[1]
    assert Estimate("leave-one-out", 0.9, 0.85, 0.95, 200).caveats() == []


def test_an_estimate_is_said_in_one_line():
    said = str(Estimate("leave-one-out", 0.812, 0.741, 0.867, 160, 0.38))
    assert said == "81.2 % (95 % interval 74.1 to 86.7; leave-one-out on 160 training images; zero-shot CLIP 38.0 %)"
    assert "zero-shot" not in str(Estimate("leave-one-out", 0.812, 0.741, 0.867, 160))


def test_rows_say_what_is_predicted_and_what_is_thought_of_the_own_class():
    rows = list_predictions(HELD.probabilities, LABELS, HELD.known)
    assert rows[1] == HeldOutPrediction(1, pytest.approx(0.8), pytest.approx(0.2))  # type: ignore[arg-type]
    assert rows[2] is None


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(device="cpu")


def fitted(sample: Dataset, clip: CLIP, session: Session, name: str = "gda", **more: Any) -> Classifier:
    options = {"gda": {"views": 0}}.get(name, {})
    return Classifier(name, shots=3, backbone=clip, **options, **more).fit(sample, session=session)


def test_nothing_is_estimated_unless_asked_for_or_for_free(sample: Dataset, clip: CLIP, session: Session):
    plain = fitted(sample, clip, session)
    assert plain.estimate_ is None
    assert plain.method_.temperature == 1.0
    assert not any(image.held_out for image in plain.training_images_)
    assert plain._to_record().estimate is None
    free = fitted(sample, clip, session, "zero_shot")
    assert free.estimate_ is not None
    assert free.estimate_.how == "zero-shot predictions"
    assert free.estimate_.zero_shot_accuracy is None


def test_a_temperature_changes_no_prediction_and_lowers_the_held_out_log_loss(
    sample: Dataset, clip: CLIP, session: Session
):
    raw = fitted(sample, clip, session, estimate=True, calibrate=False)
    model = fitted(sample, clip, session, estimate=True)
    assert raw.method_.temperature == 1.0
    assert model.method_.temperature != 1.0
    assert model.estimate_ == raw.estimate_
    images = [item.image for item in sample.test]
    ours, theirs = model.predict_proba(images), raw.predict_proba(images)
    assert (ours.argmax(1) == theirs.argmax(1)).all()
    assert np.abs(ours - theirs).max() > 1e-3
    assert model.evaluate(sample).accuracy == raw.evaluate(sample).accuracy
    own = [np.array([[image.held_out.own] for image in m.training_images_ if image.held_out]) for m in (model, raw)]
    losses = [log_loss(p, np.zeros(len(p), dtype=int)) for p in own]
    assert losses[0] < losses[1]


def test_a_saved_model_keeps_temperature_estimate_and_held_out_rows(
    sample: Dataset, clip: CLIP, session: Session, tmp_path: Path
):
    model = fitted(sample, clip, session, estimate=True)
    model.save_pretrained(tmp_path / "m.dca")
    loaded = Classifier.from_pretrained(tmp_path / "m.dca", backbone=clip)
    images = [item.image for item in sample.test]
    assert loaded.predict_proba(images).tobytes() == model.predict_proba(images).tobytes()
    assert loaded.method_.temperature == model.method_.temperature
    assert loaded.estimate_ == model.estimate_
    assert loaded.training_images_ == model.training_images_
    assert loaded.get_params()["estimate"] is True
    assert model.estimate_ is not None
    line = f"Estimated accuracy on new images, mean over classes: {model.estimate_}."
    assert f"\n{line}\n" in (tmp_path / "m.dca" / "README.md").read_text()
    model.estimate_ = dataclasses.replace(model.estimate_, low=0.1, high=0.9)
    card = model_card(model._to_record())
    assert f"mean over classes: {model.estimate_}. {model.estimate_.caveats()[0]}\n" in card


def test_one_image_per_class_gives_no_estimate_and_says_why(
    sample: Dataset, clip: CLIP, session: Session, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    model = Classifier("gda", shots=1, backbone=clip, views=0, estimate=True).fit(sample, session=session)
    assert model.estimate_ is None
    assert model.predict(sample.test[0].image) in model.classes_
    (said,) = caplog.messages
    assert said.startswith("the accuracy is not estimated: nothing can be held out: every class has one training image")


def literal_auc(held: np.ndarray, truth: list[int], c: int, T: float) -> float | None:
    """Every pair of an image of class c and another one by itself, with calibrated probabilities."""
    shares = [[p ** (1 / T) for p in row] for row in held.tolist()]
    scores = [row[c] / sum(row) for row in shares]
    known = [n for n in range(len(truth)) if not np.isnan(held[n]).any()]
    pairs = [(a, b) for a in known if truth[a] == c for b in known if truth[b] != c]
    if not pairs:
        return None
    return sum(1.0 if scores[a] > scores[b] else 0.5 if scores[a] == scores[b] else 0.0 for a, b in pairs) / len(pairs)


def test_the_area_under_the_curve_is_that_of_all_pairs_of_held_out_images(
    sample: Dataset, clip: CLIP, session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    truth = [c for c in range(10) for _ in range(3)]
    held = 0.8 * np.random.default_rng(4).dirichlet(np.ones(10), 30) + 0.2 * np.eye(10)[truth]
    held[1] = held[12:15] = np.nan  # one image, and a whole class, that cannot be left out
    held[2] = held[3]  # equal probabilities
    monkeypatch.setattr(
        "dca.model.estimate.predict_held_out", lambda *_: HeldOutPredictions(held, "3-fold cross-validation")
    )
    model = fitted(sample, clip, session, estimate=True)
    assert model.method_.temperature != 1.0
    expected = [literal_auc(held, truth, c, model.method_.temperature) for c in range(10)]
    assert expected[4] is None
    assert model.held_out_auc_ == pytest.approx(tuple(expected))
    scores = score_held_out(model.training_images_, model.classes_, model.held_out_auc_)
    assert [one.roc_auc for one in scores.values()] == list(model.held_out_auc_)
    assert [one.images for one in scores.values()] == [2, 3, 3, 3, 0, *[3] * 5]
    model.save_pretrained(tmp_path / "m.dca")
    assert Classifier.from_pretrained(tmp_path / "m.dca", backbone=clip).held_out_auc_ == model.held_out_auc_


def test_a_fit_without_held_out_predictions_knows_no_area(sample: Dataset, clip: CLIP, session: Session):
    model = fitted(sample, clip, session)
    assert model.held_out_auc_ == ()
    assert score_held_out(model.training_images_, model.classes_, model.held_out_auc_) == {}


def test_a_method_that_calibrates_itself_gets_no_temperature(
    sample: Dataset, clip: CLIP, session: Session, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("dca.methods.gda.GDA.calibrated", True)
    model = fitted(sample, clip, session, estimate=True)
    assert model.estimate_ is not None
    assert model.method_.temperature == 1.0
