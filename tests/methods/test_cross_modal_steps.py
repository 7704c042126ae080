from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from dca.methods.cross_modal import LinearSteps


@pytest.mark.parametrize(("S", "R", "D", "C", "images"), [(3, 26, 16, 10, 16), (1, 4, 32, 2, 4), (4, 8, 5, 7, 1)])
def test_gradients_losses_and_counts_are_those_of_backpropagation(S: int, R: int, D: int, C: int, images: int) -> None:
    generator = torch.Generator().manual_seed(S)
    x = 20 * torch.randn(S, R, D, generator=generator)
    labels = torch.randint(C, (S, R), generator=generator)
    weight = torch.nn.Parameter(torch.randn(C, D, generator=generator))
    steps = LinearSteps(weight, x, labels, images)
    losses, right = [], []
    for s in range(S):
        logits = x[s] @ weight.T
        loss = F.cross_entropy(logits, labels[s])
        (expected,) = torch.autograd.grad(loss, [weight])
        (gradient,) = steps.gradients(s)
        torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-6)
        losses.append(loss.detach())
        right.append((logits[:images].argmax(-1) == labels[s, :images]).sum())
        with torch.no_grad():
            weight -= 0.01 * gradient  # the next step is taken from here
    terms, counts = steps.summarize()
    torch.testing.assert_close(terms["cls"], torch.stack(losses))
    assert torch.equal(counts, torch.stack(right))
