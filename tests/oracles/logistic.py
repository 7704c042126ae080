"""The linear probe as written: L-BFGS from zero for every c, no factorisation shared, no warm start."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.methods.linear_probe import best_decade, objective
from dca.methods.shared.frozen_features import accuracy

Solution = tuple[Tensor, Tensor]


def solve(features: Tensor, labels: Tensor, classes: int, c: float, *, iterations: int = 200) -> Solution:
    """The minimum of `objective`, in float64: W (C, D) and b (C,).

    L-BFGS stops where rounding hides that the objective still falls; `polish` finds the rest of the way.
    """
    x = features.double()
    basis = torch.linalg.qr(x.T)[0] if len(x) < x.shape[1] else None
    x = x if basis is None else x @ basis
    W = x.new_zeros(classes, x.shape[1]).requires_grad_()
    b = x.new_zeros(classes).requires_grad_()
    solver = torch.optim.LBFGS(
        [W, b], max_iter=iterations, tolerance_grad=1e-8, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        solver.zero_grad()
        value = objective(W, b, x, labels, c) / (c * len(x))
        value.backward()  # type: ignore[no-untyped-call]
        return float(value.detach())

    solver.step(closure)  # type: ignore[no-untyped-call]
    W, b = polish(W.detach(), b.detach(), x, labels, c)
    return (W if basis is None else W @ basis.T), b


def polish(W: Tensor, b: Tensor, x: Tensor, labels: Tensor, c: float) -> Solution:
    """Newton steps with the whole Hessian, λ I (not for b) + mean_i (diag(p_i) - p_i p_iᵀ) ⊗ x_i x_iᵀ."""
    N, C = len(x), len(b)
    x1 = torch.cat([x, x.new_ones(N, 1)], dim=1)
    ridge = torch.full((C, x1.shape[1]), 1 / (c * N), dtype=x.dtype)
    ridge[:, -1] = 0

    def value(A: Tensor) -> Tensor:
        return objective(A[:, :-1], A[:, -1], x, labels, c) / (c * N)

    A = torch.cat([W, b[:, None]], dim=1)
    for _ in range(100):
        p = (x1 @ A.T).softmax(dim=-1)
        gradient = (p - F.one_hot(labels, C)).T @ x1 / N + ridge * A
        inner = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        hessian = torch.einsum("nab,ni,nj->aibj", inner, x1, x1).reshape(A.numel(), -1) / N + ridge.flatten().diag()
        # A constant added to b changes nothing, so the Hessian has no inverse.
        step = (torch.linalg.pinv(hessian, rtol=1e-13, hermitian=True) @ gradient.flatten()).view_as(A)
        while step.norm() > 1e-12 * A.norm() and value(A - step) > value(A) + 1e-14:
            step = step / 2
        A = A - step
        if step.norm() <= 1e-10 * A.norm():
            break
    return A[:, :-1], A[:, -1] - A[:, -1].mean()


def search(features: Tensor, labels: Tensor, classes: int, unseen: Tensor, truth: Tensor) -> float:
    """The best c on validation features `unseen` (M, D) with labels `truth` (M,)."""
    known: dict[float, float] = {}

    def score(decade: float) -> float:
        if decade not in known:
            weight, bias = solve(features, labels, classes, 10.0**decade)
            known[decade] = accuracy(unseen.double() @ weight.T + bias, truth)
        return known[decade]

    return math.pow(10.0, best_decade(score))
