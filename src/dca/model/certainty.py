"""What a finished model says of its own answers: p-values for "none of these", and how strange each class would be.

A method may have its own; for the others, held-out predictions of the training images say it. Everything is a function
of features and probabilities that an exported program can hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dca.methods.base import Method
from dca.model.records import HeldOutPrediction, TrainingImage
from dca.stats.calibration import FLOOR
from dca.stats.conformal import ClassRanks, PValueTable, class_weights, smallest_p_value, threshold_ranks


@dataclass(frozen=True)
class Certainty:
    """The p-values and ranks of a model. images: its training images, with held-out predictions where there are any."""

    method: Method
    images: Sequence[TrainingImage]

    @cached_property
    def held_out(self) -> list[HeldOutPrediction]:
        """All held-out predictions; empty where there are none."""
        return [image.held_out for image in self.images if image.held_out]

    @cached_property
    def _labels(self) -> Tensor:
        """Class of each image with a held-out prediction, (n,)."""
        return torch.tensor([image.label for image in self.images if image.held_out], dtype=torch.int64)

    @cached_property
    def smallest_p_value(self) -> float | None:
        """The smallest p-value that an image can have; None if the model has none."""
        own = self.method.smallest_p_value()
        return own if own is not None or not self.held_out else smallest_p_value(class_weights(self._labels))

    @cached_property
    def _table(self) -> PValueTable:
        """p-values by the largest probability of held-out images."""
        held = torch.tensor([one.probability for one in self.held_out], dtype=torch.float64)
        return PValueTable.from_scores(held, class_weights(self._labels))

    @cached_property
    def _losses(self) -> Tensor:
        """-log p of the own class of held-out images, (n,)."""
        own = torch.tensor([one.own for one in self.held_out], dtype=torch.float64)
        return -own.clamp_min(FLOOR).log()

    def p_values(self, features: Tensor, probabilities: Tensor) -> Tensor | None:
        """p-values (B,), float64, of images by features (B, D) and probabilities (B, C); None if there are none."""
        own = self.method.p_values(features)
        if own is not None or not self.held_out:
            return own
        return self._table(probabilities.double().amax(dim=-1))

    def class_ranks(self, features: Tensor, probabilities: Tensor) -> ClassRanks | None:
        """Ranks (B, C) for prediction sets, from the same values; None if there are none."""
        own = self.method.class_ranks(features)
        if own is not None or not self.held_out:
            return own
        return threshold_ranks(self._losses, -probabilities.double().clamp_min(FLOOR).log())
