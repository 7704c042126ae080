"""Crops that are kept equal those that are made, and memory stays within its limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from dca.backbones.preprocess import Preprocess
from dca.images import decode as decode_many
from dca.images.decode import Unreadable
from dca.training import pipeline
from dca.training.features import CropCache
from dca.training.pipeline import decode_source

PREPROCESS = Preprocess(size=8, resize=8, resample=3, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
SIZE = 3 * 8 * 8


def photo(seed, size=(16, 16)):
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture
def opened(monkeypatch):
    """The images that are decoded."""
    found = []
    true = decode_many.decode_image

    def count(image, apply):
        found.append(image)
        return true(image, apply)

    monkeypatch.setattr(decode_many, "decode_image", count)
    monkeypatch.setattr(pipeline, "decode_image", count)
    return found


def crops(cache, images, names=None, *, preprocess=PREPROCESS, keep=True):
    """The crop of every image, from the cache or decoded now; those that are decoded are kept if they fit."""
    contents = names or [str(id(image)) for image in images]
    keep = keep and cache.reserve(len(images), preprocess)
    outcomes = [decode_source(source) for source in cache.crop_sources(images, contents, preprocess)]
    for content, crop in zip(contents, outcomes, strict=True):
        if keep and isinstance(crop, torch.Tensor):
            cache.put(content, preprocess, crop)
    return outcomes


def literal(images, preprocess=PREPROCESS):
    return torch.from_numpy(np.stack([preprocess.crop(image) for image in images]))


def test_kept_crops_equal_those_made_one_by_one(opened):
    kept, images = CropCache(), [photo(k) for k in range(6)]
    for _ in range(2):
        assert torch.equal(torch.cat(crops(kept, images)), literal(images))
    assert len(opened) == 6
    assert torch.equal(torch.cat(crops(kept, images[::-1])), literal(images[::-1]))
    assert len(opened) == 6


def test_an_image_that_occurs_twice_has_its_crop_twice(opened):
    kept, images = CropCache(), [photo(0), photo(1), photo(0), photo(2)]
    names = ["a", "b", "a", "c"]
    for _ in range(2):
        assert torch.equal(torch.cat(crops(kept, images, names)), literal(images))


def test_nothing_is_kept_unless_asked_for(opened):
    kept, images = CropCache(), [photo(k) for k in range(3)]
    for _ in range(2):
        crops(kept, images, keep=False)
    assert len(opened) == 6


def test_another_preprocessing_has_other_crops():
    kept, images = CropCache(), [photo(k, (40, 20)) for k in range(3)]
    other = replace(PREPROCESS, resize=12)
    crops(kept, images)
    assert torch.equal(torch.cat(crops(kept, images, preprocess=other)), literal(images, other))
    assert not torch.equal(literal(images), literal(images, other))


def test_a_set_that_does_not_fit_is_not_kept_and_a_new_one_replaces_the_old(opened):
    kept, images = CropCache(limit=4 * SIZE), [photo(k) for k in range(5)]
    crops(kept, images)
    crops(kept, images)
    assert len(opened) == 10
    crops(kept, images[:3])
    crops(kept, images[:1])
    assert len(opened) == 13
    mixed = torch.cat(crops(kept, images[2:]))
    assert torch.equal(mixed, literal(images[2:]))
    assert kept._bytes <= 4 * SIZE


def test_crops_that_are_made_ahead_are_waited_for(opened):
    kept, images = CropCache(), [photo(k) for k in range(20)]
    contents = [str(id(image)) for image in images]
    kept.read_ahead(images, contents, PREPROCESS)
    assert torch.equal(torch.cat(crops(kept, images)), literal(images))
    assert len(opened) == 20


def test_an_error_ahead_is_met_by_whoever_asks(monkeypatch):
    def fail(self, image):
        raise RuntimeError("our bug")

    monkeypatch.setattr(Preprocess, "crop", fail)
    kept = CropCache()
    kept.read_ahead([photo(0)], ["a"], PREPROCESS)
    with pytest.raises(RuntimeError, match="our bug"):
        crops(kept, [photo(0)], ["a"])


def test_an_unreadable_image_is_in_its_place(tmp_path):
    (tmp_path / "x.png").write_bytes(b"no image")
    found = crops(CropCache(), [photo(0), tmp_path / "x.png", photo(1)])
    assert [isinstance(outcome, Unreadable) for outcome in found] == [False, True, False]
