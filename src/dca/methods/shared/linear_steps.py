"""Steps of a linear softmax classifier without bias, with the gradient in closed form.

    L = mean_i CE(W x_i, y_i),    dL/dW = 1/R Σ_i (p_i - e_{y_i}) x_iᵀ

The batches of all steps are gathered before the first, and losses are computed after the last: of one step only two
matrix products and a softmax are left. The operations are those of backpropagation, so gradients equal them to the bit.
"""

from __future__ import annotations

import torch
from torch import Tensor


class LinearSteps:
    """S steps for weights W (C, D); see `methods.problem.Steps`.

    x: rows (S, R, D). labels: (S, R). images: how many rows of each step, from the first, count as images.
    """

    def __init__(self, weight: Tensor, x: Tensor, labels: Tensor, images: int) -> None:
        S, R = labels.shape
        self.weight, self.labels, self.images = weight.detach(), labels, images
        self.logs = x.new_empty(S, R, len(weight))
        # What backpropagation hands to the logarithm of the softmax.
        outer = torch.zeros_like(self.logs).scatter_(2, labels[:, :, None], -1 / R)
        self._steps = list(zip(x, self.logs, outer, strict=True))

    @torch.no_grad()
    def gradients(self, number: int) -> tuple[Tensor]:
        """The gradient (C, D) of one step at the present weights."""
        x, logs, outer = self._steps[number]
        torch.log_softmax(x @ self.weight.T, dim=-1, out=logs)
        inner = torch.ops.aten._log_softmax_backward_data(outer, logs, -1, logs.dtype)
        return (inner.T @ x,)

    def outcome(self) -> tuple[dict[str, Tensor], Tensor]:
        """The loss and the number of correct images of each step, (S,)."""
        right = self.logs[:, : self.images].argmax(dim=-1) == self.labels[:, : self.images]
        losses = -self.logs.gather(2, self.labels[:, :, None]).mean(dim=(1, 2))
        return {"cls": losses}, right.sum(dim=1)
