"""Inputs that look right and are not: refused with what was expected."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import make_clip
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset
from dca.images.convert import as_image
from dca.model.classifier import Classifier
from dca.training.session import Session


@pytest.mark.parametrize("shape", [(2, 15), (2, 17), (16,), (1, 2, 16)])
def test_features_of_another_length_are_refused(shape: tuple[int, ...], sample: Dataset) -> None:
    model = Classifier(shots=2, backbone=make_clip(), device="cpu").fit(sample)
    with pytest.raises(UserError, match=r"features of shape .*; \(n, 16\) expected"):
        model.predict_features(torch.ones(shape))
    assert model.predict_features(torch.ones(2, 16) / 16**0.5).probabilities.shape == (2, 10)


def test_features_that_are_no_floats_are_refused(sample: Dataset) -> None:
    model = Classifier(shots=2, backbone=make_clip(), device="cpu").fit(sample)
    for features in (np.ones((2, 16), np.int64), [[0.25] * 16] * 2):
        with pytest.raises(UserError, match="and an array or tensor of floats is expected"):
            model.predict_features(features)  # type: ignore[arg-type]


def test_one_path_is_no_list_of_images_and_a_name_no_encoder(sample: Dataset) -> None:
    session, clip = Session(device="cpu"), make_clip()
    with pytest.raises(UserError) as refused:
        session.frozen_features(clip, "photo.jpg")
    assert str(refused.value) == "'photo.jpg' is one image\n  fix: give a list, such as [image]"
    with pytest.raises(UserError, match=r"'mini' is no loaded encoder"):
        session.frozen_features("mini", [sample.test[0].image])  # type: ignore[arg-type]


def test_floats_from_0_to_255_are_levels() -> None:
    levels = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(np.uint8)
    for pixels in (levels, levels.astype(np.float32), levels.astype(np.float64), levels / 255):
        image = as_image(pixels)
        assert isinstance(image, Image.Image)
        assert np.array_equal(np.asarray(image), levels)


@pytest.mark.parametrize("pixels", [np.full((9, 9), 1.5), np.full((9, 9), -3.0), np.full((9, 9), 300.0)])
def test_floats_of_neither_kind_are_refused(pixels: np.ndarray) -> None:
    with pytest.raises(UserError, match=r"\[0, 1\] or \[0, 255\] expected"):
        as_image(pixels)
