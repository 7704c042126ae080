"""Stored features of training images: what encoding them anew gives, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dca.clip import CLIP
from dca.data import feature_store as cache_module
from dca.data.dataset import Dataset
from dca.data.feature_store import FeatureCache
from dca.data.image_store import ImageStore
from dca.data.splits import few_shot
from dca.engine.training_images import TrainingImages
from dca.model.classifier import Classifier

Told = list[tuple[str, int, int]]


@pytest.fixture
def encoded(clip: CLIP, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of images that the backbone was given."""
    counts: list[int] = []
    plain = CLIP.encode_image

    def counting(self: CLIP, images: Any, extra: Any = None) -> Tensor:
        counts.append(len(images))
        return plain(self, images, extra)

    monkeypatch.setattr(CLIP, "encode_image", counting)
    return counts


@pytest.fixture
def cache(tmp_path: Path) -> FeatureCache:
    return FeatureCache(tmp_path / "cache")


def images(
    sample: Dataset, clip: CLIP, cache: FeatureCache | None, seed: int = 1, told: Told | None = None
) -> TrainingImages:
    items = few_shot(sample, 2, 1).train
    store, labels = ImageStore([i.picture for i in items], clip.preprocess.size), torch.tensor([i.label for i in items])
    shown: Told = [] if told is None else told
    return TrainingImages(store, labels, clip, seed, cache=cache, progress=lambda *words: shown.append(words[:3]))


KINDS: list[dict[str, Any]] = [{}, {"views": 3}, {"mirrored": True}, {"views": 2, "mirrored": True}]


@pytest.mark.parametrize("kind", KINDS)
def test_stored_features_are_those_of_the_backbone(
    sample: Dataset, clip: CLIP, cache: FeatureCache, encoded: list[int], kind: dict[str, Any]
) -> None:
    plain = images(sample, clip, None)

    def encode(pixels: Tensor) -> Tensor:
        return clip.encode_image(pixels.flip(-1) if kind.get("mirrored") else pixels)

    want = plain.map(encode, views=kind.get("views", 0))
    assert torch.equal(plain.frozen_features(clip, **kind), want)
    encoded.clear()
    for asked in (len(want), 0):
        assert torch.equal(images(sample, clip, cache).frozen_features(clip, **kind), want)
        assert sum(encoded) == asked
        encoded.clear()


def test_each_kind_is_stored_by_itself(sample: Dataset, clip: CLIP, cache: FeatureCache) -> None:
    for _ in range(2):
        found = [images(sample, clip, cache).frozen_features(clip, **kind) for kind in KINDS]
    assert len({rows.double().sum().item() for rows in found}) == len(KINDS)


def test_only_missing_views_are_encoded(sample: Dataset, clip: CLIP, cache: FeatureCache, encoded: list[int]) -> None:
    few, told = images(sample, clip, cache).frozen_features(clip, views=2), []
    encoded.clear()
    more = images(sample, clip, cache, told=told)
    rows = more.frozen_features(clip, views=3)
    assert sum(encoded) == len(more)
    assert torch.equal(rows[: len(few)], few)
    assert torch.equal(rows, images(sample, clip, None).frozen_features(clip, views=3))
    assert told[-1] == ("features", len(more), len(more))


def test_a_view_that_was_stored_in_part_is_made_whole(
    sample: Dataset, clip: CLIP, cache: FeatureCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = images(sample, clip, None).frozen_features(clip, views=2)
    gathered = cache_module._gather

    def stopped(batches: Any) -> Any:
        for first, rows in gathered(batches):
            yield first, rows[:3]
            raise KeyboardInterrupt

    support = images(sample, clip, cache)
    with monkeypatch.context() as patch:
        patch.setattr(cache_module, "_gather", stopped)
        with pytest.raises(KeyboardInterrupt):
            support.frozen_features(clip, views=2)
    assert cache.spaces()[0].features == 3
    assert torch.equal(images(sample, clip, cache).frozen_features(clip, views=2), want)


def test_other_images_or_another_seed_are_another_space(sample: Dataset, clip: CLIP, cache: FeatureCache) -> None:
    images(sample, clip, cache).frozen_features(clip, views=1)
    images(sample, clip, cache, seed=2).frozen_features(clip, views=1)
    turned = images(sample, clip, cache)
    turned.store._pixels.reverse()
    turned.frozen_features(clip, views=1)
    assert len(cache.spaces()) == 3


@pytest.mark.parametrize("name", ["linear_probe", "tip_adapter", "tip_adapter_f", "cross_modal", "clap", "gda"])
def test_the_next_fit_encodes_no_training_image(
    name: str, sample: Dataset, clip: CLIP, encoded: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DCA_CACHE", str(tmp_path / "cache"))
    settings = {} if name in ("linear_probe", "tip_adapter", "gda") else {"epochs": 1}
    first, second = (Classifier(name, shots=2, backbone=clip, device="cpu", **settings) for _ in range(2))
    first.fit(sample)
    assert encoded
    encoded.clear()
    second.fit(sample)
    assert encoded == []
    ours, theirs = first.method_.state_dict(), second.method_.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
