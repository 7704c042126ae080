"""What a method is given: its problem, the training images, and batches of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dca.core import seeds
from dca.core.choices import Selection
from dca.methods.recipe import CROP_LOW

if TYPE_CHECKING:
    from dca.methods.interface import Method


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The classification problem that a method is built for.

    Args:
        names: Words that CLIP reads for each class.
        shots: Training images per class, on average.
        seed: Seed of all random numbers of the method.
        dataset: Name of a public dataset, or "".
        template: Zero-shot sentence with `{}` for the class name.
        selection: "paper" allows values that authors chose per dataset, "strict" does not.
    """

    names: tuple[str, ...]
    shots: int
    seed: int = 0
    dataset: str = ""
    template: str = "a photo of a {}."
    selection: Selection = "strict"


@dataclass(frozen=True)
class Batch:
    """The images of one training step: pixels (B, 3, S, S) or frozen features (B, D), and labels (B,)."""

    inputs: Tensor
    labels: Tensor
    generator: torch.Generator

    @cached_property
    def noise(self) -> torch.Generator:
        """A generator on the device of the inputs, seeded by one draw of `generator`."""
        return seeds.branch(self.generator, self.inputs.device)

    @property
    def noisy(self) -> bool:
        """Whether `noise` has been used."""
        return "noise" in vars(self)


@dataclass(frozen=True)
class Step:
    """Result of a training step: weighted loss terms by name, whose sum is minimised, and (B, C) probabilities."""

    terms: dict[str, Tensor]
    probabilities: Tensor


@dataclass(frozen=True)
class HeldOut:
    """Predictions for training images by models that have not seen them.

    Args:
        probabilities: (N, C) float64; rows of NaN where an image cannot be left out (the only one of its class).
        how: "leave-one-out", "approximate leave-one-out" or "5-fold cross-validation", as shown to people.
    """

    probabilities: NDArray[np.float64]
    how: str

    @property
    def known(self) -> NDArray[np.bool_]:
        """(N,) whether an image has a prediction."""
        return np.asarray(np.isfinite(self.probabilities).all(axis=1))


class Steps(Protocol):
    """Several steps whose batches are known before the first, with gradients that need no backpropagation."""

    def gradients(self, number: int) -> Sequence[Tensor]:
        """Gradients of the sum of the terms of one step, from 0 on, at the present values of the parameters.

        They are asked for once, in order, and given in the order of the parameters.
        """

    def outcome(self) -> tuple[dict[str, Tensor], Tensor]:
        """Loss terms by name, (S,) each, and the number of correct images, (S,), of all S steps."""


class Nested(Protocol):
    """Fits other methods on the same training images, for methods that are made of others."""

    def fit(self, kind: type[Method], chosen: Any) -> Method:
        """The finished method `kind`, fitted with the options `chosen`."""

    def held_out(self, kind: type[Method], chosen: Any, folds: int) -> HeldOut:
        """Predictions for the training images by fits that have not seen them; at most so many folds."""


class Support(Protocol):
    """The training images, as a method may use them outside the steps."""

    @property
    def labels(self) -> Tensor:
        """Class index of each image, (N,)."""

    @property
    def groups(self) -> Tensor:
        """Group of each image, (N,): near-copies share a number; they are left out together."""

    @property
    def validation(self) -> Support | None:
        """Validation images, if the method may select on any."""

    @property
    def nested(self) -> Nested | None:
        """Fits other methods on these images; None where nothing is being fitted."""

    def map(self, encode: Callable[[Tensor], Tensor], *, views: int = 0, crop_low: float = CROP_LOW) -> Tensor:
        """`encode` of the pixels of every image, without gradients: (N, ...).

        views = 0 is the evaluation view; otherwise that many augmented views of each image,
        view after view: (views · N, ...). crop_low: smallest share of the image in such a view.
        """

    def frozen_features(self, *, views: int = 0, mirrored: bool = False, crop_low: float = CROP_LOW) -> Tensor:
        """Features of the frozen backbone: (N, D) or (views · N, D), not normalised; stored between runs.

        mirrored: of the pixels flipped left to right. crop_low: smallest share of the image in an augmented view.
        """


def describe_terms(**own: str) -> Mapping[str, str]:
    """Descriptions of loss terms by name: those that many methods have, and a method's own."""
    return MappingProxyType({"cls": "classification", "in": "within classes", "ts": "between texts", **own})
