"""Explain one prediction: probabilities, nearest training images, and the relevance of each patch.

The image is divided into G x G patches, those of its encoder; of several encoders, the finest. The relevance of a patch
is what blurring a window of 3 x 3 patches around it takes from the log-odds of a class,

    s(x) - s(x blurred around the patch),   s = log p_c - log Σ_{k ≠ c} p_k,

with p of the finished model, so that it holds for every method and encoder. Encoders that see different parts of an
image are given the same windows of it. Windows are placed at every second or third patch, and values in between are
interpolated: a quarter to a sixth of the images that a window at every patch (occlusion) takes. Tests compare the two.
Gradients would be faster still, but agreed far less with occlusion (docs/report.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.encoder import Pixels
from dca.core.errors import unknown_name
from dca.images.decode import ImageLike, center_crop, open_image
from dca.methods.base import Method
from dca.model.classifier import Classifier
from dca.stats.calibration import FLOOR

# Patches of a window on either side of its middle.
NEIGHBOURS = 1
# Windows are at least so many patches apart, and at most so many are placed along a side.
LEAST_APART, MOST_WINDOWS = 2, 7
# Images that the model is given at once.
BATCH = 16
# Colours of relevance for and against a class; they can be told apart with any colour vision.
FOR, AGAINST = (213, 94, 0), (0, 114, 178)


@dataclass(frozen=True)
class Neighbour:
    """A training image that is similar to an image.

    index: in the model's gallery. label: of its class. name: short name. similarity: cosine of the frozen features.
    """

    index: int
    label: Any
    name: str
    similarity: float


@dataclass(frozen=True)
class Explanation:
    """Why a model says what it says about one image.

    Attributes:
        labels: Label of each class.
        probabilities: Probability of each class, (C,).
        target: Index of the class that the relevance belongs to.
        relevance: What blurring around each patch takes from the log-odds of that class, (G, G), from top to bottom.
        crop: The part of the image that the model sees.
        nearest: The most similar training images, the most similar first; empty for a model without a gallery.
    """

    labels: tuple[Any, ...]
    probabilities: NDArray[np.float64]
    target: int
    relevance: NDArray[np.float64]
    crop: Image.Image
    nearest: tuple[Neighbour, ...]

    def top(self, k: int) -> list[tuple[Any, float]]:
        """The k most probable labels with their probabilities."""
        order = (-self.probabilities).argsort(kind="stable")[:k]
        return [(self.labels[c], float(self.probabilities[c])) for c in order]

    def heat_map(self, side: int = 224) -> Image.Image:
        """The crop in grey, orange where it speaks for the class and blue where it speaks against it.

        Args:
            side: Pixels of a side of the drawing.

        Returns:
            An RGB image.
        """
        size = (side, side)
        grey = np.asarray(self.crop.resize(size, Image.Resampling.BICUBIC).convert("L"), dtype=np.float64)[..., None]
        strength = self.relevance / max(float(np.abs(self.relevance).max()), 1e-12)
        smooth = np.asarray(Image.fromarray(strength.astype(np.float32)).resize(size, Image.Resampling.BICUBIC))
        share = np.clip(np.abs(smooth), 0, 1)[..., None] * 0.75
        colour = np.where(smooth[..., None] > 0, FOR, AGAINST)
        return Image.fromarray(np.uint8(np.rint((1 - share) * grey + share * colour)))


def explain(model: Classifier, image: ImageLike, *, target: Any = None, neighbours: int = 5) -> Explanation:
    """Explain what a fitted model says about an image.

    Args:
        model: A fitted classifier.
        image: A path or an image.
        target: Label of the class whose relevance is wanted; None for the most probable class.
        neighbours: How many of the nearest training images to find.

    Returns:
        Probabilities, relevance of the patches, and the nearest training images.

    Raises:
        UserError: If the image cannot be read, or the model has no such class.

    Example:
        >>> from dca import Classifier
        >>> from dca.datasets.sample import load_sample
        >>> from dca.model.explain import explain
        >>> sample = load_sample(per_class_train=2, per_class_test=1)
        >>> model = Classifier("gda", views=0, device="cpu").fit(sample)
        >>> explain(model, sample.test[0].image).relevance.shape
        (8, 8)
    """
    method, labels = model._require_fitted(), model.classes_.tolist()
    indices = {str(label): index for index, label in enumerate(labels)}
    if target is not None and str(target) not in indices:
        raise unknown_name("class", str(target), indices)
    encoder = method.encoder
    opened = open_image(image)
    crops = torch.as_tensor(encoder.preprocess.crop(opened))[None]
    pixels = encoder.preprocess.normalize(crops.to(encoder.device))
    with torch.no_grad():
        found = method.classify(method.encode(pixels))[0].double().cpu()
    probabilities = (found / found.sum()).numpy()
    chosen = int(probabilities.argmax()) if target is None else indices[str(target)]
    return Explanation(
        tuple(labels),
        probabilities,
        chosen,
        measure_relevance(method, pixels, chosen).numpy(),
        crop_widest(opened, encoder.preprocess),
        find_nearest(model, pixels, neighbours),
    )


def crop_widest(image: Image.Image, preprocess: Pixels) -> Image.Image:
    """What the encoder that sees most of an image sees of it, with as many pixels as the largest encoder takes."""
    widest = max(preprocess.parts, key=lambda part: part.coverage)
    ((_, resize, resample, even),) = widest.crops
    size = preprocess.size
    crop = center_crop(image, size, None if resize is None else round(size / widest.coverage), resample, even)
    return Image.fromarray(np.ascontiguousarray(crop.transpose(1, 2, 0)))


@torch.no_grad()
def find_nearest(model: Classifier, pixels: Tensor, k: int) -> tuple[Neighbour, ...]:
    """The k training images most similar to one image, given as pixels (1, ...); none without a gallery."""
    gallery = model.gallery()
    if gallery is None or not len(gallery):
        return ()
    labels = model.classes_.tolist()
    indices, similarities = gallery.nearest(model.method_.encoder.encode_image(pixels).cpu(), k)
    return tuple(
        Neighbour(index, labels[gallery.labels[index]], gallery.names[index], value)
        for index, value in zip(indices[0].tolist(), similarities[0].tolist(), strict=True)
    )


@torch.no_grad()
def measure_relevance(method: Method, pixels: Tensor, target: int) -> Tensor:
    """Relevance (G, G) of the patches of an image for a class.

    method: finished. pixels: normalised (1, 3, S, S), or (1, values) of a pool. target: index of the class.
    """
    encoder = method.encoder
    side = encoder.patches_per_side
    blend = WindowBlur(encoder.preprocess, pixels, side)
    centers = window_centers(side)
    weights = [window_weights(side, row, column) for row in centers for column in centers]
    windows = torch.stack(weights).to(pixels.device)
    odds = [
        log_odds(method.classify(method.encode(blend(some))), target).double().cpu()
        for some in torch.split(windows, BATCH)
    ]
    whole = log_odds(method.classify(method.encode(pixels)), target).double().cpu()
    return interpolate((whole - torch.cat(odds)).view(len(centers), len(centers)), centers, side)


class WindowBlur:
    """One image with parts of it blurred, as the pixels of all of its encoders.

    Args:
        preprocess: Of the encoders.
        pixels: The image, normalised: (1, 3, S, S), or (1, values) of a pool.
        side: G, patches along a side of what the encoder with the widest crop sees.
    """

    def __init__(self, preprocess: Pixels, pixels: Tensor, side: int) -> None:
        widest = max(part.coverage for part in preprocess.parts)
        self._shape = pixels.shape[1:]
        self._sharp = preprocess.split(pixels)
        # A patch has the same size in the image whoever sees it.
        self._shares = [part.coverage / widest for part in preprocess.parts]
        self._blurred = [
            blur_image(own, max(round(own.shape[-1] / (share * side)), 1))
            for own, share in zip(self._sharp, self._shares, strict=True)
        ]

    def __call__(self, weights: Tensor) -> Tensor:
        """The image where weights (B, G, G) of its patches are 1, the blurred one where they are 0: (B, ...)."""
        parts = zip(self._sharp, self._blurred, self._shares, strict=True)
        blended = [blend_blur(sharp, blurred, weights, share) for sharp, blurred, share in parts]
        return torch.cat([own.flatten(1) for own in blended], dim=1).view(-1, *self._shape)


def window_centers(side: int) -> list[int]:
    """Centers of windows along a side of G patches, evenly spread; the first and the last patch are among them.

    >>> window_centers(8), window_centers(7), window_centers(14)
    ([0, 2, 4, 6, 7], [0, 2, 4, 6], [0, 3, 6, 9, 12, 13])
    """
    apart = max(LEAST_APART, math.ceil((side - 1) / (MOST_WINDOWS - 1)))
    return sorted({*range(0, side, apart), side - 1})


def window_weights(side: int, row: int, column: int) -> Tensor:
    """Weights (G, G) of `blend_blur` that blur the window around a patch."""
    weights = torch.ones(side, side)
    top, left = max(row - NEIGHBOURS, 0), max(column - NEIGHBOURS, 0)
    weights[top : row + NEIGHBOURS + 1, left : column + NEIGHBOURS + 1] = 0
    return weights


def interpolate(values: Tensor, centers: Sequence[int], side: int) -> Tensor:
    """Interpolate values (K, K) at the given rows and columns linearly: (G, G)."""
    steps = torch.zeros(side, len(centers), dtype=values.dtype)
    steps[centers[0], 0] = 1
    for k, (low, high) in enumerate(pairwise(centers)):
        for patch in range(low, high + 1):
            share = (patch - low) / (high - low)
            steps[patch] = 0
            steps[patch, k], steps[patch, k + 1] = 1 - share, share
    return steps @ values @ steps.T


def blend_blur(pixels: Tensor, blurred: Tensor, weights: Tensor, share: float = 1.0) -> Tensor:
    """The image where weights (B, G, G) of its patches are 1, the blurred one where they are 0: (B, 3, S, S).

    pixels, blurred: (1, 3, S, S). share: of the side of the G patches, what the pixels show of it, its middle. Between
    patches the weights change gradually, so that no edges appear.
    """
    size = pixels.shape[-1]
    whole = round(size / share)
    each = F.interpolate(weights[:, None], size=(whole, whole), mode="bilinear", align_corners=False)
    first = (whole - size) // 2
    each = each[..., first : first + size, first : first + size]
    return blurred + each * (pixels - blurred)


def blur_image(pixels: Tensor, sigma: int) -> Tensor:
    """Blur an image (B, 3, S, S) by a Gaussian of `sigma` pixels, edges mirrored."""
    reach = min(2 * sigma, pixels.shape[-1] - 1)
    offsets = torch.arange(-reach, reach + 1, device=pixels.device, dtype=pixels.dtype)
    kernel = (-(offsets**2) / (2 * sigma**2)).exp()
    kernel = (kernel / kernel.sum()).expand(3, 1, -1)
    wide = F.pad(pixels, (reach, reach, reach, reach), mode="reflect")
    return F.conv2d(F.conv2d(wide, kernel[:, :, None, :], groups=3), kernel[:, :, :, None], groups=3)


def log_odds(probabilities: Tensor, target: int) -> Tensor:
    """Log-odds log p_c - log Σ_{k ≠ c} p_k of probabilities (B, C): (B,)."""
    others = torch.arange(probabilities.shape[-1], device=probabilities.device) != target
    return probabilities[:, target].clamp_min(FLOOR).log() - probabilities[:, others].sum(dim=-1).clamp_min(FLOOR).log()
