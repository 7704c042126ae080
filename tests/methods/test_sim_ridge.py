"""methods/shared/ridge.py against the solution by its normal equations, refitted without each image."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dca.methods.sim import Ridge


def solved(z: Tensor, labels: Tensor, classes: int, strength: float) -> Tensor:
    Y = torch.stack([(labels == c).double() for c in range(classes)], dim=1)
    return torch.linalg.inv(z.T @ z + strength * torch.eye(z.shape[1], dtype=torch.float64)) @ z.T @ Y


@pytest.mark.parametrize("shape", [(7, 12), (30, 5), (6, 1)])
@pytest.mark.parametrize("strength", [1e-3, 0.1, 10.0])
def test_left_out_predictions_are_those_of_a_refit(shape: tuple[int, int], strength: float) -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(*shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, shape[:1], generator=generator)
    groups = torch.arange(len(z))
    groups[[1, 4, 5]] = 1
    ridge = Ridge(z, labels, 4, strength)
    torch.testing.assert_close(ridge.coefficients, solved(z, labels, 4, strength), atol=1e-8, rtol=1e-8)
    held = ridge.held_out(groups)
    for i in range(len(z)):
        kept = groups != groups[i]
        torch.testing.assert_close(held[i], z[i] @ solved(z[kept], labels[kept], 4, strength), atol=1e-8, rtol=1e-8)
