"""Gaussian heads as one family.

Every head here scores a class by a Gaussian about its mean μ_c, and they differ in Σ_c. For DCA μ_c is
the text feature u_c, and the score is τ / (d + ε) of the distance d alone (`mahalanobis_head.py`):

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
are `metric.Precision`, computed from rows and never from D×D matrices of a class. `precisions` yields
them for the log-likelihoods here, for DCA's head and for DCA's L_in.

Goswami et al., FeCAM, NeurIPS 2023. Wang et al., A Hard-to-Beat Baseline for Training-free
CLIP-based Adaptation, ICLR 2024. Ledoit and Wolf, J. Multivariate Analysis 88, 2004. Chen et al.,
IEEE Trans. Signal Processing 58, 2010 (OAS). Friedman, JASA 84, 1989 (RDA).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.methods.shared import metric
from dca.methods.shared.eigenvalue_floor import floored_precision
from dca.methods.shared.metric import IndefiniteError, Precision
from dca.methods.shared.shots import Shots

SHRINKAGES = ("identity", "additive", "convex", "gda", "ledoit_wolf", "oas")
# Covariances of DCA's head: one per class, shrunk by γ1 and γ2, or one for all classes.
Covariance = Literal["class", "gda", "ledoit_wolf", "oas"]
FLOOR_HELP = "smallest eigenvalue of a shrunk covariance, as a share of the mean one; 0: an indefinite one is an error"
MOST_RHO = 1 - 1e-9
# Shots -> (γ1, γ2); other numbers take the largest listed one not above them.
GAMMAS = {1: (500.0, 300.0), 2: (500.0, 300.0), 4: (600.0, 100.0), 8: (500.0, 100.0), 16: (500.0, 500.0)}


def gammas(shots: int) -> tuple[float, float]:
    """DCA's γ1 and γ2 for a number of shots."""
    return GAMMAS[max(k for k in GAMMAS if k <= max(shots, 1))]


@dataclass(frozen=True)
class Gaussian:
    """One head of the family; symbols as above.

    shrinkage: "identity" for Σ = I; "additive" takes gamma1 and gamma2, "convex" takes rho; the
    others estimate ρ from the data, and pooling must then be 1. Classes with a single image have
    no S_c: they take S, or without pooling the covariance of all images about their mean, with
    the γ1 and γ2 of `single` where that is given.
    unit_means: normalise μ_c before measuring; with Σ = I and unit f this is the cosine.
    floor: of "additive", the smallest eigenvalue as a share of the mean one; 0: an indefinite Σ is an error.
    """

    shrinkage: str
    pooling: float = 0.0
    gamma1: float = 0.0
    gamma2: float = 0.0
    rho: float = 0.0
    normalize: bool = False
    log_det: bool = False
    unit_means: bool = False
    single: tuple[float, float] | None = None
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.shrinkage not in SHRINKAGES:
            raise ValueError(f"shrinkage {self.shrinkage}: one of {', '.join(SHRINKAGES)}")
        if self.shrinkage in SHRINKAGES[3:] and self.pooling < 1:
            raise ValueError(f"shrinkage {self.shrinkage} is for the pooled covariance: pooling=1")

    @property
    def shared(self) -> bool:
        """Whether all classes have one covariance: the head is then linear."""
        return self.pooling == 1 or self.shrinkage == "identity"

    @property
    def of_single(self) -> Gaussian:
        """The same for classes with one image."""
        if self.single is None:
            return self
        return replace(self, gamma1=self.single[0], gamma2=self.single[1])


def fecam(gamma1: float, gamma2: float) -> Gaussian:
    """FeCAM's head."""
    return Gaussian("additive", gamma1=gamma1, gamma2=gamma2, normalize=True)


def dca(
    gamma1: float | None,
    gamma2: float | None,
    shots: int,
    *,
    covariance: str = "class",
    normalize: bool = True,
    floor: float = 0.0,
) -> Gaussian:
    """DCA's head, or with another covariance (`Covariance`).

    If γ1 and γ2 are the table's values for these shots, classes with one image take its values for one shot.
    """
    assert gamma1 is not None
    assert gamma2 is not None
    if covariance != "class":
        return Gaussian(covariance, pooling=1.0, normalize=normalize)
    single = gammas(1) if (gamma1, gamma2) == gammas(shots) else None
    return Gaussian("additive", gamma1=gamma1, gamma2=gamma2, normalize=normalize, single=single, floor=floor)


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


def shrunk(U: Tensor, gaussian: Gaussian, n: int, rho: float) -> Precision:
    """Σ̂⁻¹ of rows U (..., R, D) of a problem with n images."""
    if gaussian.shrinkage == "gda":
        return metric.precision(U, U.shape[-1] / max(n - 1, 1), 0.0, normalize=gaussian.normalize)
    if gaussian.shrinkage == "additive" and gaussian.floor:
        return floored_precision(U, gaussian.gamma1, gaussian.gamma2, gaussian.floor, normalize=gaussian.normalize)
    if gaussian.shrinkage == "additive":
        return metric.precision(U, gaussian.gamma1, gaussian.gamma2, normalize=gaussian.normalize)
    form = metric.precision(U, rho / (1 - rho), 0.0, normalize=gaussian.normalize)
    # Correlations do not see the factor of a convex shrinkage.
    return form if gaussian.normalize else form.scaled(1 - rho)


def rho_of(gaussian: Gaussian, centred: Tensor | None = None) -> float:
    """ρ of a convex shrinkage: the one given, or found in the centred features (n, D); 0 for the others."""
    rho = gaussian.rho if gaussian.shrinkage == "convex" else 0.0
    if found := {"ledoit_wolf": ledoit_wolf, "oas": oas}.get(gaussian.shrinkage):
        assert centred is not None
        rho = found(centred)
    return min(rho, MOST_RHO)


def shared_precision(shots: Shots, gaussian: Gaussian) -> Precision:
    """Σ̂⁻¹ of the covariance pooled within the classes."""
    means = shots.means().double()
    rho = rho_of(gaussian, shots.features.double() - means[shots.labels()])
    return shrunk(shots.pooled_rows(means), gaussian, len(shots.features), rho)


def precisions(shots: Shots, gaussian: Gaussian, centers: Tensor | None = None) -> Iterator[tuple[Tensor, Precision]]:
    """Places of some classes (c,) and their Σ̂⁻¹ in float64, for all classes.

    Σ̂⁻¹ is a batch (c,), or (1,) where those classes share one. centers: (M, C, D) to measure the spread of
    a class about, such as text features, instead of the means of the images (a shared Σ̂ is always about
    those); the batch is then (M, c) or (M, 1). A few classes of similar counts at a time.
    """
    if gaussian.shared:
        common = shared_precision(shots, gaussian)
        yield torch.arange(len(shots.counts), device=shots.counts.device), common.map(lambda t: t[None])
        return
    n, rho, pooled = len(shots.features), rho_of(gaussian), None
    single = (shots.counts < 2).nonzero().flatten()
    if gaussian.pooling or len(single):
        about = shots.means() if centers is None and gaussian.pooling else centers
        pooled = (shots.pooled_rows(about) if gaussian.pooling else shots.all_rows(about))[..., None, :, :]
    for places, K in shots.batches(1 if centers is None else len(centers)):
        U = shots.class_rows(places, K, centers)
        if gaussian.pooling and pooled is not None:
            common_rows = pooled.expand(*U.shape[:-2], *pooled.shape[-2:])
            U = torch.cat([math.sqrt(1 - gaussian.pooling) * U, math.sqrt(gaussian.pooling) * common_rows], dim=-2)
        with numbering_classes(places):
            own = shrunk(U, gaussian, n, rho)
        yield places, own
    if len(single) and pooled is not None:
        yield single, shrunk(pooled, gaussian.of_single, n, rho)


@contextmanager
def numbering_classes(group: Tensor) -> Iterator[None]:
    """Turn the places of an IndefiniteError in a batch into the classes `group` (c,) of the batch."""
    try:
        yield
    except IndefiniteError as error:
        raise IndefiniteError([int(group[c]) for c in error.classes], *error.gammas) from None


@contextmanager
def naming_classes(names: Sequence[str]) -> Iterator[None]:
    """Turn the class numbers of an IndefiniteError into class names."""
    try:
        yield
    except IndefiniteError as error:
        raise IndefiniteError(error.classes, *error.gammas, names=names) from None


def linear(shots: Shots, gaussian: Gaussian, log_prior: float = 0.0) -> tuple[Tensor, Tensor]:
    """W (C, D) and b (C,) of a shared covariance: w_c = Σ⁻¹ μ_c, b_c = log π - ½ μ_cᵀ Σ⁻¹ μ_c."""
    if not gaussian.shared:
        raise ValueError("only a covariance that all classes share makes a linear head")
    W = means = means_of(shots, gaussian)
    if gaussian.shrinkage != "identity":
        W = metric.precision_times(shared_precision(shots, gaussian), means)
    return W, log_prior - (W * means).sum(dim=-1) / 2


def log_likelihoods(f: Tensor, shots: Shots, gaussian: Gaussian) -> Tensor:
    """Input of the softmax, up to a term that all classes share: f (N, D) -> (N, C). Exact in float64."""
    if gaussian.shared:
        W, b = linear(shots, gaussian)
        return f @ W.T + b
    means = means_of(shots, gaussian)
    out = f.new_empty(len(means), len(f))
    for places, form in precisions(shots, gaussian):
        out[places] = -metric.mahalanobis(form, f, means[places]) / 2
        if gaussian.log_det:
            out[places] -= form.log_det[..., None] / 2
    return out.T
