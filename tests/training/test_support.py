"""Training images as a method sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dca.backbones.clip import CLIP
from dca.core import seeds
from dca.datasets.dataset import Dataset
from dca.features.store import FeatureStore
from dca.images import decode
from dca.model.classifier import Classifier
from dca.training.session import Session
from dca.training.support import ImageSupport


@pytest.fixture
def images(sample: Dataset, clip: CLIP, tmp_path: Path) -> ImageSupport:
    return ImageSupport(sample.train, Session(device="cpu", store=FeatureStore(tmp_path / "store")), clip, seed=1)


def test_the_evaluation_view_is_the_backbones_own_crop(images: ImageSupport, clip: CLIP, sample: Dataset) -> None:
    expected = clip.preprocess([item.image for item in sample.train[:5]])  # type: ignore[misc]
    generator = seeds.generator(1, "unused")
    assert torch.equal(images.pixels(torch.arange(5), generator, augment=False), expected)
    assert torch.equal(images.map(lambda pixels: pixels)[:5], expected)


def test_labels_and_lengths(images: ImageSupport, sample: Dataset) -> None:
    assert len(images) == len(sample.train)
    assert images.labels.tolist() == [item.label for item in sample.train]


def test_map_gives_views_one_after_the_other(images: ImageSupport) -> None:
    rows = images.map(lambda pixels: pixels.flatten(1)[:, :3], views=2)
    assert rows.shape == (2 * len(images), 3)
    assert not torch.equal(rows[: len(images)], rows[len(images) :])


def test_nothing_is_decoded_before_pixels_are_asked_for(
    sample: Dataset, clip: CLIP, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(device="cpu", store=FeatureStore(tmp_path / "store"))
    ImageSupport(sample.train, session, clip, 1).frozen_features(views=2)
    monkeypatch.setattr(decode, "_open", lambda image: pytest.fail("decoded"))
    again = ImageSupport(sample.train, session, clip, 1)
    assert again.frozen_features(views=2).shape == (2 * len(sample.train), clip.config.embed_dim)


@pytest.mark.parametrize("name", ["linear_probe", "tip_adapter", "tip_adapter_f", "cross_modal", "clap", "gda"])
def test_the_next_fit_encodes_no_training_image(
    name: str, sample: Dataset, clip: CLIP, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DCA_CACHE", str(tmp_path / "cache"))
    encoded: list[int] = []
    encode = CLIP.encode_image

    def counting(self: CLIP, pixels: Any, **changes: Any) -> Tensor:
        encoded.append(len(pixels))
        return encode(self, pixels, **changes)

    monkeypatch.setattr(CLIP, "encode_image", counting)
    settings = {"linear_probe": {"c": 1.0}, "tip_adapter": {}, "gda": {}}.get(name, {"epochs": 1})
    first, second = (Classifier(name, shots=2, backbone=clip, device="cpu", **settings) for _ in range(2))
    first.fit(sample)
    assert encoded
    encoded.clear()
    second.fit(sample)
    assert encoded == []
    ours, theirs = first.method_.state_dict(), second.method_.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
