"""Answers with a doubt through the classifier: "none of these", sets of labels, and models that cannot tell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset
from dca.model.classifier import Classifier


@pytest.fixture(scope="module")
def clip() -> CLIP:
    return make_clip()


@pytest.fixture(scope="module")
def model(sample: Dataset, clip: CLIP) -> Classifier:
    return Classifier(shots=4, backbone=clip, device="cpu").fit(sample)


def test_images_up_to_the_p_value_are_none_of_these(model: Classifier, sample: Dataset) -> None:
    images = [item.image for item in sample.test]
    p = model.p_values(images)
    limit = float(np.median(p))
    found = model.predict(images, reject=limit)
    assert [label == "none of these" for label in found] == (p <= limit).tolist()
    kept = p > limit
    assert found[kept].tolist() == model.predict(images)[kept].tolist()
    assert model.predict(images[0], reject=0.0) == model.predict(images[0])


def test_answers_hold_what_the_single_functions_return(model: Classifier, sample: Dataset) -> None:
    images = [item.image for item in sample.test[:5]]
    answers = model.predict_details(images, coverage=0.8)
    assert np.allclose(answers.probabilities, model.predict_proba(images))
    assert answers.p_values is not None
    assert np.array_equal(answers.p_values, model.p_values(images))
    assert answers.sets == model.prediction_sets(images, coverage=0.8)
    for labels, best in zip(answers.sets, model.predict(images), strict=True):
        assert labels[0] == best
    assert model.predict_details(images).sets is None


def test_saved_and_loaded_gives_the_same_answers(
    model: Classifier, sample: Dataset, clip: CLIP, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path / "m")
    loaded = Classifier.from_pretrained(tmp_path / "m", backbone=clip, device="cpu")
    images = [item.image for item in sample.test[:5]]
    assert np.array_equal(model.p_values(images), loaded.p_values(images))
    assert model.prediction_sets(images, coverage=0.8) == loaded.prediction_sets(images, coverage=0.8)


def test_other_methods_answer_by_their_held_out_predictions(sample: Dataset, clip: CLIP) -> None:
    images = [item.image for item in sample.test[:5]]
    plain = Classifier("gda", shots=4, views=0, backbone=clip, device="cpu").fit(sample)
    assert plain.predict_details(images).p_values is None
    for call in (plain.p_values, plain.prediction_sets, lambda X: plain.predict(X, reject=0.1)):
        with pytest.raises(UserError, match=r"does not know how it does|cannot tell images of none") as caught:
            call(images)
        assert "estimate" in caught.value.hint
    known = Classifier("gda", shots=4, views=0, backbone=clip, device="cpu", estimate=True).fit(sample)
    held = [image.held_out.probability for image in known.training_images_ if image.held_out]
    top = known.predict_proba(images).max(axis=1)
    most = [(1 + sum(h <= t for h in held)) / (len(held) + 1) for t in top]
    assert all(p <= m and p > m - 1.001 / (len(held) + 1) for p, m in zip(known.p_values(images), most, strict=True))
    assert known.smallest_p_value == 1 / (len(held) + 1)
    assert all(known.prediction_sets(images))


@pytest.mark.parametrize("coverage", [0.0, 1.0, 1.5])
def test_a_coverage_that_is_no_probability_is_refused(model: Classifier, sample: Dataset, coverage: float) -> None:
    with pytest.raises(UserError, match="coverage is"):
        model.prediction_sets(sample.test[0].image, coverage=coverage)


def test_too_few_images_for_a_coverage_are_counted(sample: Dataset, clip: CLIP) -> None:
    known = Classifier("zero_shot", shots=4, backbone=clip, device="cpu").fit(sample)
    with pytest.raises(UserError, match=r"0\.99 needs 99 training images that can be held out; 40 can be"):
        known.prediction_sets(sample.test[0].image, coverage=0.99)
