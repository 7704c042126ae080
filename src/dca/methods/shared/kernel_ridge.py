"""Kernel ridge regression to one-hot labels over the training images, and its exact leave-one-out predictions.

    κ(x, x') = exp(-w (1 - x·x') / s),   s = mean over pairs of training images of 1 - x·x'
    min over f of  Σ_i ω_i ‖f(x_i) - y_i‖² + λ ‖f‖²,   ω_i = N / (C n_{y_i}), so that all classes count the same
    G = (K + λ Ω⁻¹)⁻¹,   A = G Y,   f(x) = κ(x, ·) A,   λ = ρ times the mean eigenvalue of Ω^½ K Ω^½

The prediction for an image by the model without it is y_i - A_i / G_ii; images B that leave together have
Y_B - G_BB⁻¹ A_B. One eigendecomposition serves every ρ. All computations are in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.methods.shared.text_gaussian import groups_of


@dataclass(frozen=True)
class KernelRidge:
    """Unit features x (N, D) and labels (N,) of C classes, float64. groups: (N,), copies share a number. width: w."""

    x: Tensor
    labels: Tensor
    classes: int
    groups: Tensor
    width: float

    @cached_property
    def rate(self) -> float:
        """W / s; kernel values are exp(-rate (1 - x·x'))."""
        n = len(self.x)
        apart = float((n - self.x.sum(dim=0).square().sum() / n) / max(n - 1, 1))  # over pairs of two images
        return self.width / max(apart, 1e-12)

    def kernel(self, x: Tensor) -> Tensor:
        """κ of unit features x (B, D) and the training images: (B, N)."""
        return (self.rate * (x.double() @ self.x.T - 1)).exp()

    @cached_property
    def targets(self) -> Tensor:
        """Y, one-hot labels (N, C)."""
        return F.one_hot(self.labels, self.classes).double()

    @cached_property
    def _root(self) -> Tensor:
        """√ω_i, (N,)."""
        counts = torch.bincount(self.labels, minlength=self.classes).double()
        return (len(self.labels) / ((counts > 0).sum() * counts[self.labels])).sqrt()

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        weighted = self._root[:, None] * self.kernel(self.x) * self._root
        values, vectors = torch.linalg.eigh(weighted)
        return values.clamp_min(0), vectors

    def _inverse(self, rho: float) -> tuple[Tensor, Tensor]:
        """G = B diag(1 / (e + λ)) Bᵀ: B (N, N) and 1 / (e + λ) (N,)."""
        values, vectors = self._spectrum
        return self._root[:, None] * vectors, 1 / (values + rho * values.mean())

    def coefficients(self, rho: float) -> Tensor:
        """A = G Y, (N, C)."""
        B, inverse = self._inverse(rho)
        return B @ (inverse[:, None] * (B.T @ self.targets))

    def left_out(self, rho: float) -> Tensor:
        """Predictions (N, C) for every image by the model without it and its copies."""
        B, inverse = self._inverse(rho)
        A = self.coefficients(rho)
        held = self.targets - A / (B.square() @ inverse)[:, None]
        for rows in groups_of(self.groups):
            block = (B[rows] * inverse) @ B[rows].T
            held[rows] = self.targets[rows] - torch.linalg.solve(block, A[rows])
        return held

    def without_each(self, x: Tensor, rows: Tensor, rho: float) -> Tensor:
        """Predictions for new images x (B, D) by the models without image i of `rows` (n,): (B, n, C)."""
        B, inverse = self._inverse(rho)
        A, values = self.coefficients(rho), self.kernel(x)
        diagonal = (B[rows].square() @ inverse)[:, None]
        change = (values @ B * inverse) @ B[rows].T  # κ(x, ·) G at i
        return (values @ A)[:, None, :] - change[..., None] * (A[rows] / diagonal)
