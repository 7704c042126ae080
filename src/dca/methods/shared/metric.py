"""Distances, and the structured inverse covariance of the Mahalanobis distance.

A class covariance of K images in D dimensions has rank below K, and shrinkage adds only a
multiple of the identity and a multiple of the all-ones matrix:

    Σ_s = Uᵀ U + a I + b J,    a = γ1 V_d - γ2 V_o,    b = γ2 V_o
    Σ̂ = S⁻¹ Σ_s S⁻¹,          S the square root of the diagonal of Σ_s, or I

so everything is computed from the rows of U; no D×D matrix of a class ever exists. A distance
needs the inverse, which has the same structure:

    Σ̂⁻¹ = diag(h) - σ q qᵀ - Pᵀ P,    h = s² / a,    q = √(|κ| / a) s,    σ = sign κ
    κ = b / (a + b D),    P = L⁻¹ (U - κ U J) S / a,    L Lᵀ = I + U B⁻¹ Uᵀ,    B = a I + b J
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dca.core.errors import UserError
from dca.core.hints import set_option

Metric = Literal["mahalanobis", "euclidean", "cosine"]
Score = Literal["inverse", "negative"]
# Total variance of unit features below which they are equal up to rounding.
FLAT = 1e-12


@dataclass(frozen=True)
class Precision:
    """Inverses Σ̂⁻¹ of a batch of shrunk covariances; symbols as above.

    diagonal: h (..., D). ones: q (..., D). sign: σ (...). rows: P (..., R, D). log_det: of Σ̂, (...).
    """

    diagonal: Tensor
    ones: Tensor
    sign: Tensor
    rows: Tensor
    log_det: Tensor

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Precision:
        """Apply `change` to each tensor."""
        parts = (self.diagonal, self.ones, self.sign, self.rows, self.log_det)
        return Precision(*(change(part) for part in parts))

    def for_scaled_covariance(self, factor: float) -> Precision:
        """The inverses of `factor` · Σ̂, factor > 0."""
        root, D = math.sqrt(factor), self.diagonal.shape[-1]
        log_det = self.log_det + D * math.log(factor)
        return Precision(self.diagonal / factor, self.ones / root, self.sign, self.rows / root, log_det)


def mean_entries(U: Tensor) -> tuple[Tensor, Tensor]:
    """V_d and V_o: mean diagonal and mean off-diagonal entry of UᵀU. U: (..., R, D) -> two (...)."""
    D = U.shape[-1]
    trace = U.square().sum(dim=(-2, -1))
    everything = U.sum(dim=-1).square().sum(dim=-1)
    return trace / D, (everything - trace) / (D * (D - 1))


def shrinkage_terms(U: Tensor, gamma1: float, gamma2: float) -> tuple[Tensor, Tensor]:
    """A and b of B = a I + b J, which shrinkage adds to UᵀU; 1 and 0 where U is zero. U: (..., R, D) -> two (...)."""
    v_d, v_o = mean_entries(U)
    flat = U.shape[-1] * v_d <= FLAT
    return torch.where(flat, 1.0, gamma1 * v_d - gamma2 * v_o), torch.where(flat, 0.0, gamma2 * v_o)


def precision(U: Tensor, gamma1: float, gamma2: float, *, normalize: bool = True) -> Precision:
    """Shrink and normalise UᵀU, Eq. 6, and invert it. U: (..., R, D).

    PAPER: the sentence under Eq. 6 swaps the names of V_m and V_n; read literally nearly all
    eigenvalues would be negative. γ1 goes with the mean variance and γ2 with the mean
    covariance, as in FeCAM, which the paper cites.

    Where all (unit) features of a class are equal, Σ is zero and its correlation undefined: Σ̂ = I.
    """
    D = U.shape[-1]
    a, b = shrinkage_terms(U, gamma1, gamma2)
    require_positive_definite(a, a + b * D, gamma1, gamma2)
    variances = U.square().sum(dim=-2) + (a + b)[..., None]
    s = variances.sqrt() if normalize else torch.ones_like(variances)
    kappa = b / (a + b * D)
    centred = U - (kappa[..., None] * U.sum(dim=-1))[..., None]
    Q = torch.eye(U.shape[-2], dtype=U.dtype, device=U.device) + U @ centred.mT / a[..., None, None]
    L = torch.linalg.cholesky(Q)
    # L is small: its inverse and one product are many times faster than solving for D columns.
    eye = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand_as(L)
    rows = torch.linalg.solve_triangular(L, eye, upper=False) @ (centred * s[..., None, :] / a[..., None, None])
    log_det = (D - 1) * a.log() + (a + D * b).log() - 2 * s.log().sum(dim=-1)
    log_det = log_det + 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    ones = (kappa.abs() / a).sqrt()[..., None] * s
    return Precision(s.square() / a[..., None], ones, kappa.sign(), rows, log_det)


class IndefiniteError(UserError):
    """Shrinkage that leaves some classes without a distance; `classes` are their indices."""

    def __init__(self, classes: Sequence[int], gamma1: float, gamma2: float, names: Sequence[str] = ()) -> None:
        self.classes, self.gammas = list(classes), (gamma1, gamma2)
        super().__init__(
            f"the shrunk covariance is not positive definite with gamma1={gamma1:g}, gamma2={gamma2:g}",
            details=[f"class {names[c] if names else c}" for c in classes],
            hint=["choose gamma1 > gamma2 >= 0, which always works", set_option("floor", 0.001)],
        )


def require_positive_definite(a: Tensor, along_ones: Tensor, gamma1: float, gamma2: float) -> None:
    """Raise unless a > 0 and a + bD > 0: the two eigenvalues of B. Both (...), classes last."""
    bad = ~((a > 0) & (along_ones > 0))
    if bad.any():
        # Any other leading axis is the prompt; a class fails as soon as one of its prompts does.
        classes = bad.reshape(-1, bad.shape[-1] if bad.dim() else 1).any(dim=0).nonzero().flatten().tolist()
        raise IndefiniteError(classes, gamma1, gamma2)


def quadratic_form(form: Precision, delta: Tensor) -> Tensor:
    """δᵀ Σ̂⁻¹ δ, one δ for each class of the batch. delta: (..., D) -> (...)."""
    plain = (form.diagonal * delta.square()).sum(dim=-1)
    along = (form.ones * delta).sum(dim=-1).square()
    return plain - form.sign * along - (form.rows @ delta[..., None]).square().sum(dim=(-2, -1))


def precision_times(form: Precision, u: Tensor) -> Tensor:
    """Σ̂⁻¹ u. u: (..., D), one (or several, in leading axes) for each class -> the same shape."""
    along = form.sign * (form.ones * u).sum(dim=-1)
    back = (form.rows.mT @ (form.rows @ u[..., None]))[..., 0]
    return form.diagonal * u - along[..., None] * form.ones - back


def mahalanobis(form: Precision, f: Tensor, u: Tensor) -> Tensor:
    """d_m(f, u) = (f - u)ᵀ Σ̂⁻¹ (f - u), Eq. 7, of every f with every class.

    f: (N, D). u: (..., D), one (or several, in leading axes) for each class of the batch.
    Returns (..., N). fᵀΣ̂⁻¹f is computed once per class; each u then costs one dot product.
    """
    v = precision_times(form, u)
    plain = form.diagonal @ f.square().mT - form.sign[..., None] * (form.ones @ f.mT).square()
    own = plain - (form.rows @ f.mT).square().sum(dim=-2)
    return (own - 2 * v @ f.mT + (u * v).sum(dim=-1, keepdim=True)).clamp_min(0)


def euclidean(f: Tensor, u: Tensor) -> Tensor:
    """d_e(f, u) = ‖f - u‖². f: (N, D), u: (..., D) -> (..., N)."""
    squares = f.square().sum(dim=-1) + u.square().sum(dim=-1, keepdim=True)
    return (squares - 2 * u @ f.mT).clamp_min(0)


def softmax_inputs(distance: Tensor, tau: float, eps: float, form: str = "inverse") -> Tensor:
    """Inputs of the softmax: τ / (d + ε), Eq. 8, or the Gaussian -τ d / 2."""
    return tau / (distance + eps) if form == "inverse" else -tau * distance / 2


def helmert_contrasts(K: int, like: Tensor) -> Tensor:
    """Helmert's matrix (K - 1, K): orthonormal rows, each orthogonal to the ones vector.

    Its first n - 1 rows use only the first n columns, so they serve a class of n images.
    """
    j = torch.arange(1, K, dtype=like.dtype, device=like.device)
    rows = like.new_ones(K - 1, K).tril() - torch.diag_embed(j, offset=1)[: K - 1]
    return rows / (j * (j + 1)).sqrt()[:, None]


def class_covariance_factors(features: Tensor, counts: Tensor, center: Tensor | None = None) -> Tensor:
    """U of each class, so that UᵀU = Σ_i (x_i - c)(x_i - c)ᵀ / (n - 1).

    features: (C, K, D), zero after the images of each class. counts: (C,), at least 2.
    center: None for the class's own mean, or (..., C, D) such as a text feature for each
    prompt. Returns (..., C, R, D) with R = min(K - 1, D), and one more with a given centre, since
    Σ(x-u)(x-u)ᵀ = Σ(x-x̄)(x-x̄)ᵀ + n (x̄-u)(x̄-u)ᵀ.
    """
    n = counts.to(features.dtype)[:, None]
    mean = features.sum(dim=1) / n
    rows = _centered_factor(features, counts, mean) / (n - 1).sqrt()[..., None]
    if center is None:
        return rows
    gap = (mean - center) * (n / (n - 1)).sqrt()
    rows = rows.expand(*center.shape[:-2], *rows.shape)
    return torch.cat([rows, gap[..., None, :]], dim=-2)


def _centered_factor(features: Tensor, counts: Tensor, mean: Tensor) -> Tensor:
    """X, (C, R, D) with R = min(K - 1, D), so that XᵀX = Σ_i (x_i - x̄)(x_i - x̄)ᵀ.

    Contrasts between images need one row less than the centred images; more rows than dimensions
    are folded by a QR decomposition.
    """
    K, D = features.shape[-2:]
    index = torch.arange(K, device=features.device)
    if K - 1 <= D:
        used = index[1:] < counts[:, None]
        return (helmert_contrasts(K, features) @ features) * used[..., None]
    inside = index < counts[:, None]
    folded: Tensor = torch.linalg.qr((features - mean[:, None]) * inside[..., None], mode="r")[1]
    return folded


def pooled_covariance_factor(
    features: Tensor, labels: Tensor, center: Tensor | None = None, weights: Tensor | None = None
) -> Tensor:
    """U of all images as one class, for datasets with one image per class.

    features: (N, D). labels: (N,). center: None for the global mean, or (..., C, D): each image
    about the centre of its own class. Returns (..., R, D) with R = min(N, D): more rows than
    dimensions are folded by a QR decomposition, which does not change UᵀU. weights: how many images each row counts
    as (N,), with a centre; None: one.
    """
    centers = features.mean(dim=0) if center is None else center[..., labels, :]
    if weights is None:
        rows: Tensor = (features - centers) / max(len(features) - 1, 1) ** 0.5
    else:
        rows = (weights / (weights.sum() - 1).clamp_min(1)).sqrt()[:, None] * (features - centers)
    if len(features) > features.shape[-1]:
        rows = torch.linalg.qr(rows, mode="r")[1]
    return rows
