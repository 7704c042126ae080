"""Gaussian heads as one family, a floor for eigenvalues, and exact leave-one-out scores.

Every head here scores a class by a Gaussian about its mean μ_c, and they differ in Σ_c. For DCA μ_c is
the text feature u_c, and the score is τ / (d + ε) of the distance d alone (`heads.MahalanobisHead`):

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

**Floor.** `floored_precision` inverts a shrunk covariance whose small and negative eigenvalues are raised to a floor:

    Σ_s = Uᵀ U + a I + b J      is indefinite where γ2 V_o exceeds γ1 V_d, or where V_o < 0 and γ2 is large
    Σ_f = Σ_k max(λ_k, ℓ) e_k e_kᵀ,    ℓ = floor · tr Σ_s / D,    λ_k, e_k of Σ_s
    Σ̂ = S⁻¹ Σ_f S⁻¹,           S the square root of the diagonal of Σ_f, or I

FeCAM takes the pseudo-inverse there, which keeps negative eigenvalues, and with them negative distances, whose score
τ / (d + ε) has no order. With a floor every distance is positive, and γ1 and γ2 may have any values. All eigenvalues
but R + 1 are a, so the small problem in the span of the rows of U and of the ones vector is enough. Only bJ can bring
an eigenvalue below a, hence at most one is: the inverse has the structure of `metric.Precision`.

**Leave-one-out** scores of GDA's Gaussian part, from one eigendecomposition. N images have V views each; image i of
class y leaves with all of its views. M is the scatter within the classes, M = Σ (f - μ)(f - μ)ᵀ over the n = N V rows,
m the number of rows of class y, Δ (V, D) the rows of image i minus μ_y, and δ their mean. Without the image:

    M_i = M - Eᵀ E,    E = (I + 1 1ᵀ / (m - V))^½ Δ,    μ_y' = μ_y - V / (m - V) δ,    n' = n - V
    P_i = D (M_i + r_i I)⁻¹,    r_i = tr(M_i) / (n' - 1)

since the mean of the class moves, too. With M = Q diag(e) Qᵀ the shift r_i, which is different for every image,
changes only eigenvalues, w = 1 / (e + r_i), and Woodbury's formula takes the V rows of E out. In the basis Q:

    P_i / D = diag(w) + diag(w) Eᵀ (I - E diag(w) Eᵀ)⁻¹ E diag(w)

The cost is one eigendecomposition and O(N V C D). An image that is alone in its class has E = Δ: the class then
has no mean, and its score is -∞.

A held-out image is farther from the mean of the k - 1 other images of its class than a new image is from the mean of
all k: its expected squared distance is k / (k - 1) instead of (k + 1) / k times the variance. `corrected` scores
multiply the distance d² to its own class by the ratio (k² - 1) / k², for selections that are to suit the model of all
images.
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
from dca.methods.shared.class_features import ClassFeatures
from dca.methods.shared.metric import FLAT, IndefiniteError, Precision, shrinkage_terms

SHRINKAGES = ("identity", "additive", "convex", "gda", "ledoit_wolf", "oas")
# Covariances of DCA's head: one per class, shrunk by γ1 and γ2, or one for all classes.
Covariance = Literal["class", "gda", "ledoit_wolf", "oas"]
FLOOR_HELP = "smallest eigenvalue of a shrunk covariance, as a share of the mean one; 0: an indefinite one is an error"
MAX_RHO = 1 - 1e-9
# Shots -> (γ1, γ2); other numbers take the largest listed one not above them.
GAMMAS = {1: (500.0, 300.0), 2: (500.0, 300.0), 4: (600.0, 100.0), 8: (500.0, 100.0), 16: (500.0, 500.0)}


def paper_gammas(shots: int) -> tuple[float, float]:
    """DCA's γ1 and γ2 for a number of shots."""
    return GAMMAS[max(k for k in GAMMAS if k <= max(shots, 1))]


@dataclass(frozen=True)
class Gaussian:
    """A head of the family; symbols as above.

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
    def for_single_images(self) -> Gaussian:
        """The head of classes with one image."""
        if self.single is None:
            return self
        return replace(self, gamma1=self.single[0], gamma2=self.single[1])


def fecam_gaussian(gamma1: float, gamma2: float) -> Gaussian:
    """FeCAM's head."""
    return Gaussian("additive", gamma1=gamma1, gamma2=gamma2, normalize=True)


def dca_gaussian(
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
    single = paper_gammas(1) if (gamma1, gamma2) == paper_gammas(shots) else None
    return Gaussian("additive", gamma1=gamma1, gamma2=gamma2, normalize=normalize, single=single, floor=floor)


HEADS = MappingProxyType(
    {
        "nearest mean, cosine": Gaussian("identity", unit_means=True),
        "nearest mean, Euclidean": Gaussian("identity"),
        "FeCAM (10, 10)": fecam_gaussian(10.0, 10.0),
        "DCA (500, 500)": fecam_gaussian(500.0, 500.0),
        "GDA": Gaussian("gda", pooling=1.0),
        "Ledoit-Wolf": Gaussian("ledoit_wolf", pooling=1.0),
        "OAS": Gaussian("oas", pooling=1.0),
        "LDA (ρ 0.01)": Gaussian("convex", pooling=1.0, rho=0.01),
        "RDA (l 0.8, ρ 0.1)": Gaussian("convex", pooling=0.8, rho=0.1, log_det=True),
    }
)


def head_means(shots: ClassFeatures, gaussian: Gaussian, weights: Tensor | None = None) -> Tensor:
    """μ of every class, (C, D). weights: of the rows (N,); None: all the same."""
    means = shots.means(weights)
    return F.normalize(means, dim=-1) if gaussian.unit_means else means


def _squared_norm(x: Tensor) -> float:
    """‖XᵀX‖² of the entries, from the smaller of the two products. x: (rows, D)."""
    return float((x @ x.T if len(x) < x.shape[1] else x.T @ x).square().sum())


def ledoit_wolf(x: Tensor, weights: Tensor | None = None) -> float:
    """ρ whose covariance is nearest in the mean to the true one. x: (rows, D), centred; weights as in `oas`."""
    n, shares, D = *_shares(x, weights), x.shape[1]
    squared_norms = x.square().sum(dim=1)
    variance = float(shares @ squared_norms) / D
    squared = _squared_norm(shares.sqrt()[:, None] * x)
    delta = squared / D - variance**2
    beta = (float(shares @ squared_norms.square()) - squared) / (n * D)
    return min(beta / delta, 1.0) if delta > 0 else 1.0


def oas(x: Tensor, weights: Tensor | None = None) -> float:
    """ρ of the oracle approximating shrinkage. x: (rows, D), centred.

    weights: how many rows each counts as (rows,); None: one.
    """
    n, shares, D = *_shares(x, weights), x.shape[1]
    squared, variance = _squared_norm(shares.sqrt()[:, None] * x) / D**2, float(shares @ x.square().sum(dim=1)) / D
    below = (n + 1) * (squared - variance**2 / D)
    return min((squared + variance**2) / below, 1.0) if below > 0 else 1.0


def _shares(x: Tensor, weights: Tensor | None) -> tuple[float, Tensor]:
    """How many rows x (rows, D) counts as, and the share of each in it (rows,)."""
    weights = x.new_ones(len(x)) if weights is None else weights
    return float(weights.sum()), weights / weights.sum()


def shrink(U: Tensor, gaussian: Gaussian, n: float, rho: float) -> Precision:
    """Shrink UᵀU as the head does and invert it: Σ̂⁻¹ of rows U (..., R, D) of a problem with n images."""
    if gaussian.shrinkage == "gda":
        return metric.precision(U, U.shape[-1] / max(n - 1, 1), 0.0, normalize=gaussian.normalize)
    if gaussian.shrinkage == "additive" and gaussian.floor:
        return floored_precision(U, gaussian.gamma1, gaussian.gamma2, gaussian.floor, normalize=gaussian.normalize)
    if gaussian.shrinkage == "additive":
        return metric.precision(U, gaussian.gamma1, gaussian.gamma2, normalize=gaussian.normalize)
    form = metric.precision(U, rho / (1 - rho), 0.0, normalize=gaussian.normalize)
    # Correlations do not see the factor of a convex shrinkage.
    return form if gaussian.normalize else form.for_scaled_covariance(1 - rho)


def estimate_rho(gaussian: Gaussian, centred: Tensor | None = None, weights: Tensor | None = None) -> float:
    """ρ of a convex shrinkage: fixed, or estimated from centred features (rows, D); 0 for other shrinkages."""
    rho = gaussian.rho if gaussian.shrinkage == "convex" else 0.0
    if estimate := {"ledoit_wolf": ledoit_wolf, "oas": oas}.get(gaussian.shrinkage):
        assert centred is not None
        rho = estimate(centred, weights)
    return min(rho, MAX_RHO)


def shared_precision(shots: ClassFeatures, gaussian: Gaussian, weights: Tensor | None = None) -> Precision:
    """Σ̂⁻¹ of the covariance pooled within the classes. weights: how many images each row counts as; None: one."""
    means = shots.means(weights).double()
    rho = estimate_rho(gaussian, shots.features.double() - means[shots.labels()], weights)
    n = len(shots.features) if weights is None else float(weights.sum())
    return shrink(shots.pooled_covariance_factor(means, weights), gaussian, n, rho)


def precisions(
    shots: ClassFeatures, gaussian: Gaussian, centers: Tensor | None = None
) -> Iterator[tuple[Tensor, Precision]]:
    """Iterate over all classes, a few of similar counts at a time: class indices (c,) and their Σ̂⁻¹ in float64.

    Σ̂⁻¹ is a batch (c,), or (1,) where those classes share one. centers: (M, C, D) to measure the spread of
    a class about, such as text features, instead of the means of the images (a shared Σ̂ is always about
    those); the batch is then (M, c) or (M, 1).
    """
    if gaussian.shared:
        common = shared_precision(shots, gaussian)
        yield torch.arange(len(shots.counts), device=shots.counts.device), common.map_tensors(lambda t: t[None])
        return
    n, rho, pooled = len(shots.features), estimate_rho(gaussian), None
    single = (shots.counts < 2).nonzero().flatten()
    if gaussian.pooling or len(single):
        middle = shots.means() if centers is None and gaussian.pooling else centers
        factor_of = shots.pooled_covariance_factor if gaussian.pooling else shots.pooled_covariance_factor_with_others
        pooled = factor_of(middle)[..., None, :, :]
    for classes, K in shots.batches(1 if centers is None else len(centers)):
        U = shots.class_covariance_factors(classes, K, centers)
        if gaussian.pooling and pooled is not None:
            common_rows = pooled.expand(*U.shape[:-2], *pooled.shape[-2:])
            U = torch.cat([math.sqrt(1 - gaussian.pooling) * U, math.sqrt(gaussian.pooling) * common_rows], dim=-2)
        with translate_class_indices(classes):
            precision = shrink(U, gaussian, n, rho)
        yield classes, precision
    if len(single) and pooled is not None:
        yield single, shrink(pooled, gaussian.for_single_images, n, rho)


@contextmanager
def translate_class_indices(classes: Tensor) -> Iterator[None]:
    """Replace positions in a batch by its class indices `classes` (c,) in an IndefiniteError."""
    try:
        yield
    except IndefiniteError as error:
        raise IndefiniteError([int(classes[c]) for c in error.classes], *error.gammas) from None


@contextmanager
def name_classes_in_error(names: Sequence[str]) -> Iterator[None]:
    """Add class names to an IndefiniteError."""
    try:
        yield
    except IndefiniteError as error:
        raise IndefiniteError(error.classes, *error.gammas, names=names) from None


def linear_weights(
    shots: ClassFeatures, gaussian: Gaussian, log_prior: float = 0.0, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """W (C, D) and b (C,) of a shared covariance: w_c = Σ⁻¹ μ_c, b_c = log π - ½ μ_cᵀ Σ⁻¹ μ_c.

    weights: how many images each row counts as (N,); None: one.
    """
    if not gaussian.shared:
        raise ValueError("only a covariance that all classes share makes a linear head")
    W = means = head_means(shots, gaussian, weights)
    if gaussian.shrinkage != "identity":
        W = metric.precision_times(shared_precision(shots, gaussian, weights), means)
    return W, log_prior - (W * means).sum(dim=-1) / 2


def log_likelihoods(f: Tensor, shots: ClassFeatures, gaussian: Gaussian) -> Tensor:
    """Inputs of the softmax, up to a term that all classes share: f (N, D) -> (N, C). Exact in float64."""
    if gaussian.shared:
        W, b = linear_weights(shots, gaussian)
        return f @ W.T + b
    means = head_means(shots, gaussian)
    out = f.new_empty(len(means), len(f))
    for classes, form in precisions(shots, gaussian):
        out[classes] = -metric.mahalanobis(form, f, means[classes]) / 2
        if gaussian.log_det:
            out[classes] -= form.log_det[..., None] / 2
    return out.T


def floored_precision(U: Tensor, gamma1: float, gamma2: float, floor: float, *, normalize: bool = True) -> Precision:
    """Shrink UᵀU as `metric.precision` does, raise its eigenvalues to `floor` times their mean, and invert it.

    U: (..., R, D). floor: above 0.
    """
    D = U.shape[-1]
    a, b = shrinkage_terms(U, gamma1, gamma2)
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


# Values in the largest tensor of a batch of images: bounds memory, not results.
MAX_VALUES = 2**23


@dataclass(frozen=True)
class _Scatter:
    """Statistics of all rows in the basis of the eigenvectors of M; symbols as above.

    eigenvalues: e (D,). means: (C, D). rows: (N, V, D). queries: (N, D). counts: rows of each class, (C,).
    """

    eigenvalues: Tensor
    means: Tensor
    rows: Tensor
    queries: Tensor
    labels: Tensor
    counts: Tensor

    @classmethod
    def from_rows(cls, rows: Tensor, labels: Tensor, queries: Tensor, classes: int) -> _Scatter:
        rows, queries = rows.double(), queries.double()
        all_labels = labels.repeat_interleave(rows.shape[1])
        grouped = ClassFeatures.group(rows.flatten(0, 1), all_labels, classes)
        # A class without rows has no mean; zeros stand in, and no score of it is used.
        means = grouped.means().nan_to_num(0.0)
        residuals = rows.flatten(0, 1) - means[all_labels]
        e, Q = torch.linalg.eigh(residuals.mT @ residuals)
        return cls(e.clamp_min(0), means @ Q, rows @ Q, queries @ Q, labels, grouped.counts)

    def batches(self) -> Iterator[Tensor]:
        """Indices of images, a few at a time."""
        N, V, D = self.rows.shape
        batch_size = max(MAX_VALUES // (V * max(len(self.means), D)), 1)
        yield from torch.split(torch.arange(N, device=self.labels.device), batch_size)


def held_out_scores(rows: Tensor, labels: Tensor, queries: Tensor, classes: int, *, corrected: bool = False) -> Tensor:
    """Gaussian part of the score of each image by the model without it: f·w_c + b_c, (N, C) in float64.

    rows: unit features (N, V, D) of the views of each image. labels: (N,). queries: (N, D), the feature to score of
    each image, such as its evaluation view. The score of a class that is left without images is -∞. corrected:
    with the distance to the own class that a new image would have, instead of the refitted one.
    """
    scatter = _Scatter.from_rows(rows, labels, queries, classes)
    scores = torch.cat([_scores_without(scatter, batch, corrected) for batch in scatter.batches()])
    return scores - math.log(classes)


def held_out_logits(rows: Tensor, labels: Tensor, queries: Tensor, text: Tensor, *, tau: float, alpha: float) -> Tensor:
    """GDA's logits τ f·t + α (f·w + b) of each image by the model without it, (N, C) in float64.

    text: unit text features (C, D); the others as in `held_out_scores`.
    """
    return add_text(held_out_scores(rows, labels, queries, len(text)), queries, text, tau=tau, alpha=alpha)


def add_text(scores: Tensor, queries: Tensor, text: Tensor, *, tau: float, alpha: float) -> Tensor:
    """τ f·t + α · scores, (N, C). queries: f (N, D), text: t (C, D)."""
    zero_shot = tau * queries.double() @ text.double().mT
    return zero_shot + alpha * scores if alpha else zero_shot  # 0 · -∞ would not be a number


def _rows_and_means_without(scatter: _Scatter, batch: Tensor) -> tuple[Tensor, Tensor]:
    """E (B, V, D) and μ_y' (B, D) of the images `batch` (B,); μ_y' is not finite for an image alone in its class."""
    y, rows = scatter.labels[batch], scatter.rows[batch]
    V = rows.shape[1]
    own = scatter.means[y]
    delta = rows - own[:, None]
    middle = delta.mean(dim=1)
    left = (scatter.counts[y] - V)[:, None].double()
    # (I + 11ᵀ/(m - V))^½ = I + c 11ᵀ. The rows of a lone image are already centred: there c does not matter.
    factor = torch.where(left > 0, (1 + V / left.clamp_min(1)).sqrt() - 1, 0.0)
    return delta + (factor * middle)[:, None], own - V / left * middle


def _scores_without(scatter: _Scatter, batch: Tensor, corrected: bool) -> Tensor:
    """f·w_c - ½ μ_c·w_c of the images `batch` (B,), each without itself: (B, C)."""
    E, own = _rows_and_means_without(scatter, batch)
    N, V, D = scatter.rows.shape
    f, means, y = scatter.queries[batch], scatter.means, scatter.labels[batch]
    degrees = max((N - 1) * V - 1, 1)
    trace = scatter.eigenvalues.sum() - E.square().sum(dim=(1, 2))
    # As in `metric.precision`: without any variation Σ̂ = I, which is M + (n' - 1) I here.
    shift = torch.where(trace / degrees <= FLAT, float(degrees), trace / degrees)
    w = 1 / (scatter.eigenvalues + shift[:, None])
    L = torch.linalg.cholesky(torch.eye(V, dtype=E.dtype, device=E.device) - (E * w[:, None]) @ E.mT)
    taken: Tensor = torch.linalg.solve_triangular(L, E * w[:, None], upper=False)  # L⁻¹ E diag(w), (B, V, D)
    along_f = (taken @ f[..., None])[..., 0]

    along = taken @ means.mT  # (B, V, C)
    linear = (w * f) @ means.mT + (along_f[:, None] @ along)[:, 0]
    squared = w @ means.square().mT + along.square().sum(dim=1)
    along_own = (taken @ own[..., None])[..., 0]
    own_linear = (w * f * own).sum(dim=-1) + (along_f * along_own).sum(dim=-1)
    own_squared = (w * own.square()).sum(dim=-1) + along_own.square().sum(dim=-1)
    own_score = own_linear - own_squared / 2
    if corrected:
        distance = (w * (f - own).square()).sum(dim=-1) + (along_f - along_own).square().sum(dim=-1)
        own_score = own_score + distance / 2 * (V / scatter.counts[y].double()).square()
    own_score = torch.where(scatter.counts[y] > V, own_score, -torch.inf)
    scores = (linear - squared / 2).scatter(1, y[:, None], own_score[:, None])
    return D * scores.masked_fill(scatter.counts == 0, -torch.inf)
