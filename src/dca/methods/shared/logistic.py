"""Multinomial logistic regression with an L2 penalty: minima for many c, and approximate leave-one-out.

    min over W, b of  ½ ‖W‖² + c Σ_i CE(W f_i + b, y_i)

Images may have weights ω_i, by which their CE is multiplied, in sums and means alike.

**Minima for many c from one factorisation.** Divided by c N, with centred features F - 1 f̄ᵀ = U S Vᵀ, W = A Vᵀ and one
more column of Z and A for the bias, the problem is

    min over A of  λ/2 ‖A without its last column‖² + mean_i CE(A z_i, y_i),    Z = (U S, 1),  λ = 1 / (c N)

The columns of Z are orthogonal, so the diagonal of the Hessian is a good preconditioner. Every minimum is found by
Newton steps, each solved by conjugate gradients to a tenth, and halved until the objective falls. Objective and
gradient, which decide where the minimum is, are float64; directions, which decide only how fast it is found, are
float32. CE, 1 - p_y and products with the Hessian are computed from differences to the logit of the label y: their
relative error stays small where the data are separable and c is large, so that p_y rounds to 1.

**Approximate leave-one-out**: one Newton step from the fit on all images,

    z_-i = z_i + A_i (I - L_i A_i)⁻¹ (p_i - y_i),    A_i = c J_i H⁻¹ J_iᵀ,    L_i = diag(p_i) - p_i p_iᵀ

z_i = W f_i + b are the logits, J_i = I ⊗ [f_iᵀ, 1] their derivative, and H is the Hessian of the whole objective. It is
exact for a quadratic loss; for the logistic one the error falls with the square of the influence of one image.
W is in the span of the features, so D is at most N.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.core.device import limit_threads

# Share of the residual of a Newton step at which conjugate gradients stop.
RESIDUAL = 0.1
# Singular values below this share of the largest are zero.
NULL = 1e-12
# Relative rounding error of the objective: a step may seem to raise it by this much.
ROUNDING = 1e-14
TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Iterate:
    """Coefficients A (C, R), their objective, and what its derivatives need.

    gaps (N, C): logits minus that of the label, where they are -inf. losses (N, 1): cross-entropies.
    """

    A: Tensor
    value: Tensor
    gaps: Tensor
    losses: Tensor


class Logistic:
    """Logistic regression on features (N, D) and labels (N,); solutions for one c are starts for others.

    weights: ω, (N,); None: 1 each.
    """

    def __init__(self, features: Tensor, labels: Tensor, classes: int, weights: Tensor | None = None) -> None:
        x = features.double()
        self.mean = x.mean(dim=0)
        with limit_threads(x.numel() * min(x.shape)):
            U, S, Vh = torch.linalg.svd(x - self.mean, full_matrices=False)
        kept = S / S.max().clamp_min(TINY) > NULL
        self.V = Vh[kept].T
        ones = x.new_ones(len(x), 1)
        self.Z = torch.cat([U[:, kept] * S[kept], ones], dim=1)
        self.penalised = torch.ones_like(self.Z[0])
        self.penalised[-1] = 0.0
        self.labels, self.classes = labels[:, None], classes
        self.shares = (x.new_ones(len(x)) if weights is None else weights.double())[:, None] / len(x)
        self._squares, self._Z32 = self.Z.square(), self.Z.float()
        self._known: dict[float, Tensor] = {}

    def solve(self, c: float, *, tolerance: float, iterations: int) -> Tensor:
        """Find the minimum A (C, R) for c in at most `iterations` iterations of conjugate gradients in all.

        Ends with a Newton step before which the largest entry of the gradient was at most `tolerance`, and the
        distance of W to the minimum at most the share `tolerance` of its norm.
        """
        with limit_threads(self.Z.numel() * self.classes):
            return self._solve(c, tolerance, iterations)

    def _solve(self, c: float, tolerance: float, iterations: int) -> Tensor:
        ridge = self.penalised / (c * len(self.Z))
        point = min((self._evaluate_at(A, ridge) for A in self._starts(math.log(c))), key=lambda p: float(p.value))
        while iterations > 0:
            gradient, step, used = self._newton(point, ridge, iterations)
            decrement = (gradient * step).sum()
            # decrement / 2 is the height above the minimum, and λ/2 ‖ΔW‖² is no more than that.
            near = decrement <= tolerance**2 * (ridge * point.A.square()).sum()
            last = bool(near & (gradient.abs().max() <= tolerance))
            point, lower = self._descend(point, step, decrement, ridge)
            if last or not lower:
                break
            iterations -= used
        self._known[math.log(c)] = point.A
        return point.A

    def to_weights(self, A: Tensor) -> tuple[Tensor, Tensor]:
        """W (C, D) and b (C,) of coefficients; b, which the objective defines up to a constant, has mean zero."""
        W = A[:, :-1] @ self.V.T
        b = A[:, -1] - W @ self.mean
        return W, b - b.mean()

    def to_coordinates(self, features: Tensor) -> Tensor:
        """Rows z of other features (M, D): (M, R), so that the logits are z Aᵀ."""
        x = (features.double() - self.mean) @ self.V
        return torch.cat([x, x.new_ones(len(x), 1)], dim=1)

    def _starts(self, log_c: float) -> list[Tensor]:
        """Start at the solution of the nearest log c, or on the line through the two nearest; else at 0."""
        nearest = sorted(self._known, key=lambda known: abs(known - log_c))[:2]
        if not nearest:
            return [self.Z.new_zeros(self.classes, self.Z.shape[1])]
        first = self._known[nearest[0]]
        if len(nearest) < 2 or log_c == nearest[0]:
            return [first]
        share = (log_c - nearest[0]) / (nearest[1] - nearest[0])
        return [first, torch.lerp(first, self._known[nearest[1]], share)]

    def _evaluate_at(self, A: Tensor, ridge: Tensor) -> Iterate:
        """The objective at A."""
        gaps = self.Z @ A.T
        gaps = (gaps - gaps.gather(1, self.labels)).scatter_(1, self.labels, -math.inf)
        losses = F.softplus(gaps.logsumexp(dim=1, keepdim=True), threshold=math.inf)
        return Iterate(A, (self.shares * losses).sum() + (ridge * A.square()).sum() / 2, gaps, losses)

    def _newton(self, point: Iterate, ridge: Tensor, most: int) -> tuple[Tensor, Tensor, int]:
        """Gradient g, a solution of H step = g by preconditioned conjugate gradients, and the iterations it took."""
        shares, y = self.shares, self.labels
        others = (point.gaps - point.losses).exp()  # probabilities, 0 at the label
        missed = others.sum(dim=1, keepdim=True)  # 1 - p_y
        gradient = (shares * others.scatter(1, y, -missed)).T @ self.Z + ridge * point.A
        # A constant added to all biases changes nothing, so this sum is rounding that no step can remove.
        gradient[:, -1] -= gradient[:, -1].mean()
        curvature = (others * (1 - others)).scatter_(1, y, missed * (1 - missed))
        diagonal = ((shares * curvature).T @ self._squares + ridge).float().clamp_min(TINY)
        p, others = (shares * others.scatter(1, y, 1 - missed)).float(), others.float()
        ridge, Z = ridge.float(), self._Z32

        def times_hessian(v: Tensor) -> Tensor:
            t = Z @ v.T
            t = t - t.gather(1, y)
            t = p * (t - (others * t).sum(dim=1, keepdim=True))
            return torch.addcmul(t.T @ Z, ridge, v)

        size = gradient.abs().max().clamp_min(TINY)  # squares of entries must not underflow
        step, used = conjugate_gradients(times_hessian, (gradient / size).float(), diagonal, most)
        return gradient, size * step.double(), used

    def _descend(self, point: Iterate, step: Tensor, decrement: Tensor, ridge: Tensor) -> tuple[Iterate, bool]:
        """The point after a step, halved until the objective falls, and whether it fell."""
        size = 1.0
        while size > ROUNDING and bool(decrement > 0):
            lower = self._evaluate_at(point.A - size * step, ridge)
            if bool(lower.value <= (1 + ROUNDING) * point.value - 1e-4 * size * decrement):
                return lower, True
            size /= 2
        return point, False


def conjugate_gradients(
    times: Callable[[Tensor], Tensor], right: Tensor, diagonal: Tensor, most: int
) -> tuple[Tensor, int]:
    """Solve `times(x)` = `right`, preconditioned by a diagonal; returns x and the number of iterations."""
    x, r = torch.zeros_like(right), right
    z = r / diagonal
    p, rz = z, (r * z).sum()
    goal = RESIDUAL**2 * rz
    used = 0
    while used < most:
        used += 1
        product = times(p)
        length = rz / (p * product).sum().clamp_min(TINY)
        x, r = x + length * p, r - length * product
        z = r / diagonal
        before, rz = rz, (r * z).sum()
        if bool(rz <= goal):
            break
        p = z + rz / before * p
    return x, used


# Rows of the largest Hessian: 6000² float64 numbers are 288 MB.
MAX_WEIGHTS = 6000


@torch.no_grad()
def leave_one_out(
    features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor, c: float, most: int = MAX_WEIGHTS
) -> Tensor | None:
    """Logits (N, C) of each image by the fit without it, float64; None if H is singular or has over `most` rows.

    features: (N, D), labels: (N,); weight (C, D) and bias (C,) minimise the objective at c.
    """
    x, W, b = features.double(), weight.double(), bias.double()
    if min(x.shape) * len(W) + len(W) > most:
        return None
    if len(x) < x.shape[1]:
        basis = torch.linalg.qr(x.T)[0]
        x, W = x @ basis, W @ basis
    x = F.pad(x, (0, 1), value=1.0)  # the bias is the weight of a constant
    z = F.linear(x, torch.cat([W, b[:, None]], dim=1))
    p = z.softmax(dim=-1)
    curvature = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    factor, failed = torch.linalg.cholesky_ex(full_hessian(x, curvature, c))
    if bool(failed):
        return None
    influence = c * _hat_blocks(x, torch.cholesky_inverse(factor))
    error = p - F.one_hot(labels, len(W)).to(p)
    damping = torch.eye(len(W), dtype=p.dtype, device=p.device) - curvature @ influence
    step: Tensor = influence @ torch.linalg.solve(damping, error[:, :, None])
    return z + step.squeeze(-1)


def restore_balance(logits: Tensor, labels: Tensor, count: Tensor) -> Tensor:
    """Correct leave-one-out logits (N, C) for the image that the own class has lost: + log( n / (n - 1) ) for it.

    The bias learns how frequent a class is. Without image i, its own class is rarer than the others, and a weak model
    of balanced classes would call every image something else. count: (N,) images of each image's class; where it is 1,
    the logit becomes infinite.
    """
    own = F.one_hot(labels, logits.shape[1]).to(logits)
    return torch.where(own > 0, logits + (count / (count - 1)).to(logits).log()[:, None], logits)


def full_hessian(x: Tensor, curvature: Tensor, c: float) -> Tensor:
    """Hessian of the objective in the weights of all classes, class after class: (C M, C M).

    x: (N, M), the last column 1. curvature: L_i (N, C, C). The objective does not change if all biases grow by the same
    number; a curvature of 1 along that direction makes the matrix invertible and changes no probability.
    """
    C, M = curvature.shape[1], x.shape[1]
    blocks = x.new_zeros(C, M, C, M)
    for one in range(C):
        for other in range(one, C):
            block = c * (x * curvature[:, one, other, None]).T @ x
            blocks[one, :, other], blocks[other, :, one] = block, block
        blocks[one, :-1, one].diagonal().add_(1.0)
    blocks[:, -1, :, -1] += 1.0
    return blocks.reshape(C * M, C * M)


def _hat_blocks(x: Tensor, inverse: Tensor) -> Tensor:
    """J_i H⁻¹ J_iᵀ of every image: (N, C, C). x: (N, M), inverse: (C M, C M)."""
    M = x.shape[1]
    C = len(inverse) // M
    blocks = inverse.reshape(C, M, C, M)
    products = x.new_empty(len(x), C, C)
    for one in range(C):
        for other in range(one, C):
            products[:, one, other] = products[:, other, one] = ((x @ blocks[one, :, other]) * x).sum(dim=1)
    return products
