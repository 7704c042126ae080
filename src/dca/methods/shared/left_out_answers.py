"""What images that were left out say about new ones: p-values for "none of these", and sets of classes.

An image is familiar if kernel ridge predicts some class strongly: far from all training images every prediction falls
to zero. The p-value compares the largest prediction with those of left-out training images. docs/closed-form.md
compares it with the largest probability and with the zero-shot score MCM.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dca.methods.shared.kernel_ridge import KernelRidge
from dca.methods.shared.pooled_choice import Experts, Numbers, left_out_logits, some_of
from dca.methods.shared.prediction_sets import jackknife_plus, p_values, with_best
from dca.methods.shared.text_gaussian import has_fellows

# Most images whose models are compared with a new image in prediction sets, and numbers in the largest tensor.
CALIBRATION, NUMBERS = 1000, 2**22


@dataclass(frozen=True)
class LeftOutAnswers:
    """Left-out images of a closed form.

    experts: all training images. numbers: those of the head. kernel: over the images that say what is familiar.
    """

    experts: Experts
    numbers: Numbers
    kernel: KernelRidge

    @cached_property
    def _familiar(self) -> Tensor:
        """Largest prediction for every left-out image, (n,)."""
        able = has_fellows(self.kernel.labels, self.kernel.groups)
        return self.kernel.left_out(self.numbers.kernel_ridge)[able].amax(dim=-1)

    @cached_property
    def _coefficients(self) -> Tensor:
        return self.kernel.coefficients(self.numbers.kernel_ridge)

    def p_values(self, f: Tensor) -> Tensor:
        """p-value of each image f (B, D) under "it is of one of the classes": (B,)."""
        found = (self.kernel.kernel(f) @ self._coefficients).amax(dim=-1)
        return p_values(-self._familiar, -found)

    @cached_property
    def _rows(self) -> Tensor:
        """Images without copies that can be left out, at most `CALIBRATION` of them."""
        source = self.experts.gaussian
        alone = torch.bincount(source.groups)[source.groups] == 1
        rows = (alone & source.fellows).nonzero()[:, 0]
        return rows[some_of(len(rows), CALIBRATION)]

    @cached_property
    def _held(self) -> Tensor:
        """-log p of the own class of the images `_rows` by the models without them: (n,)."""
        rows = self._rows
        logits = left_out_logits(self.experts, self.numbers, repaired=False)[rows]
        return -logits.log_softmax(dim=-1)[torch.arange(len(rows), device=rows.device), self.experts.labels[rows]]

    def sets(self, f: Tensor, probabilities: Tensor, coverage: float) -> Tensor:
        """Whether each class is in the jackknife+ set of each image f (B, D): (B, C).

        probabilities: those of the head (B, C). coverage: 1 - α; the guarantee is 1 - 2α.
        """
        at_once = max(NUMBERS // max(len(self._rows) * probabilities.shape[1], 1), 1)
        parts = [jackknife_plus(self._held, self._without(some), coverage) for some in torch.split(f, at_once)]
        return with_best(torch.cat(parts), probabilities)

    def _without(self, f: Tensor) -> Tensor:
        """-log p (B, n, C) of images f (B, D) by the models without each of the images `_rows`."""
        source, n = self.experts.gaussian, self.numbers
        logits = n.gaussian * source.whitened(n.ridge).without_each(f, self._rows, n.text_shots)
        logits = logits + n.text * self.experts.text_logits(f)[:, None, :]
        if self.experts.kernel is not None and n.kernel > 0:
            logits = logits + n.kernel * self.experts.kernel.without_each(f, self._rows, n.kernel_ridge)
        return -logits.log_softmax(dim=-1)
