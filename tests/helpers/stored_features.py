"""Features to store, and counting which are computed; for the tests of the feature store."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from dca.images.decode import open_image
from dca.images.hashing import sha256_of

ABOUT = {"backbone": "abc", "size": 8}
HOUR = 3600


def feature_of(path):
    """A feature that depends on every pixel."""
    pixels = np.asarray(open_image(path), dtype=np.float64)
    return torch.tensor([pixels.mean(), pixels.std(), pixels[0].sum(), pixels[:, 0].sum()], dtype=torch.float32)


class Backbone:
    """Counts what it is asked to compute."""

    def __init__(self, batch=3):
        self.asked = []
        self.batch = batch

    def __call__(self, images):
        for start in range(0, len(images), self.batch):
            part = images[start : start + self.batch]
            self.asked += part
            yield torch.stack([feature_of(path) for path in part])


def features(store, about, images, backbone):
    """Features of images by their content, as the evaluation asks for them."""
    keys = [sha256_of(image) for image in images]
    return store.get_or_compute(about, keys, lambda places: backbone([images[place] for place in places]))


def expected(images):
    return torch.stack([feature_of(path) for path in images])


def keys_of(numbers):
    return [hashlib.sha256(str(number).encode()).hexdigest() for number in numbers]


def fill(store, about, numbers, width=8):
    """Store the rows of `values` under the keys of these numbers; returns how many were computed."""
    numbers, asked = list(numbers), []

    def compute(places):
        asked.extend(places)
        return torch.split(values([numbers[place] for place in places], width), 1000)

    assert torch.equal(store.get_or_compute(about, keys_of(numbers), compute), values(numbers, width))
    return len(asked)


def values(numbers, width=8):
    """(N, width); every number has another row."""
    return torch.tensor(numbers, dtype=torch.float32)[:, None] + torch.arange(width) / 256


def refuse(places):
    raise AssertionError(f"{len(places)} rows are computed that should be stored")
