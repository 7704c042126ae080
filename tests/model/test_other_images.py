"""Images of none of the classes: learned from, saved, refitted, and refused where a method cannot use them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset
from dca.datasets.sample import load_sample
from dca.images.decode import StoredImage
from dca.methods.shared.familiarity import Familiarity
from dca.model.classifier import Classifier
from dca.model.refit import LabelledFeatures, Refitter


@pytest.fixture(scope="module")
def clip() -> CLIP:
    return make_clip()


@pytest.fixture(scope="module")
def known() -> Dataset:
    """Three classes of the sample, 8 images each."""
    sample = load_sample(per_class_train=8, per_class_test=2)
    train, test = (tuple(item for item in part if item.label < 3) for part in (sample.train, sample.test))
    return dataclasses.replace(sample, labels=sample.labels[:3], names=sample.names[:3], train=train, test=test)


@pytest.fixture(scope="module")
def other() -> list[Any]:
    """Images of three other classes."""
    return [item.image for item in load_sample(per_class_train=4, per_class_test=0).train if item.label in (5, 6, 7)]


@pytest.fixture(scope="module")
def model(known: Dataset, other: list[Any], clip: CLIP) -> Classifier:
    return Classifier(backbone=clip, device="cpu").fit(known, other=other)


def test_p_values_are_those_of_a_familiarity_that_knows_the_other_images(
    model: Classifier, known: Dataset, other: list[Any], clip: CLIP
) -> None:
    method = model.method_
    features = method.adapt_features(model._encode(other, None))
    assert torch.allclose(method.other_features, features, atol=1e-6)
    expected = Familiarity.from_features(
        method.image_features, method.image_labels, method.image_groups, 3, features
    ).p_values(method.image_features[:5])
    images = [item.image for item in known.train[:5]]
    assert np.allclose(model.p_values(images), expected, atol=1e-4)
    plain = Classifier(backbone=clip, device="cpu").fit(known)
    assert np.array_equal(plain.predict_proba(images), model.predict_proba(images))  # only p-values change
    assert np.median(model.p_values(other)) < np.median(plain.p_values(other))
    assert model.smallest_p_value == plain.smallest_p_value == 1 / 25


def test_other_images_go_with_the_saved_model(model: Classifier, known: Dataset, clip: CLIP, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "m.dca")
    loaded = Classifier.from_pretrained(tmp_path / "m.dca", backbone=clip, device="cpu")
    images = [item.image for item in known.test]
    assert np.array_equal(loaded.p_values(images), model.p_values(images))
    assert len(loaded.other_images_) == 12
    assert loaded.other_images_ == model.other_images_
    raw = json.loads((tmp_path / "m.dca" / "config.json").read_text())
    raw["other_images"][0] = {"name": 3}
    (tmp_path / "m.dca" / "config.json").write_text(json.dumps(raw))
    with pytest.raises(UserError, match="damaged") as caught:
        Classifier.from_pretrained(tmp_path / "m.dca", backbone=clip, device="cpu")
    assert caught.value.details == ("other_images: name and sha256 of each image expected",)


def test_a_refit_without_the_images_keeps_them(model: Classifier, known: Dataset, other: list[Any]) -> None:
    image = known.test[0].image
    assert isinstance(image, Image.Image)
    example = LabelledFeatures(
        StoredImage("ab" * 32, "new.jpg", model.gallery().jpegs[0]),
        str(known.labels[1]),
        model._encode([image], None)[0],
    )
    refitted = Refitter(model).refit([example])
    assert len(refitted.training_images_) == 25
    assert refitted.other_images_ == model.other_images_
    assert torch.allclose(refitted.method_.other_features, model.method_.other_features, atol=1e-6)
    replaced = dataclasses.replace(
        example, image=dataclasses.replace(example.image, sha256=model.other_images_[2].sha256)
    )
    assert len(Refitter(model).refit([replaced]).other_images_) == 11


def test_images_that_become_a_class_are_not_rejected_any_more(model: Classifier, other: list[Any]) -> None:
    more = model.add_class("house", other[:4])
    assert more.other_images_ == model.other_images_[4:]
    assert torch.equal(more.method_.other_features, model.method_.other_features[4:])
    assert len(model.other_images_) == len(model.method_.other_features) == 12
    assert np.min(more.p_values(other[:4])) > np.max(model.p_values(other[:4]))
    fewer = more.remove_class("house")
    assert len(fewer.method_.other_features) == 8
    renamed = model.rename_class(str(model.classes_[0]), "zebra")
    assert torch.equal(renamed.method_.other_features, model.method_.other_features)


def test_a_blend_learns_from_them_through_the_closed_form(
    known: Dataset, other: list[Any], clip: CLIP, model: Classifier
) -> None:
    blend = Classifier("blend", trained="gda", trained_options={"views": 0}, backbone=clip, device="cpu")
    blend.fit(known, other=other)
    images = [item.image for item in known.test]
    assert np.allclose(blend.p_values(images), model.p_values(images))
    assert len(blend.add_class("house", other[:4]).other_images_) == 8


def test_methods_that_cannot_use_them_say_which_can(known: Dataset, other: list[Any], clip: CLIP) -> None:
    with pytest.raises(UserError, match="gda cannot learn from images of none of the classes") as caught:
        Classifier("gda", views=0, backbone=clip, device="cpu").fit(known, other=other)
    assert caught.value.hint == "leave out other, or use a method that can: blend, closed_form"


def test_training_images_are_no_other_images(known: Dataset, clip: CLIP) -> None:
    with pytest.raises(UserError, match="images both of a class and of none of the classes") as caught:
        Classifier(backbone=clip, device="cpu").fit(known, other=[known.train[0].image])
    assert len(caught.value.details) == 1
