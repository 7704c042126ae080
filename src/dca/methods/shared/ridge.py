"""Ridge regression to one-hot labels, and its exact leave-one-out predictions.

    min over U of  ‖Z U - Y‖² + λ ‖U‖²,    A = ZᵀZ + λ I,   U = A⁻¹ Zᵀ Y,   H = Z A⁻¹ Zᵀ

The prediction for an image by the model without it is y_i - (y_i - ŷ_i) / (1 - H_ii); images B that leave together
have Y_B - (I - H_BB)⁻¹ (Y_B - Ŷ_B). All computations are in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.methods.shared.text_gaussian import groups_of


@dataclass(frozen=True)
class Ridge:
    """Rows z (N, D) in float64, labels (N,) of C classes, and λ > 0."""

    z: Tensor
    labels: Tensor
    classes: int
    strength: float

    @cached_property
    def _factor(self) -> Tensor:
        """Cholesky factor of A, (D, D)."""
        D = self.z.shape[1]
        penalty = self.strength * torch.eye(D, dtype=self.z.dtype, device=self.z.device)
        factor: Tensor = torch.linalg.cholesky(self.z.T @ self.z + penalty)
        return factor

    @cached_property
    def targets(self) -> Tensor:
        """Y, one-hot labels (N, C)."""
        return F.one_hot(self.labels, self.classes).to(self.z.dtype)

    @cached_property
    def coefficients(self) -> Tensor:
        """U, (D, C)."""
        return torch.cholesky_solve(self.z.T @ self.targets, self._factor)

    def left_out(self, groups: Tensor) -> Tensor:
        """Predictions (N, C) for every image by the model without it and its copies, which share a number (N,)."""
        missed = self.targets - self.z @ self.coefficients
        half = torch.linalg.solve_triangular(self._factor, self.z.T, upper=False)  # H is halfᵀ half
        held: Tensor = self.targets - missed / (1 - half.square().sum(dim=0))[:, None]
        for rows in groups_of(groups):
            own = half[:, rows]
            rest = torch.eye(len(rows), dtype=own.dtype, device=own.device) - own.T @ own
            held[rows] = self.targets[rows] - torch.linalg.solve(rest, missed[rows])
        return held
