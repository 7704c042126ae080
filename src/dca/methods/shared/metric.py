"""Distances and the structured covariance under them.

A class covariance of K images in D dimensions has rank below K, and shrinkage adds only a
multiple of the identity and a multiple of the all-ones matrix:

    Σ_s = Uᵀ U + a I + b J,    a = γ1 V_d - γ2 V_o,    b = γ2 V_o

so everything is computed from the K rows of U; no D×D matrix of a class ever exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dca.core.errors import UserError

METRICS = ("mahalanobis", "euclidean", "cosine")
SCORES = ("inverse", "negative")
# Total variance of unit features below which they are the same up to rounding.
FLAT = 1e-12


@dataclass(frozen=True)
class Covariance:
    """Shrunk, normalised covariances Σ̂ = S⁻¹ (UᵀU + aI + bJ) S⁻¹ of a batch of classes.

    U: (..., R, D) centred features over sqrt(n - 1). a, b: (...). s: (..., D), the diagonal
    of S (ones without normalisation). L: (..., R, R), Cholesky factor of I + U B⁻¹ Uᵀ with
    B = aI + bJ.
    """

    U: Tensor
    a: Tensor
    b: Tensor
    s: Tensor
    L: Tensor

    @property
    def kappa(self) -> Tensor:
        """κ of B⁻¹x = (x - κ (1·x) 1) / a, (...)."""
        return self.b / (self.a + self.b * self.U.shape[-1])

    def map(self, change: Callable[[Tensor], Tensor]) -> Covariance:
        """The same with `change` applied to each tensor."""
        return Covariance(*(change(t) for t in (self.U, self.a, self.b, self.s, self.L)))

    def to(self, dtype: torch.dtype) -> Covariance:
        """The same in another precision."""
        return self.map(lambda t: t.to(dtype))

    def __getitem__(self, index: Tensor) -> Covariance:
        """The classes at `index`."""
        return self.map(lambda t: t[index])

    def rows(self, R: int) -> Covariance:
        """The same with U padded to R rows: zero rows of U are identity rows of L."""
        extra = R - self.U.shape[-2]
        if extra == 0:
            return self
        L = nn.functional.pad(self.L, (0, extra, 0, extra))
        L.diagonal(dim1=-2, dim2=-1)[..., -extra:] = 1
        return Covariance(nn.functional.pad(self.U, (0, 0, 0, extra)), self.a, self.b, self.s, L)


def concatenate(parts: Sequence[Covariance]) -> Covariance:
    """One batch of several, padded to the most rows."""
    R = max(part.U.shape[-2] for part in parts)
    padded = [part.rows(R) for part in parts]
    joined = zip(*((p.U, p.a, p.b, p.s, p.L) for p in padded), strict=True)
    return Covariance(*(torch.cat(tensors) for tensors in joined))


def mean_entries(U: Tensor) -> tuple[Tensor, Tensor]:
    """V_d and V_o: mean diagonal and mean off-diagonal entry of UᵀU. U: (..., R, D) -> two (...)."""
    D = U.shape[-1]
    trace = U.square().sum(dim=(-2, -1))
    everything = U.sum(dim=-1).square().sum(dim=-1)
    return trace / D, (everything - trace) / (D * (D - 1))


def covariance(U: Tensor, gamma1: float, gamma2: float, *, normalize: bool = True) -> Covariance:
    """Shrink and normalise UᵀU, Eq. 6. U: (..., R, D).

    PAPER: the sentence under Eq. 6 swaps the names of V_m and V_n; read literally nearly all
    eigenvalues would be negative. γ1 goes with the mean variance and γ2 with the mean
    covariance, as in FeCAM, which the paper cites.

    Where all (unit) features of a class are equal, Σ is zero and its correlation undefined: Σ̂ = I.
    """
    D = U.shape[-1]
    v_d, v_o = mean_entries(U)
    flat = D * v_d <= FLAT
    a = torch.where(flat, 1.0, gamma1 * v_d - gamma2 * v_o)
    b = torch.where(flat, 0.0, gamma2 * v_o)
    require_positive_definite(a, a + b * D, gamma1, gamma2)
    diagonal = U.square().sum(dim=-2) + (a + b)[..., None]
    s = diagonal.sqrt() if normalize else torch.ones_like(diagonal)
    kappa = b / (a + b * D)
    ones = U.sum(dim=-1)
    gram = U @ U.mT - kappa[..., None, None] * ones[..., :, None] * ones[..., None, :]
    Q = torch.eye(U.shape[-2], dtype=U.dtype, device=U.device) + gram / a[..., None, None]
    return Covariance(U=U, a=a, b=b, s=s, L=torch.linalg.cholesky(Q))


class IndefiniteError(UserError):
    """Shrinkage that leaves some classes without a distance; `classes` are their places in the batch."""

    def __init__(self, classes: Sequence[int], gamma1: float, gamma2: float, names: Sequence[str] = ()) -> None:
        self.classes, self.gammas = list(classes), (gamma1, gamma2)
        super().__init__(
            f"the shrunk covariance is not positive definite with gamma1={gamma1:g}, gamma2={gamma2:g}",
            details=[f"class {names[c] if names else c}" for c in classes],
            hint="choose gamma1 > gamma2 >= 0, which always works",
        )


def require_positive_definite(a: Tensor, along_ones: Tensor, gamma1: float, gamma2: float) -> None:
    """Raise unless a > 0 and a + bD > 0: the two eigenvalues of B. Both (...), classes last."""
    bad = ~((a > 0) & (along_ones > 0))
    if bad.any():
        # Any other leading axis is the prompt; a class fails as soon as one of its prompts does.
        places = bad.reshape(-1, bad.shape[-1] if bad.dim() else 1).any(dim=0).nonzero().flatten().tolist()
        raise IndefiniteError(places, gamma1, gamma2)


def quadratic(cov: Covariance, delta: Tensor) -> Tensor:
    """δᵀ Σ̂⁻¹ δ, one δ for each class of the batch. delta: (..., D) -> (...)."""
    g = cov.s * delta
    ones = g.sum(dim=-1)
    plain = (g.square().sum(dim=-1) - cov.kappa * ones.square()) / cov.a
    projected = (cov.U @ g[..., None])[..., 0] - cov.kappa[..., None] * cov.U.sum(dim=-1) * ones[..., None]
    solved: Tensor = torch.linalg.solve_triangular(cov.L, (projected / cov.a[..., None])[..., None], upper=False)
    return plain - solved.square().sum(dim=(-2, -1))


def precision_times(cov: Covariance, u: Tensor) -> Tensor:
    """Σ̂⁻¹ u. u: (..., D), one (or several, in leading axes) for each class -> the same shape."""
    g = cov.s * u
    y = (g - (cov.kappa * g.sum(dim=-1))[..., None]) / cov.a[..., None]
    small = torch.cholesky_solve(cov.U @ y[..., None], cov.L)
    back = (cov.U.mT @ small)[..., 0]
    correction = (back - (cov.kappa * back.sum(dim=-1))[..., None]) / cov.a[..., None]
    return cov.s * (y - correction)


def mahalanobis(cov: Covariance, f: Tensor, u: Tensor) -> Tensor:
    """d_m(f, u) = (f - u)ᵀ Σ̂⁻¹ (f - u), Eq. 7, of every f with every class.

    f: (N, D). u: (..., D), one (or several, in leading axes) for each class of the batch.
    Returns (..., N). fᵀΣ̂⁻¹f is computed once a class; each u then costs one dot product.
    """
    v = precision_times(cov, u)
    a, kappa = cov.a[..., None], cov.kappa[..., None]
    plain = (cov.s.square() @ f.square().mT - kappa * (cov.s @ f.mT).square()) / a
    rows = cov.U - (kappa * cov.U.sum(dim=-1))[..., None]
    P: Tensor = torch.linalg.solve_triangular(cov.L, rows * cov.s[..., None, :] / a[..., None], upper=False)
    own = plain - (P @ f.mT).square().sum(dim=-2)
    return (own - 2 * v @ f.mT + (u * v).sum(dim=-1, keepdim=True)).clamp_min(0)


def euclidean(f: Tensor, u: Tensor) -> Tensor:
    """d_e(f, u) = ‖f - u‖². f: (N, D), u: (..., D) -> (..., N)."""
    squares = f.square().sum(dim=-1) + u.square().sum(dim=-1, keepdim=True)
    return (squares - 2 * u @ f.mT).clamp_min(0)


def scores(distance: Tensor, tau: float, eps: float, form: str = "inverse") -> Tensor:
    """What the softmax takes: τ / (d + ε), Eq. 8, or the Gaussian -τ d / 2."""
    return tau / (distance + eps) if form == "inverse" else -tau * distance / 2


def class_rows(features: Tensor, counts: Tensor, center: Tensor | None = None) -> Tensor:
    """U of each class: (x_i - c) / sqrt(n - 1), zero where a class has fewer than K images.

    features: (C, K, D), zero behind each class's count. counts: (C,), at least 2.
    center: None for the class's own mean, or (..., C, D) such as a text feature for each
    prompt. Returns (..., C, R, D), R = K or, with a given centre, K + 1: since
    Σ(x-u)(x-u)ᵀ = Σ(x-x̄)(x-x̄)ᵀ + n (x̄-u)(x̄-u)ᵀ, the centre costs one more row.
    """
    n = counts.to(features.dtype)[:, None]
    mean = features.sum(dim=1) / n
    inside = torch.arange(features.shape[1], device=features.device) < counts[:, None]
    rows = torch.where(inside[..., None], features - mean[:, None], 0.0) / (n - 1).sqrt()[..., None]
    if center is None:
        return rows
    gap = (mean - center) * (n / (n - 1)).sqrt()
    rows = rows.expand(*center.shape[:-2], *rows.shape)
    return torch.cat([rows, gap[..., None, :]], dim=-2)


def pooled_rows(features: Tensor, labels: Tensor, center: Tensor | None = None) -> Tensor:
    """U of all images as one class, for sets of one image a class.

    features: (N, D). labels: (N,). center: None for the global mean, or (..., C, D): each image
    about the centre of its own class. Returns (..., R, D) with R = min(N, D): more rows than
    dimensions are folded by a QR decomposition, which leaves UᵀU as it is.
    """
    middle = features.mean(dim=0) if center is None else center[..., labels, :]
    rows: Tensor = (features - middle) / max(len(features) - 1, 1) ** 0.5
    if len(features) > features.shape[-1]:
        rows = torch.linalg.qr(rows, mode="r")[1]
    return rows
