"""The product of two models' probabilities, and what the second one is worth beside the first.

    p(c | x) ∝ p₁(c | x)^a  p₂(c | x)^b,      a, b >= 0

a and b have the least log-loss on images that neither model has seen; every class has the same weight, and
labels are smoothed as for the closed form (`pooled_choice`). The second model is only taken in if it lowers that
loss by more than noise: by more than 1/√2 standard errors of the paired differences of the images' losses. Since b is
fitted on the same images, the difference is not zero where the model is worthless. There, with z the
standardised slope of the loss at b = 0, the step to the minimum gains z² / 2 in all, and the images' differences
scatter by |z|: the gain is z / 2 standard errors. So the rule asks for z > √2, which is Akaike's criterion: one more
parameter must gain more than it is expected to lose on new images. A worthless model passes once in 13 times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dca.core.calibration import FLOOR, macro_accuracy
from dca.methods.shared.expert_scales import class_weights, fit_scales
from dca.methods.shared.heads import Head

Rows = NDArray[np.float64]
# How many standard errors the second model must gain to be taken in.
ERRORS = 0.5**0.5


@dataclass(frozen=True)
class Worth:
    """What the second model is worth.

    first, second: a and b; 1 and 0 if the second is left out. points: change of the accuracy, a fraction.
    loss: how much lower the log-loss is; both for images that were left out, against the first model alone.
    """

    first: float = 1.0
    second: float = 0.0
    points: float = 0.0
    loss: float = 0.0


def log_product(first: Tensor, second: Tensor, a: float, b: float) -> Tensor:
    """Inputs of the softmax, float64: a log p₁ + b log p₂ of probabilities (B, C)."""
    return a * _logs(first) + b * _logs(second)


def product(first: Rows, second: Rows, worth: Worth) -> Rows:
    """Probabilities (N, C) of the product; rows of NaN where one of the two has no prediction."""
    logits = log_product(torch.from_numpy(first), torch.from_numpy(second), worth.first, worth.second)
    found: Rows = logits.softmax(dim=-1).numpy()
    return found


def weigh(first: Rows, second: Rows, labels: NDArray[np.int64]) -> Worth:
    """What the second model is worth, from probabilities (N, C) by models that have not seen the images.

    labels: (N,). Rows of NaN do not count.
    """
    known = np.isfinite(first).all(axis=1) & np.isfinite(second).all(axis=1)
    if not known.any():
        return Worth()
    y = torch.from_numpy(labels[known])
    scores = torch.stack([_logs(torch.from_numpy(rows[known])) for rows in (first, second)])
    weights, smoothing = class_weights(y), 1 / (len(y) + 2)
    alone = fit_scales(scores[:1], y, weights, smoothing=smoothing).values
    both = fit_scales(scores, y, weights, smoothing=smoothing).values
    before, after = alone[0] * scores[0], torch.einsum("e,enc->nc", both, scores)
    gains = _losses(before, y, smoothing) - _losses(after, y, smoothing)
    gain = (weights * gains).sum()
    error = (weights * (gains - gain)).square().sum().sqrt()
    if both[1] <= 0 or not gain > ERRORS * error:
        return Worth()
    points = _accuracy(after, y) - _accuracy(scores[0], y)
    return Worth(float(both[0]), float(both[1]), points, float(gain))


def _logs(p: Tensor) -> Tensor:
    return p.double().clamp_min(FLOOR).log()


def _losses(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Log-loss of each image, (N,), with smoothed labels: logits (N, C), labels (N,)."""
    logs = logits.log_softmax(dim=-1)
    own = logs.gather(1, labels[:, None])[:, 0]
    return -(1 - smoothing) * own - smoothing * logs.mean(dim=-1)


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    return macro_accuracy((logits.argmax(dim=-1) == labels).numpy(), labels.numpy())[0]


@dataclass(frozen=True)
class ProductHead(Head):
    """Product of two heads. The first `size` features of an image are those of the first head. a, b: exponents."""

    first: Head
    second: Head
    size: int
    a: float
    b: float

    def __call__(self, f: Tensor) -> Tensor:
        """Image features f (B, D₁ + D₂) -> probabilities (B, C)."""
        logits = log_product(self.first(f[:, : self.size]), self.second(f[:, self.size :]), self.a, self.b)
        return logits.softmax(dim=-1).to(f.dtype)

    @property
    def images_at_once(self) -> int:
        """Most images that both heads take."""
        return min(self.first.images_at_once, self.second.images_at_once)
