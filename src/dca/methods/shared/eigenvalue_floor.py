"""The inverse of a shrunk covariance whose small and negative eigenvalues are raised to a floor.

    Σ_s = Uᵀ U + a I + b J      is indefinite where γ2 V_o exceeds γ1 V_d, or where V_o < 0 and γ2 is large
    Σ_f = Σ_k max(λ_k, ℓ) e_k e_kᵀ,    ℓ = floor · tr Σ_s / D,    λ_k, e_k of Σ_s
    Σ̂ = S⁻¹ Σ_f S⁻¹,           S the square root of the diagonal of Σ_f, or I

FeCAM takes the pseudo-inverse there, which keeps negative eigenvalues, and with them negative distances, whose score
τ / (d + ε) has no order. With a floor every distance is positive, and γ1 and γ2 may have any values.

All eigenvalues but R + 1 are a, so the small problem in the span of the rows of U and of the ones vector is enough.
Only bJ can bring an eigenvalue below a, hence at most one is: the inverse has the structure of `metric.Precision`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dca.methods.shared.metric import Precision, added


def floored_precision(U: Tensor, gamma1: float, gamma2: float, floor: float, *, normalize: bool = True) -> Precision:
    """Shrink UᵀU as `metric.precision` does, raise its eigenvalues to `floor` times their mean, and invert it.

    U: (..., R, D). floor: above 0.
    """
    D = U.shape[-1]
    a, b = added(U, gamma1, gamma2)
    least = floor * (U.square().sum(dim=(-2, -1)) / D + a + b)
    lambdas, E = _eigen(U, a, b)
    lambdas, a = torch.maximum(lambdas, least[..., None]), torch.maximum(a, least)
    variances = a[..., None] + ((lambdas - a[..., None])[..., None, :] * E.square()).sum(dim=-1)
    s = variances.sqrt() if normalize else torch.ones_like(variances)
    # Σ_f⁻¹ = I / a - E diag(c) Eᵀ; only c of the smallest eigenvalue may be negative.
    c = 1 / a[..., None] - 1 / lambdas
    rows = (c[..., None, 1:].clamp_min(0).sqrt() * E[..., 1:] * s[..., None]).mT
    ones = c[..., :1].abs().sqrt() * E[..., 0] * s
    log_det = (D - lambdas.shape[-1]) * a.log() + lambdas.log().sum(dim=-1) - 2 * s.log().sum(dim=-1)
    return Precision(s.square() / a[..., None], ones, c[..., 0].sign(), rows, log_det)


def _eigen(U: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (..., k), ascending, and eigenvectors (..., D, k) of Σ_s in a space that holds all but a.

    k = min(R + 1, D): the rows of U, and ones.
    """
    rows = torch.cat([U, torch.ones_like(U[..., :1, :])], dim=-2)
    basis, corner = torch.linalg.qr(rows.mT)
    weights = torch.ones_like(rows[..., 0])
    weights[..., -1] = b
    small = (corner * weights[..., None, :]) @ corner.mT
    lambdas, vectors = torch.linalg.eigh(small)
    return lambdas + a[..., None], basis @ vectors
