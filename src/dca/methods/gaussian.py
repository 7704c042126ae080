"""Gaussian heads as one family.

Every head here scores a class by a Gaussian about its mean μ_c, and they differ only in Σ_c:

    log p(c | f) = -½ (f - μ_c)ᵀ Σ_c⁻¹ (f - μ_c) [ - ½ log det Σ_c ] + log π_c + const
    Σ_c = shrink( (1 - l) S_c + l S ),   S_c of the class, S pooled within the classes

    head          l    shrinkage                                   correlation   log det
    nearest mean  -    Σ = I                                       -             -
    FeCAM, DCA    0    S + γ1 V_d I + γ2 V_o (J - I)               yes           -
    GDA           1    S + (D / (n - 1)) V_d I                     -             -
    Ledoit-Wolf   1    (1 - ρ) S + ρ V_d I, ρ from the data        -             -
    OAS           1    the same with another ρ                     -             -
    LDA           1    the same with a small fixed ρ               -             -
    RDA           0..1 the same with a fixed ρ                     -             yes

V_d and V_o are the mean diagonal and off-diagonal entries of S. A convex shrinkage is an additive
one times a factor: (1 - ρ) S + ρ V_d I = (1 - ρ) (S + γ1 V_d I), γ1 = ρ / (1 - ρ). So all of them
are `metric.Covariance`, computed from rows and never from D×D matrices of a class.

Goswami et al., FeCAM, NeurIPS 2023. Wang et al., A Hard-to-Beat Baseline for Training-free
CLIP-based Adaptation, ICLR 2024. Ledoit and Wolf, J. Multivariate Analysis 88, 2004. Chen et al.,
IEEE Trans. Signal Processing 58, 2010 (OAS). Friedman, JASA 84, 1989 (RDA).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.methods import metric
from dca.methods.heads import CLASSES, Shots, pooled_rows
from dca.methods.metric import Covariance

SHRINKAGES = ("identity", "additive", "convex", "gda", "ledoit_wolf", "oas")
MOST_RHO = 1 - 1e-9


@dataclass(frozen=True)
class Gaussian:
    """One head of the family; symbols as above.

    shrinkage: "identity" for Σ = I; "additive" takes gamma1 and gamma2, "convex" takes rho; the
    others find theirs in the data, and pooling must then be 1. Classes with a single image have
    no S_c: they take S, or without pooling the covariance of all images about their mean.
    unit_means: normalise μ_c before measuring; with Σ = I and unit f this is the cosine.
    """

    shrinkage: str
    pooling: float = 0.0
    gamma1: float = 0.0
    gamma2: float = 0.0
    rho: float = 0.0
    normalize: bool = False
    log_det: bool = False
    unit_means: bool = False

    def __post_init__(self) -> None:
        if self.shrinkage not in SHRINKAGES:
            raise ValueError(f"shrinkage {self.shrinkage}: one of {', '.join(SHRINKAGES)}")
        if self.shrinkage in SHRINKAGES[3:] and self.pooling < 1:
            raise ValueError(f"shrinkage {self.shrinkage} is for the pooled covariance: pooling=1")

    @property
    def shared(self) -> bool:
        """Whether all classes have one covariance: the head is then linear."""
        return self.pooling == 1 or self.shrinkage == "identity"


def fecam(gamma1: float, gamma2: float) -> Gaussian:
    """FeCAM's head; with DCA's γ and visual means it is DCA's."""
    return Gaussian("additive", gamma1=gamma1, gamma2=gamma2, normalize=True)


HEADS = MappingProxyType(
    {
        "nearest mean, cosine": Gaussian("identity", unit_means=True),
        "nearest mean, Euclidean": Gaussian("identity"),
        "FeCAM (10, 10)": fecam(10.0, 10.0),
        "DCA (500, 500)": fecam(500.0, 500.0),
        "GDA": Gaussian("gda", pooling=1.0),
        "Ledoit-Wolf": Gaussian("ledoit_wolf", pooling=1.0),
        "OAS": Gaussian("oas", pooling=1.0),
        "LDA (ρ 0.01)": Gaussian("convex", pooling=1.0, rho=0.01),
        "RDA (l 0.8, ρ 0.1)": Gaussian("convex", pooling=0.8, rho=0.1, log_det=True),
    }
)


def means_of(shots: Shots, gaussian: Gaussian) -> Tensor:
    """μ of every class, (C, D)."""
    return F.normalize(shots.means(), dim=-1) if gaussian.unit_means else shots.means()


def _squared(x: Tensor) -> float:
    """‖XᵀX / n‖² of the entries, from the smaller of the two products. x: (n, D)."""
    n, D = x.shape
    return float((x @ x.T if n < D else x.T @ x).square().sum()) / n**2


def ledoit_wolf(x: Tensor) -> float:
    """ρ that is nearest in the mean to the true covariance. x: (n, D), centred."""
    n, D = x.shape
    variance = float(x.square().sum()) / (n * D)
    squared = _squared(x)
    delta = squared / D - variance**2
    beta = (float(x.square().sum(dim=1).square().sum()) / n - squared) / (n * D)
    return min(beta / delta, 1.0) if delta > 0 else 1.0


def oas(x: Tensor) -> float:
    """ρ of the oracle approximating shrinkage. x: (n, D), centred."""
    n, D = x.shape
    squared, variance = _squared(x) / D**2, float(x.square().sum()) / (n * D)
    below = (n + 1) * (squared - variance**2 / D)
    return min((squared + variance**2) / below, 1.0) if below > 0 else 1.0


def shrunk(U: Tensor, gaussian: Gaussian, n: int, rho: float) -> Covariance:
    """Σ̂ of rows U (..., R, D), without the factor that `factor` gives."""
    if gaussian.shrinkage == "gda":
        return metric.covariance(U, U.shape[-1] / max(n - 1, 1), 0.0, normalize=False)
    if gaussian.shrinkage == "additive":
        return metric.covariance(U, gaussian.gamma1, gaussian.gamma2, normalize=gaussian.normalize)
    return metric.covariance(U, rho / (1 - rho), 0.0, normalize=gaussian.normalize)


def rho_of(gaussian: Gaussian, centred: Tensor) -> float:
    """ρ of a convex shrinkage: the one given, or found in the centred features (n, D); 0 for the others."""
    found = {"ledoit_wolf": ledoit_wolf, "oas": oas}.get(gaussian.shrinkage)
    given = gaussian.rho if gaussian.shrinkage == "convex" else 0.0
    return min(found(centred) if found else given, MOST_RHO)


def factor(gaussian: Gaussian, rho: float) -> float:
    """What Σ̂ of `shrunk` is to be multiplied by: 1 - ρ of a convex shrinkage, which correlations do not see."""
    return 1.0 if gaussian.normalize else 1 - rho


def shared_covariance(shots: Shots, gaussian: Gaussian) -> tuple[Covariance, float]:
    """Σ̂ pooled within the classes, and the factor it is to be multiplied by."""
    features, labels = shots.flat()
    rho = rho_of(gaussian, features - shots.means()[labels])
    return shrunk(pooled_rows(shots, shots.means()), gaussian, len(features), rho), factor(gaussian, rho)


def class_covariances(shots: Shots, gaussian: Gaussian, group: Tensor, pooled: Tensor, rho: float) -> Covariance:
    """Σ̂ of the classes in `group` (c,), all with several images; pooled: rows of S (R, D)."""
    U = metric.class_rows(shots.features[group], shots.counts[group])
    share = gaussian.pooling
    if share:
        common = math.sqrt(share) * pooled.expand(len(U), *pooled.shape)
        U = torch.cat([math.sqrt(1 - share) * U, common], dim=1)
    return shrunk(U, gaussian, int(shots.counts.sum()), rho)


def log_determinant(cov: Covariance) -> Tensor:
    """Logarithm of det Σ̂, (...): that of aI + bJ, of the rows, and of the scaling to correlations."""
    D = cov.U.shape[-1]
    base = (D - 1) * cov.a.log() + (cov.a + D * cov.b).log()
    rows = 2 * cov.L.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    return base + rows - 2 * cov.s.log().sum(dim=-1)


def linear(shots: Shots, gaussian: Gaussian, log_prior: float = 0.0) -> tuple[Tensor, Tensor]:
    """W (C, D) and b (C,) of a shared covariance: w_c = Σ⁻¹ μ_c, b_c = log π - ½ μ_cᵀ Σ⁻¹ μ_c."""
    if not gaussian.shared:
        raise ValueError("only a covariance that all classes share makes a linear head")
    W = means = means_of(shots, gaussian)
    if gaussian.shrinkage != "identity":
        cov, scale = shared_covariance(shots, gaussian)
        W = metric.precision_times(cov, means) / scale
    return W, log_prior - (W * means).sum(dim=-1) / 2


def _quadratic(f: Tensor, means: Tensor, cov: Covariance, scale: float, log_det: bool) -> Tensor:
    """-½ d_m - ½ log det of every f (N, D) with every class: (C, N)."""
    value = -metric.mahalanobis(cov, f, means) / (2 * scale)
    return value - log_determinant(cov)[..., None] / 2 if log_det else value


def log_likelihoods(f: Tensor, shots: Shots, gaussian: Gaussian) -> Tensor:
    """What the softmax takes, up to what all classes share: f (N, D) -> (N, C). Exact in float64."""
    if gaussian.shared:
        W, b = linear(shots, gaussian)
        return f @ W.T + b
    means = means_of(shots, gaussian)
    pooled = pooled_rows(shots, shots.means() if gaussian.pooling else None)
    rho = rho_of(gaussian, pooled)
    scale = factor(gaussian, rho)
    out = f.new_empty(len(means), len(f))
    for group in torch.split((shots.counts > 1).nonzero().flatten(), CLASSES):
        cov = class_covariances(shots, gaussian, group, pooled, rho)
        out[group] = _quadratic(f, means[group], cov, scale, gaussian.log_det)
    single = shots.counts < 2
    if single.any():
        common = shrunk(pooled, gaussian, int(shots.counts.sum()), rho)
        one = common.map(lambda t: t.expand(int(single.sum()), *t.shape))
        out[single] = _quadratic(f, means[single], one, scale, gaussian.log_det)
    return out.T
