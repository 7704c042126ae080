"""Kernel ridge regression over feature vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from dca.estimators.base import FeatureHead
from dca.methods.shared.expert_scales import class_weights, fit_scales
from dca.methods.shared.kernel_ridge import KernelRidge
from dca.methods.shared.pooled_head import PooledHead
from dca.methods.shared.text_gaussian import has_fellows


class KernelRidgeHead(FeatureHead):
    """Kernel ridge regression to one-hot labels, the third expert of the method `closed_form`.

    Args:
        ridge: ρ, ridge of the kernel in units of its mean eigenvalue.
        width: w of exp(-w (1 - x·x') / mean(1 - x·x')).
        scale: Scale of the logits. None: the one with the least log-loss of predictions for left-out rows; 1 if every
            class has a single row.

    Attributes:
        scale_: The scale that is used.

    Example:
        >>> from dca.estimators import KernelRidgeHead
        >>> KernelRidgeHead().fit([[1, 0], [0, 1]], ["right", "up"]).predict([[0.9, 0.2]]).tolist()
        ['right']
    """

    scale_: float

    def __init__(self, *, ridge: float = 0.1, width: float = 2.0, scale: float | None = None) -> None:
        self.ridge = ridge
        self.width = width
        self.scale = scale

    def _make_head(self, features: Tensor, labels: Tensor) -> PooledHead:
        C, D = len(self.classes_), features.shape[1]
        kernel = KernelRidge(features, labels, C, torch.arange(len(labels)), self.width)
        self.scale_ = left_out_scale(kernel, self.ridge) if self.scale is None else self.scale
        weight, bias = features.new_zeros(C, D), features.new_zeros(C)
        return PooledHead.of(weight, bias, kernel, self.scale_ * kernel.coefficients(self.ridge), torch.float64)


def left_out_scale(kernel: KernelRidge, ridge: float) -> float:
    """The scale of least log-loss for left-out rows; labels are smoothed, so that it is finite."""
    y = kernel.labels
    rows = has_fellows(y, kernel.groups)
    if not rows.any():
        return 1.0
    held, y = kernel.left_out(ridge)[rows], y[rows]
    found = fit_scales(held[None], y, class_weights(y), smoothing=1 / (len(kernel.labels) + 2)).values
    # A scale of 0 would make all classes equal, also where the order of the predictions means something.
    return max(float(found[0]), 1.0)
