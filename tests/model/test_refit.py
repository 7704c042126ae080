"""Refitting from stored features equals fitting on the images; what it cannot do it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dca.core.errors import UserError
from dca.datasets.dataset import Dataset, LabelledImage
from dca.datasets.sample import load_sample
from dca.images.decode import StoredImage, open_image
from dca.images.reading import encode_jpeg
from dca.model.classifier import Classifier
from dca.model.refit import LabelledFeatures, Refitter
from dca.training.session import Session


@pytest.fixture(scope="module")
def drawn() -> Dataset:
    return load_sample(per_class_train=4, per_class_test=2, size=48)


def loaded(drawn: Dataset, tiny: Path | str, folder: Path, method: str, **settings: object) -> Classifier:
    """A model that was saved and read again, so that it has no images."""
    Classifier(method, backbone=str(tiny), device="cpu", **settings).fit(drawn).save_pretrained(folder / "m.dca")
    return Classifier.from_pretrained(folder / "m.dca", device="cpu")


def examples_of(model: Classifier, items: list[tuple[LabelledImage, str]]) -> list[LabelledFeatures]:
    session, encoder = Session(device="cpu"), model.method_.encoder
    images = [item.image for item, _ in items]
    features, hashes = session.frozen_features(encoder, images), session.hash_images(images)
    rows = zip(items, hashes, features, strict=True)
    return [
        LabelledFeatures(StoredImage(sha256, "x", encode_jpeg(open_image(item.image))), label, row)
        for (item, label), sha256, row in rows
    ]


@pytest.mark.parametrize("method", ["closed_form", "linear_probe", "sim", "zero_shot"])
def test_a_refit_equals_a_fit_on_the_images(method: str, drawn: Dataset, tiny_folder: Path, tmp_path: Path):
    model = loaded(drawn, tiny_folder, tmp_path, method)
    names = list(drawn.names)
    extra = [(drawn.test[0], names[3]), (drawn.test[5], names[drawn.test[5].label]), (drawn.test[9], "narwhal")]
    refitted = Refitter(model).refit(examples_of(model, extra))
    more = [LabelledImage(item.image, [*names, "narwhal"].index(label)) for item, label in extra]
    whole = replace(drawn, labels=(*drawn.labels, "narwhal"), names=(*names, "narwhal"), train=(*drawn.train, *more))
    expected = Classifier(method, backbone=str(tiny_folder), device="cpu").fit(whole)
    assert refitted.classes_.tolist() == expected.classes_.tolist()
    images = [item.image for item in drawn.test]
    np.testing.assert_allclose(refitted.predict_proba(images), expected.predict_proba(images), atol=1e-4)
    assert [image.sha256 for image in refitted.training_images_] == [
        image.sha256 for image in expected.training_images_
    ]
    assert refitted.gallery() is not None
    assert sorted(refitted.gallery().sha256) == sorted(image.sha256 for image in refitted.training_images_)
    assert refitted.held_out_auc_ == pytest.approx(expected.held_out_auc_, abs=1e-3)


def test_a_refit_with_several_encoders_equals_a_fit_on_the_images(drawn: Dataset, tiny_folder: Path, tmp_path: Path):
    backbone = f"{tiny_folder},efficientnet-lite0"
    model = loaded(drawn, backbone, tmp_path, "closed_form")
    extra = [(drawn.test[0], str(drawn.names[3])), (drawn.test[9], "narwhal")]
    refitted = Refitter(model).refit(examples_of(model, extra))
    more = [LabelledImage(extra[0][0].image, 3), LabelledImage(extra[1][0].image, len(drawn.names))]
    names = (*drawn.names, "narwhal")
    whole = replace(drawn, labels=(*drawn.labels, "narwhal"), names=names, train=(*drawn.train, *more))
    expected = Classifier(backbone=backbone, device="cpu").fit(whole)
    images = [item.image for item in drawn.test]
    np.testing.assert_allclose(refitted.predict_proba(images), expected.predict_proba(images), atol=1e-4)
    again = Refitter(model).refit([])
    np.testing.assert_allclose(again.predict_proba(images), model.predict_proba(images), atol=1e-5)


def test_without_examples_a_refit_is_the_model(drawn: Dataset, tiny_folder: Path, tmp_path: Path):
    model = loaded(drawn, tiny_folder, tmp_path, "closed_form")
    images = [item.image for item in drawn.test]
    np.testing.assert_allclose(Refitter(model).refit([]).predict_proba(images), model.predict_proba(images), atol=1e-5)


def test_an_example_replaces_the_training_image_of_the_same_content(drawn: Dataset, tiny_folder: Path, tmp_path: Path):
    model = loaded(drawn, tiny_folder, tmp_path, "closed_form")
    (example,) = examples_of(model, [(drawn.train[0], str(drawn.labels[5]))])
    refitted = Refitter(model).refit([example])
    assert len(refitted.training_images_) == len(model.training_images_)
    assert [image.label for image in refitted.training_images_ if image.sha256 == example.image.sha256] == [5]


def test_methods_that_need_pixels_say_so(fitted: Path, drawn: Dataset, tiny_folder: Path, tmp_path: Path):
    trained = Refitter(Classifier.from_pretrained(fitted, device="cpu"))
    assert trained.obstacle == "dca is trained on the images themselves"
    views = Refitter(loaded(drawn, tiny_folder, tmp_path, "tip_adapter", views=2))
    assert "augmented views" in views.obstacle
    with pytest.raises(UserError, match="augmented views"):
        views.refit([])


def test_a_model_without_its_features_says_so(drawn: Dataset, tiny_folder: Path, tmp_path: Path):
    model = loaded(drawn, tiny_folder, tmp_path, "closed_form")
    model.gallery_ = None
    assert "not saved" in Refitter(model).obstacle


def test_stored_images_cannot_be_opened(tiny_folder: Path):
    session = Session(device="cpu")
    image = StoredImage("0a" * 32, "cat/1.jpg", b"")
    assert session.hash_image(image) == "0a" * 32
    with pytest.raises(UserError, match="1 image cannot be read") as caught:
        session.require_readable(session.load_backbone(str(tiny_folder)), [image])
    assert caught.value.details == ("cat/1.jpg: its pixels are not stored with the model",)
