"""The images in memory: recent ones and the tray."""

from __future__ import annotations

import pytest
import torch

from dca.serve.encoder import ImageFeatures
from dca.serve.errors import RequestError
from dca.serve.workspace import ImagePool, LoadedImage


def loaded(name: str, size: int) -> LoadedImage:
    return LoadedImage(name, 1, 1, ".jpg", b"", ImageFeatures(torch.zeros(2), None), bytes(size))


def test_recent_images_are_forgotten_by_size_and_the_tray_stays():
    images = ImagePool(recent_bytes=100, tray_bytes=50, tray_images=2)
    images.put_in_tray(loaded("t", 40))
    for name in "abc":
        images.keep_recent(loaded(name, 40))
    assert [images.get(name) is not None for name in "abct"] == [False, True, True, True]
    with pytest.raises(RequestError):
        images.put_in_tray(loaded("u", 40))
    assert images.remove_from_tray("t")
    images.put_in_tray(loaded("u", 40))
