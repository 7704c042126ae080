"""The images in memory: recent ones and the tray."""

from __future__ import annotations

import pytest
import torch

from dca.serve.encoder import ImageFeatures
from dca.serve.errors import RequestError
from dca.serve.workspace import OBJECT_BYTES, ImagePool, LoadedImage


def loaded(name: str, size: int) -> LoadedImage:
    return LoadedImage(name, 1, 1, ".jpg", b"", ImageFeatures(torch.zeros(2), None), bytes(size))


def test_recent_images_are_forgotten_by_size_and_the_tray_stays():
    one = loaded("a", 40).memory
    images = ImagePool(recent_bytes=2 * one + 20, tray_bytes=one + 10, tray_images=2)
    images.put_in_tray(loaded("t", 40))
    for name in "abc":
        images.keep_recent(loaded(name, 40))
    assert [images.get(name) is not None for name in "abct"] == [False, True, True, True]
    with pytest.raises(RequestError):
        images.put_in_tray(loaded("u", 40))
    assert images.remove_from_tray("t")
    images.put_in_tray(loaded("u", 40))


def test_small_files_count_with_all_that_is_kept_of_them():
    features = ImageFeatures(torch.zeros(1792), torch.zeros(512))
    image = LoadedImage("a", 1, 1, ".jpg", b"small", features, b"file")
    assert image.memory == 9 + 4 * (1792 + 512) + OBJECT_BYTES
