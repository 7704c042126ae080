"""Prediction sets of the closed form by jackknife+: models without each training image, in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dca.methods.shared.experts import GaussianWithoutEach, KernelWithoutEach, subsample
from dca.methods.shared.product_of_experts import ExpertPool, Experts, Hyperparameters
from dca.stats.conformal import ClassRanks, jackknife_ranks

# Most images whose models are compared with a new image in prediction sets, and values in the largest tensor.
MAX_CALIBRATION_IMAGES, MAX_VALUES = 1000, 2**22


@dataclass(frozen=True)
class LogitsWithoutEach:
    """Logits of new images by one encoder's models without each of n images.

    experts, selected: of that encoder. gaussian, kernel: without each image; no kernel if its scale is zero.
    """

    experts: Experts
    selected: Hyperparameters
    gaussian: GaussianWithoutEach
    kernel: KernelWithoutEach | None

    @classmethod
    def from_experts(cls, experts: Experts, selected: Hyperparameters, rows: Tensor) -> LogitsWithoutEach:
        """Without each of the images `rows` (n,)."""
        gaussian = experts.gaussian.whiten(selected.ridge).without_each(rows, selected.text_shots)
        used = experts.kernel if selected.kernel > 0 else None
        kernel = None if used is None else used.without_each(rows, selected.kernel_ridge)
        return cls(experts, selected, gaussian, kernel)

    def __call__(self, f: Tensor) -> Tensor:
        """Unit features f (B, D) -> logits (B, n, C)."""
        logits = self.selected.gaussian * self.gaussian(f)
        if self.selected.text > 0:
            logits = logits + self.selected.text * self.experts.text_logits(f)[:, None, :]
        return logits if self.kernel is None else logits + self.selected.kernel * self.kernel(f)


@dataclass(frozen=True)
class ConformalPredictor:
    """Prediction sets of new images. experts: all training images. selected: hyperparameters of the head."""

    experts: ExpertPool
    selected: Sequence[Hyperparameters]

    @cached_property
    def rows(self) -> Tensor:
        """Images without copies that can be left out, at most `MAX_CALIBRATION_IMAGES` of them."""
        source = self.experts.source
        alone = torch.bincount(source.groups)[source.groups] == 1
        rows = (alone & source.peers).nonzero()[:, 0]
        return rows[subsample(len(rows), MAX_CALIBRATION_IMAGES)]

    @cached_property
    def _held_out_losses(self) -> Tensor:
        """-log p of the own class of the images `rows` by the models without them: (n,)."""
        rows = self.rows
        logits = self.experts.held_out_logits(self.selected, corrected=False)[rows]
        return -logits.log_softmax(dim=-1)[torch.arange(len(rows), device=rows.device), self.experts.labels[rows]]

    @cached_property
    def _parts(self) -> tuple[LogitsWithoutEach, ...]:
        pairs = zip(self.experts.parts, self.selected, strict=True)
        return tuple(LogitsWithoutEach.from_experts(*pair, self.rows) for pair in pairs)

    def ranks(self, f: Tensor) -> ClassRanks:
        """Jackknife+ ranks of each class for image features f (B, D)."""
        if torch.compiler.is_exporting():  # an exported program is given as many images as its caller sees fit
            return jackknife_ranks(self._held_out_losses, self.losses_without_each(f))
        batch_size = max(MAX_VALUES // max(len(self.rows) * len(self.experts.source.text), 1), 1)
        losses = (self.losses_without_each(batch) for batch in torch.split(f, batch_size))
        parts = [jackknife_ranks(self._held_out_losses, each).ranks for each in losses]
        return ClassRanks(torch.cat(parts), len(self.rows))

    def losses_without_each(self, f: Tensor) -> Tensor:
        """-log p (B, n, C) of images f (B, D) by the models without each of the images `rows`."""
        logits = [part(own) for part, own in zip(self._parts, self.experts.split(f), strict=True)]
        return -torch.stack(logits).sum(dim=0).log_softmax(dim=-1)
