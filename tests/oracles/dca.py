"""DCA's equations written out: dense matrices, one loop an index, nothing clever."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def dense_covariance(x: Tensor, center: Tensor, gamma1: float, gamma2: float, normalize: bool) -> Tensor:
    """Σ̂ of the rows x (n, D) about `center`: sample covariance, shrinkage, correlation. (D, D)."""
    n, D = x.shape
    sigma = torch.zeros(D, D, dtype=x.dtype)
    for row in x:
        sigma += torch.outer(row - center, row - center) / (n - 1)
    v_d = sum(sigma[i, i] for i in range(D)) / D
    v_o = (sigma.sum() - sigma.trace()) / (D * (D - 1))
    identity, ones = torch.eye(D, dtype=x.dtype), torch.ones(D, D, dtype=x.dtype)
    shrunk = sigma + gamma1 * v_d * identity + gamma2 * v_o * (ones - identity)
    if normalize:
        scale = shrunk.diagonal().sqrt()
        shrunk = shrunk / torch.outer(scale, scale)
    return shrunk


def dense_floored(x: Tensor, center: Tensor, gamma1: float, gamma2: float, normalize: bool, floor: float) -> Tensor:
    """The same with all eigenvalues of the shrunk covariance raised to `floor` times their mean."""
    lambdas, vectors = torch.linalg.eigh(dense_covariance(x, center, gamma1, gamma2, False))
    raised = vectors @ torch.diag(torch.maximum(lambdas, floor * lambdas.mean())) @ vectors.T
    if normalize:
        scale = raised.diagonal().sqrt()
        raised = raised / torch.outer(scale, scale)
    return raised


def dense_distance(sigma: Tensor, f: Tensor, u: Tensor) -> Tensor:
    """(f - u)ᵀ Σ̂⁻¹ (f - u)."""
    return (f - u) @ torch.linalg.inv(sigma) @ (f - u)


def probability(distances: list[float], tau: float, eps: float, form: str) -> list[float]:
    """Softmax over classes of τ/(d+ε) or -τd/2, one class at a time."""
    values = [tau / (d + eps) if form == "inverse" else -tau * d / 2 for d in distances]
    top = max(values)
    weights = [math.exp(v - top) for v in values]
    return [w / sum(weights) for w in weights]


def loss_cls(f: Tensor, u: Tensor, labels: Tensor, tau: float, eps: float) -> float:
    """Σ_m mean_i -log p_m(y_i | x_i) with d_e; u: (M, C, D)."""
    total = 0.0
    for of_prompt in u:
        for i, y in enumerate(labels.tolist()):
            distances = [float((f[i] - u_c).square().sum()) for u_c in of_prompt]
            total -= math.log(probability(distances, tau, eps, "inverse")[y]) / len(f)
    return total


def loss_in(f: Tensor, centers: Tensor, sigmas: list[Tensor], labels: Tensor, form: str, reduction: str) -> float:
    """Σ_i of the distance of f_i to the centre of its class, in the chosen form and reduction."""
    total = 0.0
    for i, y in enumerate(labels.tolist()):
        delta = f[i] - centers[y]
        if form == "mahalanobis":
            total += float(delta @ torch.linalg.inv(sigmas[y]) @ delta)
        else:
            total += sum(float(abs(d)) if form == "l1" else float(d) ** 2 for d in delta)
    if reduction == "sum":
        return total
    return total / len(f) / (f.shape[1] if reduction == "element" else 1)


def loss_ts(text: Tensor, reduction: str) -> float:
    """-Σ_{i≠j} ‖u_i - u_j‖² over all ordered pairs; text: (n, D)."""
    n = len(text)
    total = -sum(float((text[i] - text[j]).square().sum()) for i in range(n) for j in range(n) if i != j)
    return total if reduction == "sum" else total / (n * (n - 1))
