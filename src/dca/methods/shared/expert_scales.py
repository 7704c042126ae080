"""Scales of experts: softmax( Σ_e s_e z_e ) with s_e >= 0, fitted on held-out scores.

The weighted log-loss with smoothed labels is convex in the scales, of which there are few. Every iteration solves
the Newton step under s >= 0 exactly, by trying each set of scales that may be zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

ITERATIONS, TOLERANCE = 60, 1e-10


@dataclass(frozen=True)
class Scales:
    """Fitted scales, (E,), and the loss that they reach."""

    values: Tensor
    loss: float


def log_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> float:
    """Σ_i ω_i (-log p_i) of logits (N, C), labels (N,) and weights (N,) that sum to one."""
    rows = torch.arange(len(labels), device=labels.device)
    return float(-(weights * logits.log_softmax(dim=-1)[rows, labels]).sum())


def class_weights(labels: Tensor) -> Tensor:
    """Weights (N,) that sum to one and give every class that occurs the same weight."""
    counts = torch.bincount(labels).double()
    return 1 / (counts[labels] * (counts > 0).sum())


def fit_scales(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor,
    *,
    smoothing: float = 0.0,
    given: Sequence[float | None] = (),
) -> Scales:
    """The scales of least loss.

    scores: (E, N, C). labels: (N,). weights: (N,), summing to one. smoothing: share of every label that is spread
    over all classes, which bounds the scales where the experts make no mistake. given: scales to keep, None to fit.
    """
    kept = torch.tensor([value is not None for value in given] or [False] * len(scores), device=scores.device)
    values = scores.new_tensor([value or 0.0 for value in given] or [0.0] * len(scores))
    centred = scores - scores.mean(dim=-1, keepdim=True)  # so the share that is spread adds nothing to the target
    kept = kept | (centred.abs().amax(dim=(1, 2)) <= 1e-12)  # an expert that says nothing keeps a scale of 0
    problem = _Problem.of(centred[~kept], torch.einsum("e,enc->nc", values, centred), labels, weights, smoothing)
    values[~kept], loss = problem.solve()
    return Scales(values, loss)


@dataclass(frozen=True)
class _Problem:
    """Minimise Σ_i ω_i (log Σ_c exp(o + s·z)_ic - target_i) over s >= 0.

    z: (E, N, C), scaled to unit size. unit: (E,), the sizes. offset: o (N, C). target: (E, N). constant: (N,).
    """

    z: Tensor
    unit: Tensor
    offset: Tensor
    target: Tensor
    constant: Tensor
    weights: Tensor

    @classmethod
    def of(cls, z: Tensor, offset: Tensor, labels: Tensor, weights: Tensor, smoothing: float) -> _Problem:
        rows = torch.arange(len(labels), device=labels.device)
        unit = (weights * z.square().mean(dim=-1)).sum(dim=-1).sqrt().clamp_min(1e-30)
        z = z / unit[:, None, None]
        own = (1 - smoothing) * z[:, rows, labels]
        return cls(z, unit, offset, own, (1 - smoothing) * offset[rows, labels], weights)

    def loss(self, s: Tensor) -> float:
        """The objective at s (E,)."""
        logits = self.offset + torch.einsum("e,enc->nc", s, self.z)
        return float((self.weights * (logits.logsumexp(dim=-1) - s @ self.target - self.constant)).sum())

    def solve(self) -> tuple[Tensor, float]:
        """The best s, in the units of the scores, and its loss."""
        s = self.z.new_full((len(self.z),), 1 / max(len(self.z), 1))
        loss = self.loss(s)
        for _ in range(ITERATIONS if len(s) else 0):
            step, rate = self._step(s), 1.0
            while (new := self.loss((s + rate * step).clamp_min(0))) > loss and rate > 1e-6:
                rate /= 2
            gained = loss - new
            if gained > 0:
                s, loss = (s + rate * step).clamp_min(0), new
            if gained < TOLERANCE:
                break
        return s / self.unit, loss

    def _step(self, s: Tensor) -> Tensor:
        """Newton's step at s, under s >= 0."""
        p = (self.offset + torch.einsum("e,enc->nc", s, self.z)).softmax(dim=-1)
        mean = (p * self.z).sum(dim=-1)
        gradient = ((mean - self.target) * self.weights).sum(dim=-1)
        second = torch.einsum("enc,fnc->ef", self.z * (p * self.weights[:, None]), self.z)
        return newton_step(s, gradient, second - torch.einsum("en,fn->ef", mean * self.weights, mean))


def newton_step(s: Tensor, gradient: Tensor, hessian: Tensor) -> Tensor:
    """The minimum of gradient·δ + ½ δᵀ hessian δ over s + δ >= 0."""
    damped = hessian + 1e-9 * torch.eye(len(s), dtype=s.dtype, device=s.device) * hessian.diagonal().mean()
    best, best_value = -s, torch.inf
    for free in product((True, False), repeat=len(s)):
        on = torch.tensor(free, device=s.device)
        step = torch.where(on, 0.0, -s)
        if on.any():
            right = -(gradient + damped @ step)[on]
            step[on] = torch.linalg.solve(damped[on][:, on], right)
        if (s + step < -1e-12).any():
            continue
        value = float(gradient @ step + step @ damped @ step / 2)
        if value < best_value:
            best, best_value = step, value
    return best
