"""Two observations of the same computation, and how far they are apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dca.methods.base import Batch, TrainedMethod

# Largest accepted differences: of logits and of the loss absolute, of gradients relative to the largest entry.
LOGITS, LOSS, GRADIENT = 1e-4, 1e-5, 1e-4


@dataclass(frozen=True)
class Observed:
    """Logits of the test images, and of one training step the loss and the gradients by name."""

    logits: Tensor
    loss: Tensor | None = None
    gradients: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """Worst differences; None where a method is not trained by gradients."""

    logits: float
    loss: float | None
    gradient: float | None

    @property
    def agrees(self) -> bool:
        """Whether all are within their limits; NaN is not."""
        found = ((self.logits, LOGITS), (self.loss, LOSS), (self.gradient, GRADIENT))
        return all(value is None or value <= limit for value, limit in found)


def largest_difference(one: Tensor, other: Tensor) -> float:
    """Largest absolute difference of two tensors of the same shape."""
    if one.shape != other.shape:
        raise ValueError(f"shapes {tuple(one.shape)} and {tuple(other.shape)} differ")
    return float((one.detach().double() - other.detach().double()).abs().max())


def difference(theirs: Observed, ours: Observed) -> Difference:
    """How far two observations are apart."""
    if theirs.gradients.keys() != ours.gradients.keys():
        raise ValueError(f"gradients of {sorted(theirs.gradients)} and of {sorted(ours.gradients)}")
    relative = [
        largest_difference(gradient, ours.gradients[name]) / float(gradient.detach().abs().max().clamp_min(1e-30))
        for name, gradient in theirs.gradients.items()
    ]
    return Difference(
        logits=largest_difference(theirs.logits, ours.logits),
        loss=None if theirs.loss is None or ours.loss is None else largest_difference(theirs.loss, ours.loss),
        gradient=max(relative) if relative else None,
    )


def run_step(method: TrainedMethod, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of one training step of our method, and the gradients by parameter."""
    loss = torch.stack(list(method.step(batch).terms.values())).sum()
    parameters = dict(method.named_parameters())
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    return loss.detach(), dict(zip(parameters, gradients, strict=True))


@torch.no_grad()
def finish_and_classify(method: Any, train: Any, test: Any) -> Tensor:
    """Logits of the test images by our finished method."""
    method.finish(train)
    method.build_head()
    logits: Tensor = method.head.logits(method.encode_all(test))
    return logits
