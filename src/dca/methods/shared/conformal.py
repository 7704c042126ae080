"""Prediction sets of the closed form by jackknife+: models without each training image, in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dca.methods.shared.experts import subsample
from dca.methods.shared.product_of_experts import ExpertPool, Experts, Hyperparameters
from dca.stats.conformal import add_best, jackknife_plus

# Most images whose models are compared with a new image in prediction sets, and values in the largest tensor.
MAX_CALIBRATION_IMAGES, MAX_VALUES = 1000, 2**22


@dataclass(frozen=True)
class ConformalPredictor:
    """Prediction sets of new images. experts: all training images. selected: hyperparameters of the head."""

    experts: ExpertPool
    selected: Sequence[Hyperparameters]

    @cached_property
    def _rows(self) -> Tensor:
        """Images without copies that can be left out, at most `MAX_CALIBRATION_IMAGES` of them."""
        source = self.experts.source
        alone = torch.bincount(source.groups)[source.groups] == 1
        rows = (alone & source.peers).nonzero()[:, 0]
        return rows[subsample(len(rows), MAX_CALIBRATION_IMAGES)]

    @cached_property
    def _held_out_losses(self) -> Tensor:
        """-log p of the own class of the images `_rows` by the models without them: (n,)."""
        rows = self._rows
        logits = self.experts.held_out_logits(self.selected, corrected=False)[rows]
        return -logits.log_softmax(dim=-1)[torch.arange(len(rows), device=rows.device), self.experts.labels[rows]]

    def prediction_sets(self, f: Tensor, probabilities: Tensor, coverage: float) -> Tensor:
        """Whether each class is in the jackknife+ set of each image f (B, D): (B, C).

        probabilities: those of the head (B, C). coverage: 1 - α; the guarantee is 1 - 2α.
        """
        batch_size = max(MAX_VALUES // max(len(self._rows) * probabilities.shape[1], 1), 1)
        losses = (self._losses_without_each(batch) for batch in torch.split(f, batch_size))
        parts = [jackknife_plus(self._held_out_losses, each, coverage) for each in losses]
        return add_best(torch.cat(parts), probabilities)

    def _losses_without_each(self, f: Tensor) -> Tensor:
        """-log p (B, n, C) of images f (B, D) by the models without each of the images `_rows`."""
        parts = zip(self.experts.parts, self.selected, self.experts.split(f), strict=True)
        logits = torch.stack([self._logits_without_each(*part) for part in parts]).sum(dim=0)
        return -logits.log_softmax(dim=-1)

    def _logits_without_each(self, experts: Experts, n: Hyperparameters, f: Tensor) -> Tensor:
        """Logits (B, n, C) of images f (B, D) by one encoder's models without each of the images `_rows`."""
        logits = n.gaussian * experts.gaussian.whiten(n.ridge).scores_without_each(f, self._rows, n.text_shots)
        logits = logits + n.text * experts.text_logits(f)[:, None, :]
        if experts.kernel is not None and n.kernel > 0:
            logits = logits + n.kernel * experts.kernel.predictions_without_each(f, self._rows, n.kernel_ridge)
        return logits
