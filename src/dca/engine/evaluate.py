"""Probabilities of many pictures, and what they say about a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dca.clip import CLIP
from dca.core.errors import UserError
from dca.core.progress import Progress, of_stage, silent
from dca.data.decode import Picture
from dca.data.feature_store import FeatureCache
from dca.data.image_store import stream
from dca.methods.interface import Method

BATCH = 128
ECE_BINS = 15


@torch.no_grad()
def probabilities(
    methods: Sequence[Method],
    pictures: Sequence[Picture],
    *,
    stage: str = "images",
    progress: Progress = silent,
    cache: FeatureCache | None = None,
) -> list[NDArray[np.float64]]:
    """(N, C) of each method; they share a backbone.

    cache: where the features of methods that leave the image tower alone are kept from run to run.
    """
    stored = {n for n, method in enumerate(methods) if cache is not None and method.frozen_images}
    found = {n: _stored(methods[n], pictures, stage, progress, cache) for n in stored if cache is not None}
    fresh = [n for n in range(len(methods)) if n not in stored]
    found |= dict(zip(fresh, _streamed([methods[n] for n in fresh], pictures, stage, progress), strict=True))
    results = [found[n].double().numpy() for n in range(len(methods))]
    if wrong := [method.name for method, probs in zip(methods, results, strict=True) if not np.isfinite(probs).all()]:
        raise UserError(
            f"the {' and '.join(wrong)} model gives probabilities that are not numbers",
            hint="its tensors or options hold extreme values; fit again, with the default options first",
        )
    return results


def _pixels(clip: CLIP, pictures: Sequence[Picture], stage: str, progress: Progress) -> Iterator[Tensor]:
    """Batches of pixels as the image tower takes them."""
    on_gpu = clip.device.type == "cuda"
    for crops in stream(pictures, clip.preprocess.crop, BATCH, of_stage(progress, stage), pin=on_gpu):
        yield clip.preprocess.normalize(crops.to(clip.device, non_blocking=True))


def _streamed(methods: Sequence[Method], pictures: Sequence[Picture], stage: str, progress: Progress) -> list[Tensor]:
    """Probabilities (N, C) of each method; every picture is opened once for all of them."""
    if not methods:
        return []
    parts: list[list[Tensor]] = [[torch.zeros(0, len(method.problem.names))] for method in methods]
    for pixels in _pixels(methods[0].clip, pictures, stage, progress):
        for part, method in zip(parts, methods, strict=True):
            part.append(method.classify(method.encode(pixels)).cpu())
    return [torch.cat(part) for part in parts]


def _stored(method: Method, pictures: Sequence[Picture], stage: str, progress: Progress, cache: FeatureCache) -> Tensor:
    """Probabilities (N, C) from frozen features, encoding only the pictures that the cache has not seen."""
    clip = method.clip

    def encode(missing: Sequence[Picture]) -> Iterator[Tensor]:
        return (clip.encode_image(pixels).cpu() for pixels in _pixels(clip, missing, f"{stage}: features", progress))

    features = cache.features(clip.about(), pictures, encode)
    parts = [torch.zeros(0, len(method.problem.names))]
    for rows in torch.split(features, BATCH):
        parts.append(method.classify(method.from_frozen(rows.to(clip.device))).cpu())
    return torch.cat(parts)


@dataclass(frozen=True)
class Evaluation:
    """What a labelled set says about a model. Accuracies are fractions.

    probabilities: (N, C). labels: (N,). per_class: accuracy of each class that has images.
    ece: expected calibration error over 15 equal bins of the largest probability.
    trained_on: how many of the images the model has learned from, where that is known.
    """

    probabilities: NDArray[np.float64]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    accuracy: float
    per_class: dict[str, float]
    ece: float
    trained_on: int = 0

    @property
    def n(self) -> int:
        """Number of images."""
        return len(self.labels)

    def to_dict(self) -> dict[str, Any]:
        """What `dca eval --json` prints."""
        return {"accuracy": self.accuracy, "n": self.n, "per_class": self.per_class, "ece": self.ece}


def evaluation(probs: NDArray[np.float64], labels: NDArray[np.int64], classes: Sequence[str]) -> Evaluation:
    """Compare probabilities (N, C) with labels (N,), N > 0. Classes of the same name share a row."""
    right = probs.argmax(axis=1) == labels
    names = np.array(classes)[labels]
    per_class = {name: float(right[names == name].mean()) for name in dict.fromkeys(classes) if (names == name).any()}
    return Evaluation(probs, labels, tuple(classes), float(right.mean()), per_class, calibration_error(probs, right))


def calibration_error(probs: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """ECE = Σ_b (n_b / n) |accuracy_b - confidence_b| over equal bins of the largest probability."""
    confidence = probs.max(axis=1)
    bins = np.minimum((confidence * ECE_BINS).astype(int), ECE_BINS - 1)
    gaps = [abs(right[bins == b].mean() - confidence[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)]
    return float(sum(gaps))
