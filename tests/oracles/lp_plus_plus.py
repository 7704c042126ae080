"""LP++ (Huang et al., CVPR 2024) with gradients by backpropagation and torch's own optimiser, as one would write it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def train(
    f: Tensor,
    labels: Tensor,
    text: Tensor,
    *,
    iterations: int,
    every: int = 10,
    start: float = 250.0,
    momentum: float = 0.9,
    reset: bool = False,
    bias: bool = False,
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """w, α and b after every iteration. f (n, D), text (C, D): unit vectors in float64. reset: α's gradient is."""
    n, classes = len(f), len(text)
    sums = torch.stack([f[labels == c].sum(dim=0) for c in range(classes)])
    cosines = torch.stack([(f[labels == c] @ text[c]).mean() for c in range(classes)])
    w = sums.clone().requires_grad_()
    alpha = torch.full((classes,), start * float(cosines.mean()), dtype=f.dtype, requires_grad=True)
    b = torch.zeros(classes, dtype=f.dtype, requires_grad=True)
    rate = 4 * n / float(torch.linalg.matrix_norm(f, 2) ** 2)
    alpha_rate = n / (4 * max(float(((f @ t) ** 2).sum()) for t in text))
    optimizer = torch.optim.SGD([w, b] if bias else [w], lr=rate, momentum=momentum)
    states = []
    for iteration in range(1, iterations + 1):
        logits = torch.stack([f @ w[c] + alpha[c] * (f @ text[c]) + b[c] for c in range(classes)], dim=1)
        optimizer.zero_grad()
        if reset:
            alpha.grad = None
        F.cross_entropy(logits, labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if iteration % every == 0:
            assert alpha.grad is not None
            alpha.data -= alpha_rate * alpha.grad
        states.append((w.detach().clone(), alpha.detach().clone(), b.detach().clone()))
    return states
