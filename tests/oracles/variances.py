"""The variance of every feature in the ridge of the closed form's Gaussian, image by image."""

from __future__ import annotations

import torch
from torch import Tensor


def literal_variances(x: Tensor, y: Tensor) -> Tensor:
    """V of images (N, D) with labels (N,), as a matrix (D, D)."""
    total, nu = torch.zeros(x.shape[1], dtype=torch.float64), len(x) - len(set(y.tolist()))
    for c in set(y.tolist()):
        for one in x[y == c]:
            total += (one - x[y == c].mean(0)) ** 2
    mean = total.sum() / nu / x.shape[1]
    if all(value >= 0 for value in x.flatten().tolist()):
        return mean * torch.eye(x.shape[1], dtype=torch.float64)
    return torch.diag((total + 20 * mean) / (nu + 20))
