"""Inverse covariances of all classes in one table, stored without padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dca.methods.shared import gaussian, metric
from dca.methods.shared.gaussian import Gaussian
from dca.methods.shared.metric import Precision
from dca.methods.shared.shots import Shots


@dataclass(frozen=True)
class ClassPrecisions:
    """Σ̂⁻¹ of C classes (`metric.Precision`); classes that share one share its rows.

    diagonal, ones: (C, D). sign, log_det: (C,). rows: (S + 1, D), the last one zero. table: (C, R),
    which rows belong to each class, padded with S. groups: classes with equally many rows R as their
    places (c,), the places whose Σ̂⁻¹ they have, (c,) or (1,) if they share one, and R.
    """

    diagonal: Tensor
    ones: Tensor
    sign: Tensor
    log_det: Tensor
    rows: Tensor
    table: Tensor
    groups: tuple[tuple[Tensor, Tensor, int], ...]

    @classmethod
    def of(cls, shots: Shots, head: Gaussian, dtype: torch.dtype) -> ClassPrecisions:
        """About the means of the images, computed in float64 and kept in `dtype`."""
        C, D = len(shots.counts), shots.features.shape[-1]
        new = shots.features.new_zeros
        diagonal, ones = new(C, D, dtype=dtype), new(C, D, dtype=dtype)
        sign, log_det = new(C, dtype=dtype), new(C, dtype=dtype)
        rows, groups, lines, stored = [], [], [], 0
        for places, form in gaussian.precisions(shots, head):
            diagonal[places], ones[places] = form.diagonal.to(dtype), form.ones.to(dtype)
            sign[places], log_det[places] = form.sign.to(dtype), form.log_det.to(dtype)
            c, R = form.rows.shape[:2]
            rows.append(form.rows.flatten(0, 1).to(dtype))
            lines.append((places, stored + torch.arange(c * R, device=places.device).view(c, R)))
            groups.append((places, places[:c], R))
            stored += c * R
        table = torch.full((C, max(R for *_, R in groups)), stored, device=shots.counts.device)
        for places, line in lines:
            table[places, : line.shape[1]] = line
        return cls(diagonal, ones, sign, log_det, torch.cat([*rows, new(1, D, dtype=dtype)]), table, tuple(groups))

    def __getitem__(self, labels: Tensor) -> Precision:
        """Σ̂⁻¹ of the classes `labels` (B,), padded to the most rows of any class: a batch (B,)."""
        return self._take(labels, self.table.shape[1])

    def _take(self, labels: Tensor, R: int) -> Precision:
        rows = self.rows[self.table[labels, :R]]
        return Precision(self.diagonal[labels], self.ones[labels], self.sign[labels], rows, self.log_det[labels])

    def distances(self, f: Tensor, u: Tensor) -> Tensor:
        """d_m of every f (N, D) to every class about its u (M, C, D): (M, C, N)."""
        found = [metric.mahalanobis(self._take(first, R), f, u[:, places]) for places, first, R in self.groups]
        order = torch.cat([places for places, *_ in self.groups]).argsort()
        return torch.cat(found, dim=1)[:, order]
