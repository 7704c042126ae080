"""What held-out predictions of the training images say about new images: p-values and prediction sets.

An image is familiar if kernel ridge predicts some class strongly: far from all training images every prediction falls
to zero. The p-value compares the largest prediction with those of held-out training images. docs/closed-form.md
compares it with the largest probability and with the zero-shot score MCM. The sets are those of jackknife+.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dca.methods.shared.experts import KernelRidge, has_peers
from dca.methods.shared.product_of_experts import Experts, Hyperparameters, held_out_logits, subsample
from dca.stats.conformal import add_best, conformal_p_values, jackknife_plus

# Most images whose models are compared with a new image in prediction sets, and values in the largest tensor.
MAX_CALIBRATION_IMAGES, MAX_VALUES = 1000, 2**22


@dataclass(frozen=True)
class ConformalPredictor:
    """p-values and prediction sets of new images, from held-out predictions of the training images.

    experts: all training images. selected: hyperparameters of the head. kernel: over the images that define what is
    familiar.
    """

    experts: Experts
    selected: Hyperparameters
    kernel: KernelRidge

    @cached_property
    def _calibration_scores(self) -> Tensor:
        """Largest prediction for every held-out image, (n,)."""
        able = has_peers(self.kernel.labels, self.kernel.groups)
        return self.kernel.held_out(self.selected.kernel_ridge)[able].amax(dim=-1)

    @cached_property
    def _coefficients(self) -> Tensor:
        return self.kernel.coefficients(self.selected.kernel_ridge)

    def p_values(self, f: Tensor) -> Tensor:
        """p-value of each image f (B, D) under "it is of one of the classes": (B,)."""
        scores = (self.kernel.kernel_values(f) @ self._coefficients).amax(dim=-1)
        return conformal_p_values(-self._calibration_scores, -scores)

    @cached_property
    def _rows(self) -> Tensor:
        """Images without copies that can be left out, at most `MAX_CALIBRATION_IMAGES` of them."""
        source = self.experts.gaussian
        alone = torch.bincount(source.groups)[source.groups] == 1
        rows = (alone & source.peers).nonzero()[:, 0]
        return rows[subsample(len(rows), MAX_CALIBRATION_IMAGES)]

    @cached_property
    def _held_out_losses(self) -> Tensor:
        """-log p of the own class of the images `_rows` by the models without them: (n,)."""
        rows = self._rows
        logits = held_out_logits(self.experts, self.selected, corrected=False)[rows]
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
        source, n = self.experts.gaussian, self.selected
        logits = n.gaussian * source.whiten(n.ridge).scores_without_each(f, self._rows, n.text_shots)
        logits = logits + n.text * self.experts.text_logits(f)[:, None, :]
        if self.experts.kernel is not None and n.kernel > 0:
            logits = logits + n.kernel * self.experts.kernel.predictions_without_each(f, self._rows, n.kernel_ridge)
        return -logits.log_softmax(dim=-1)
