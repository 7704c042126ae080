"""Two experts over frozen features, with exact leave-one-out: a Gaussian head with text, and kernel ridge regression.

All computations are in float64.

**Gaussian head whose class means are informed by text.** Unit image features x_i with labels y_i, n_c images of class
c, N in all, unit text features t_c:

    x̄_c  mean of class c,   x̄  mean of the x̄_c,   t̄  mean of the t_c
    t̃_c = x̄ + r (t_c - t̄),   r = mean_c ‖x̄_c - x̄‖ / mean_c ‖t_c - t̄‖      text moved to where images are
    m_c = (k t̃_c + n_c x̄_c) / (k + n_c)                                     text counts as k images
    S   = 1/ν Σ_i (x_i - x̄_{y_i}) (x_i - x̄_{y_i})ᵀ,   ν = N - C,   s̄ = tr(S) / D
    Σ   = S + g V,   V diagonal,   V_dd = (ν S_dd + n₀ s̄) / (ν + n₀)
    score_c(x) = xᵀ P m_c - ½ m_cᵀ P m_c + ½ T n_c / (k + n_c)²,   P = Σ⁻¹

The last term is a constant for balanced classes. It takes out what the noise of x̄_c adds to m_cᵀ P m_c, which would
keep rare classes from ever being predicted; T is the mean squared distance of an image to the true mean of its class,
from the held-out distances d² to x̄_c of images without copies: T = mean of d² / (1 + 1/(n_c - 1)).

V is the variance of each feature, drawn towards the mean of all as if by n₀ = 20 images, so that few images cannot make
a feature look certain. Features of CLIP vary by very different amounts, and with one variance for all, those that vary
little would be drowned. In units of V^½ the ridge is g I. Features without negative values, those of a ReLU, vary
little where they are silent, which is no reason to listen to them: of these V = s̄ I.

Leaving images out changes the means of their classes and S; ν, V, t̃ and T n_c / (k + n_c)² are held fixed. For one
image with d = x - x̄_y and n = n_y, S loses n / ((n - 1) ν) d dᵀ, so that P gains a matrix of rank one. Images that are
copies of each other leave together. The scores of every image under the model without it then cost one
eigendecomposition and a few products (N, D) x (D, C), in coordinates in which P is the identity. All vectors lie in the
span of the images and texts, so that the eigendecomposition has at most N + C rows.

A held-out image is farther from the mean of the n - b remaining images than a new image is from the mean of n.
`corrected` scores multiply its squared distance to every class that lost b images, its own or that of its copies, by
(1 + 1/(n + k)) / (1 + 1/(n - b + k)). The class that lost images is also closer to its text, and its ½ m_cᵀ P m_c is
smaller, which tells the label. `fixed_shares` keeps the weights k / (k + n) and n / (k + n) of the whole class: for
estimates, not for choosing k, where the mean of fewer images should lean on the text.

Where fewer than half of the images have another image of their class, little can be left out and S would be
almost nothing. Then S is the covariance about the texts, 1/N Σ_i (x_i - t̃_{y_i}) (x_i - t̃_{y_i})ᵀ, V = s̄ I, and the
length of a mean says more about its one image than about its class: with c̄ the mean of the m_c, ‖·‖ the norm of P and L
the mean of the lengths,

    score_c(x) = (x - c̄)ᵀ P (m_c - c̄) L / ‖m_c - c̄‖.

**Kernel ridge regression** to one-hot labels over the training images:

    κ(x, x') = exp(-w (1 - x·x') / s),   s = mean over pairs of training images of 1 - x·x'
    min over f of  Σ_i ω_i ‖f(x_i) - y_i‖² + λ ‖f‖²,   ω_i = N / (C n_{y_i}), so that all classes count the same
    G = (K + λ Ω⁻¹)⁻¹,   A = G Y,   f(x) = κ(x, ·) A,   λ = ρ times the mean eigenvalue of Ω^½ K Ω^½

The prediction for an image by the model without it is y_i - A_i / G_ii; images B that leave together have
Y_B - G_BB⁻¹ A_B. One eigendecomposition serves every ρ. The mean eigenvalue is 1, since κ(x, x) = 1 and Σ_i ω_i = N.

With very many images f is restricted to combinations of κ(·, z) of m landmarks z, drawn among the images (Nyström):

    φ(x) = R⁻¹ κ(z, x),  R Rᵀ = κ(z, z),   f(x) = β φ(x),   M = Σ_i ω_i φ_i φ_iᵀ + λ I,   β = Σ_i ω_i y_i φ_iᵀ M⁻¹

Without image i, with φ held fixed, f_-i(x) = f(x) - φ(x)ᵀ M⁻¹ φ_i ω_i (y_i - f(x_i)) / (1 - ω_i φ_iᵀ M⁻¹ φ_i), and
with all images as landmarks this is the problem above. Time and memory grow linearly with N.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.methods.shared.class_features import ClassFeatures
from dca.stats.intervals import effective_images

# Most images that a choice looks at, which bounds its time.
MAX_VOTERS = 4096
# Images at a time, where there may be very many.
BLOCK = 4096
# n₀: images that the mean variance of all features counts as in the variance of each. Chosen on validation images.
VARIANCE_IMAGES = 20.0
# Nothing is chosen where the largest class has `RARE` times as many images that can be left out as the smallest, and
# all are worth fewer than `FEW_VOTES` of balanced classes. Chosen on training and validation images.
RARE, FEW_VOTES = 4, 30


def is_nonnegative(x: Tensor) -> bool:
    """Whether no feature (N, D) has a negative value, as behind a ReLU: those that say little then vary little."""
    return bool((x >= 0).all())


@dataclass(frozen=True)
class TextGaussian:
    """Training features and text features, with the statistics that all k and g share.

    x: unit features (N, D). labels: (N,). text: unit text features (C, D). groups: (N,), copies share a number.
    All float64; a class may have no image.
    """

    x: Tensor
    labels: Tensor
    text: Tensor
    groups: Tensor

    @classmethod
    def from_features(
        cls, features: Tensor, labels: Tensor, text: Tensor, groups: Tensor | None = None
    ) -> TextGaussian:
        """Convert unit features (N, D), labels (N,) and unit text features (C, D) of any type."""
        if groups is None:
            groups = torch.arange(len(labels), device=labels.device)
        return cls(features.double(), labels, text.double(), groups)

    @cached_property
    def counts(self) -> Tensor:
        """n_c, (C,)."""
        return torch.bincount(self.labels, minlength=len(self.text)).double()

    @cached_property
    def means(self) -> Tensor:
        """x̄_c, (C, D); that of a class without images is x̄."""
        grouped = ClassFeatures.group(self.x, self.labels, len(self.text))
        filled = self.counts > 0
        means = torch.where(filled[:, None], grouped.means(), 0)
        return torch.where(filled[:, None], means, means[filled].mean(dim=0))

    @cached_property
    def moved_text(self) -> Tensor:
        """t̃_c, (C, D)."""
        center = self.means[self.counts > 0].mean(dim=0)
        text = self.text - self.text.mean(dim=0)
        spread = (self.means[self.counts > 0] - center).norm(dim=-1).mean()
        r: Tensor = spread / text.norm(dim=-1).mean().clamp_min(1e-12)
        return center + r * text

    @cached_property
    def peers(self) -> Tensor:
        """Whether each image can be left out, (N,): see `has_peers`."""
        return has_peers(self.labels, self.groups)

    @cached_property
    def copies(self) -> list[Tensor]:
        """Groups of several images, as indices of these images."""
        return list(iterate_copies(self.groups))

    @cached_property
    def voters(self) -> Tensor:
        """Images that can be left out, at most `MAX_VOTERS` of them, by which hyperparameters are chosen: (n,)."""
        rows = self.peers.nonzero()[:, 0]
        return rows[subsample(len(rows), MAX_VOTERS)]

    @cached_property
    def can_hold_out(self) -> bool:
        """Whether enough images can be left out: at least half of them."""
        return 2 * int(self.peers.sum()) >= len(self.labels)

    @cached_property
    def can_choose(self) -> bool:
        """Whether hyperparameters can be chosen by images that are left out: enough, of two classes or more.

        Where classes are rare and votes few (`RARE`, `FEW_VOTES`), a handful of images would decide.
        """
        if not self.can_hold_out:
            return False
        labels, groups = self.labels[self.peers].cpu(), self.groups[self.peers].cpu()
        votes = torch.bincount(torch.unique(torch.stack([labels, groups]), dim=1)[0])
        votes = votes[votes > 0]
        if len(votes) < 2:
            return False
        return bool(votes.max() < RARE * votes.min()) or effective_images(labels, groups) >= FEW_VOTES

    @cached_property
    def residuals(self) -> Tensor:
        """d_i = x_i - x̄_{y_i}, or x_i - t̃_{y_i} where too few images can be left out: (N, D)."""
        return self.x - (self.means if self.can_hold_out else self.moved_text)[self.labels]

    @cached_property
    def nu(self) -> float:
        """ν: degrees of freedom of S."""
        return float(len(self.x) - int((self.counts > 0).sum())) if self.can_hold_out else float(len(self.x))

    @cached_property
    def deviations(self) -> Tensor:
        """V^½, (D,)."""
        variances = self.residuals.square().sum(dim=0) / self.nu
        mean = variances.mean().clamp_min(1e-12)
        if not self.can_hold_out or is_nonnegative(self.x):
            return mean.sqrt().expand_as(variances)
        return ((self.nu * variances + VARIANCE_IMAGES * mean) / (self.nu + VARIANCE_IMAGES)).sqrt()

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (R,) of S in units of V, and V^-½ times its eigenvectors (D, R) in the span of images and texts.

        R is at most D and N + C.
        """
        unit = self.deviations
        residuals = self.residuals / unit
        if len(self.x) + len(self.text) >= self.x.shape[1]:
            values, vectors = torch.linalg.eigh(residuals.T @ residuals / self.nu)
        else:
            span = torch.linalg.qr((torch.cat([self.x, self.moved_text]) / unit).T).Q
            residuals = residuals @ span
            values, inside = torch.linalg.eigh(residuals.T @ residuals / self.nu)
            vectors = span @ inside
        return values.clamp_min(0), vectors / unit[:, None]

    def whiten(self, g: float) -> WhitenedGaussian:
        """Change to coordinates in which Σ is the identity."""
        values, vectors = self.spectrum
        return WhitenedGaussian(self, vectors * (values + g).rsqrt())


@dataclass(frozen=True)
class WhitenedGaussian:
    """A `TextGaussian` for one ridge g. basis: (D, R), P = basis basisᵀ in the span of images and texts."""

    source: TextGaussian
    basis: Tensor

    @cached_property
    def text(self) -> Tensor:
        """t̃, (C, R)."""
        return self.source.moved_text @ self.basis

    @cached_property
    def means(self) -> Tensor:
        """x̄_c, (C, R)."""
        return self.source.means @ self.basis

    def centers(self, k: float) -> Tensor:
        """m_c, (C, R); that of a class without images is t̃_c."""
        return mix_means(self.text, self.means, self.source.counts, k)

    def linear(self, k: float) -> tuple[Tensor, Tensor]:
        """W (C, D) and b (C,) of score_c(x) = w_c · x + b_c, for images in their own coordinates."""
        centers = self.centers(k)
        if self.source.can_hold_out:
            return centers @ self.basis.T, self.noise_terms(k) - centers.square().sum(dim=-1) / 2
        middle = centers.mean(dim=0)
        lengths = (centers - middle).norm(dim=-1, keepdim=True).clamp_min(1e-12)
        centers = (centers - middle) * (lengths.mean() / lengths)
        return centers @ self.basis.T, -centers @ middle

    def mean_length(self, k: float) -> float:
        """L, mean of ‖m_c - c̄‖."""
        centers = self.centers(k)
        return float((centers - centers.mean(dim=0)).norm(dim=-1).mean())

    @cached_property
    def spread(self) -> Tensor:
        """T, every class with the same weight; 0 if no image can be left out."""
        source, p = self.source, self._voter_products
        alone = torch.bincount(source.groups)[source.groups[p.rows]] == 1
        labels = source.labels[p.rows][alone]
        n = source.counts[labels]
        distances = (p.h + p.gamma * p.h**2)[alone] * n / (n - 1).clamp_min(1)
        counts = torch.bincount(labels, minlength=len(source.counts)).double()
        sums = torch.zeros_like(source.counts).index_add_(0, labels, distances)
        return (sums / counts.clamp_min(1)).sum() / (counts > 0).sum().clamp_min(1)

    def noise_terms(self, k: float) -> Tensor:
        """½ T n_c / (k + n_c)² minus its mean, (C,)."""
        counts = self.source.counts
        shares = counts / (k + counts).square().clamp_min(1e-12)
        terms: Tensor = self.spread * (shares - shares.mean()) / 2
        return terms

    def _residuals(self, x: Tensor, rows: Tensor) -> Tensor:
        """x_i - x̄_{y_i} of the images `rows` (n,), which are x (n, R) in these coordinates: (n, R)."""
        return x - self.means[self.source.labels[rows]]

    def _gamma(self, h: Tensor, rows: Tensor) -> Tensor:
        """Factor of P d dᵀ P in the change of P without each of the images `rows`, h = dᵀ P d: (n,)."""
        n = self.source.counts[self.source.labels[rows]]
        alpha = torch.where(n > 1, n / ((n - 1).clamp_min(1) * self.source.nu), 0.0)
        return alpha / (1 - alpha * h)

    @cached_property
    def _products(self) -> _Products:
        return self._products_of(torch.arange(len(self.source.x), device=self.basis.device))

    @cached_property
    def _voter_products(self) -> _Products:
        return self._products_of(self.source.voters)

    def _products_of(self, rows: Tensor) -> _Products:
        x, t, m = self.source.x[rows] @ self.basis, self.text, self.means
        d = self._residuals(x, rows)
        h = d.square().sum(dim=-1)
        return _Products(
            xt=x @ t.T, xm=x @ m.T, dt=d @ t.T, dm=d @ m.T, xd=(x * d).sum(dim=-1), h=h,
            xx=x.square().sum(dim=-1), tt=t.square().sum(dim=-1), tm=(t * m).sum(dim=-1), mm=m.square().sum(dim=-1),
            gamma=self._gamma(h, rows), rows=rows, joint=self._joint_products_of(rows),
        )  # fmt: skip

    def _joint_products_of(self, rows: Tensor) -> _JointProducts | None:
        """Those of the images among `rows` that have copies; None where there are none."""
        place = torch.full_like(self.source.labels, -1)
        place[rows] = torch.arange(len(rows), device=rows.device)
        parts = [
            self._leave_out(copies, kept, place[kept])
            for copies in self.source.copies
            if len(kept := copies[place[copies] >= 0])
        ]
        return _JointProducts.concatenate(parts) if parts else None

    def held_out(self, k: float, *, corrected: bool = True, fixed_shares: bool = False) -> tuple[Tensor, Tensor]:
        """Scores (N, C) and squared distances (N, C) of every image under the model without it and its copies."""
        return self._held_out(self._products, k, corrected, fixed_shares)

    def voters_held_out(self, k: float) -> Tensor:
        """The scores of `held_out` for the images `source.voters`, (n, C)."""
        return self._held_out(self._voter_products, k, corrected=True, fixed_shares=False)[0]

    def _held_out(self, products: _Products, k: float, corrected: bool, fixed_shares: bool) -> tuple[Tensor, Tensor]:
        source = self.source
        scores, squares = self._held_out_singly(products, k, fixed_shares)
        at, y = torch.arange(len(scores), device=scores.device), source.labels[products.rows]
        lost = None
        if (joint := products.joint) is not None:
            scores[joint.at], squares[joint.at] = self._held_out_jointly(joint, k, fixed_shares)
            lost = F.one_hot(y, len(source.counts)).double()
            lost[joint.at] = source.counts - joint.remaining
        if corrected and lost is None:
            one = torch.ones_like(y)
            scores[at, y] += (1 - self._distance_correction(k, y, one)) * squares[at, y] / 2
        elif corrected and lost is not None:
            i, c = lost.nonzero(as_tuple=True)
            scores[i, c] += (1 - self._distance_correction(k, c, lost[i, c])) * squares[i, c] / 2
        return scores + self.noise_terms(k), squares

    def _distance_correction(self, k: float, classes: Tensor, lost: Tensor) -> Tensor:
        """Factor of the squared distance to each of the classes (n,) that lost so many images (n,): (n,)."""
        n = self.source.counts[classes] + k
        remaining = n - lost
        return torch.where(remaining > 0, (1 + 1 / n) / (1 + 1 / remaining), 1.0)

    def _held_out_singly(self, p: _Products, k: float, fixed_shares: bool) -> tuple[Tensor, Tensor]:
        """As `held_out`, as if no image had copies."""
        y, counts = self.source.labels[p.rows], self.source.counts
        n, gamma = counts[y], p.gamma
        u, v = _weights(counts, k)
        xm, dm = u * p.xt + v * p.xm, u * p.dt + v * p.dm
        mm = (u**2 * p.tt + v**2 * p.mm + 2 * u * v * p.tm).repeat(len(y), 1)
        # The own class, whose mean lost the image: u t̃ + v x̄ - w d.
        rows, (u, v) = torch.arange(len(y), device=y.device), _weights_without(n, n - 1, k, fixed_shares)
        w = v / (n - 1).clamp_min(1)
        dt, dx = p.dt[rows, y], p.dm[rows, y]
        xm[rows, y] = u * p.xt[rows, y] + v * p.xm[rows, y] - w * p.xd
        dm[rows, y] = u * dt + v * dx - w * p.h
        mm[rows, y] = u**2 * p.tt[y] + v**2 * p.mm[y] + 2 * u * v * p.tm[y] + w**2 * p.h - 2 * w * (u * dt + v * dx)
        xd = p.xd[:, None]
        xm, mm = xm + gamma[:, None] * xd * dm, mm + gamma[:, None] * dm**2
        return xm - mm / 2, (p.xx + gamma * p.xd**2)[:, None] - 2 * xm + mm

    def without_each(self, rows: Tensor, k: float) -> GaussianWithoutEach:
        """Scores of new images under the models without image i of `rows` (n,); no other image leaves with i."""
        y, counts = self.source.labels[rows], self.source.counts
        d, n = self._residuals(self.source.x[rows] @ self.basis, rows), counts[y]
        gamma = self._gamma(d.square().sum(dim=-1), rows)[:, None]
        centers, (u, v) = self.centers(k), _weights(counts, k)
        dm = d @ centers.T
        mm = centers.square().sum(dim=-1).repeat(len(rows), 1)
        # The own class of the image that is left out has another mean: u t̃ + v x̄ - w d.
        at, (own_u, own_v) = torch.arange(len(rows), device=y.device), _weights(n - 1, k)
        w = own_v / (n - 1).clamp_min(1)
        own = own_u[:, None] * self.text[y] + own_v[:, None] * self.means[y] - w[:, None] * d
        dm[at, y], mm[at, y] = (d * own).sum(dim=-1), own.square().sum(dim=-1)
        return GaussianWithoutEach(
            weight=self.basis @ torch.cat([self.text, self.means, d]).T,
            shares=torch.stack([u, v]),
            changes=torch.stack([own_u - u[y], own_v - v[y], -w]),
            labels=y,
            factors=gamma * dm,
            constant=self.noise_terms(k) - (mm + gamma * dm**2) / 2,
        )

    def _held_out_jointly(self, p: _JointProducts, k: float, fixed_shares: bool) -> tuple[Tensor, Tensor]:
        """As `held_out`, for images that leave with their copies."""
        u, v = _weights_without(self.source.counts, p.remaining, k, fixed_shares)
        xm, mm = u * p.xt + v * p.xm, u**2 * p.tt + v**2 * p.mm + 2 * u * v * p.tm
        return xm - mm / 2, p.xx[:, None] - 2 * xm + mm

    def _leave_out(self, copies: Tensor, rows: Tensor, at: Tensor) -> _JointProducts:
        """Products of the images `rows` (n,) without `copies` (b,), which hold them. at: their places, (n,)."""
        source, nu, C = self.source, self.source.nu, len(self.text)
        means, counts, x = self.means.clone(), source.counts.clone(), source.x[rows] @ self.basis
        leaving, labels, lost = source.x[copies] @ self.basis, source.labels[copies], []
        for c in sorted(set(labels.tolist())):
            d = leaving[labels == c] - self.means[c]
            counts[c] -= len(d)
            lost.append(d)
            if counts[c] > 0:
                lost.append(d.sum(dim=0, keepdim=True) / counts[c].sqrt())
                means[c] -= d.sum(dim=0) / counts[c]
        U = torch.cat(lost)  # rows u with Σ without the images = Σ - 1/ν Uᵀ U
        inner = nu * torch.eye(len(U), dtype=U.dtype, device=U.device) - U @ U.T
        both = torch.cat([self.text, means, x])
        products = both @ U.T
        change = torch.linalg.solve(inner, products.T).T  # P gains Uᵀ inner⁻¹ U
        (t, m, _), (tu, mu, xu) = torch.split(both, [C, C, len(x)]), torch.split(products, [C, C, len(x)])
        t_change, m_change, x_change = torch.split(change, [C, C, len(x)])
        tt = t.square().sum(dim=-1) + (tu * t_change).sum(dim=-1)
        tm = (t * m).sum(dim=-1) + (tu * m_change).sum(dim=-1)
        mm = m.square().sum(dim=-1) + (mu * m_change).sum(dim=-1)
        return _JointProducts(
            xt=x @ t.T + xu @ t_change.T, xm=x @ m.T + xu @ m_change.T,
            tt=tt.expand(len(x), C), tm=tm.expand(len(x), C), mm=mm.expand(len(x), C),
            remaining=counts.expand(len(x), C), xx=x.square().sum(dim=-1) + (xu * x_change).sum(dim=-1), at=at,
        )  # fmt: skip


@dataclass(frozen=True)
class GaussianWithoutEach:
    """Scores of new images under the Gaussian heads without each of n images i, which are of classes y_i.

        x·P m_c + (x·P d_i) γ_i d_i·m_c - ½ (m_c·P m_c + γ_i (d_i·m_c)²) + noise term,

    in which the mean of class y_i is the one without i, m_{y_i} plus a change.

    weight: P t̃_c, P x̄_c and P d_i as columns (D, 2 C + n). shares: of t̃_c and x̄_c in m_c (2, C). changes: of these
    shares for class y_i, and the share of d_i (3, n). labels: y_i (n,). factors: (n, C). constant: (n, C).
    """

    weight: Tensor
    shares: Tensor
    changes: Tensor
    labels: Tensor
    factors: Tensor
    constant: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Unit features x (B, D) -> scores (B, n, C)."""
        n, C = self.constant.shape
        text, means, residuals = torch.split(x.double() @ self.weight, [C, C, n], dim=-1)
        own = self.changes[0] * text[:, self.labels] + self.changes[1] * means[:, self.labels]
        own = own + self.changes[2] * residuals
        scores = (self.shares[0] * text + self.shares[1] * means)[:, None, :] + self.constant
        is_own = F.one_hot(self.labels, C).double()
        return scores + residuals[..., None] * self.factors + own[..., None] * is_own


@dataclass(frozen=True)
class KernelWithoutEach:
    """Predictions of kernel ridge for new images x without each of n images i: κ(x, ·) A - (κ(x, ·) Q_i) r_i.

    keys: (m, D). rate: of the kernel. coefficients: A (m, C). changes: Q (m, n). steps: r (n, C).
    """

    keys: Tensor
    rate: float
    coefficients: Tensor
    changes: Tensor
    steps: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Unit features x (B, D) -> predictions (B, n, C)."""
        values = (self.rate * (x.double() @ self.keys.T - 1)).exp()
        return (values @ self.coefficients)[:, None, :] - (values @ self.changes)[..., None] * self.steps


@dataclass(frozen=True)
class _Products:
    """Products of images x, residuals d, texts t and means m with P between them: (n, C), (n,) and (C,).

    gamma: as `_gamma`, (n,). rows: the images, (n,). joint: of those that leave with copies, if any.
    """

    xt: Tensor
    xm: Tensor
    dt: Tensor
    dm: Tensor
    xd: Tensor
    h: Tensor
    xx: Tensor
    tt: Tensor
    tm: Tensor
    mm: Tensor
    gamma: Tensor
    rows: Tensor
    joint: _JointProducts | None


@dataclass(frozen=True)
class _JointProducts:
    """Products of n images that leave with their copies, with texts t and means m, and P between them.

    P and the means are those without the copies. They do not depend on k, so that every k costs a few sums.

    xt, xm, tt, tm, mm: (n, C). remaining: images that each class keeps, (n, C). xx: (n,). at: place of each, (n,).
    """

    xt: Tensor
    xm: Tensor
    tt: Tensor
    tm: Tensor
    mm: Tensor
    remaining: Tensor
    xx: Tensor
    at: Tensor

    @classmethod
    def concatenate(cls, parts: Sequence[_JointProducts]) -> _JointProducts:
        """Those of several groups of copies together."""
        columns = ([getattr(part, field.name) for part in parts] for field in fields(cls))
        return cls(*(torch.cat(column) for column in columns))


def _weights(n: Tensor, k: float) -> tuple[Tensor, Tensor]:
    """Weights of text and images in a mean of n images: k / (k + n) and n / (k + n); all text where both are 0."""
    total = (k + n).clamp_min(1e-12)
    return torch.where(k + n > 0, k / total, 1.0), n / total


def _weights_without(n: Tensor, remaining: Tensor, k: float, fixed_shares: bool) -> tuple[Tensor, Tensor]:
    """`_weights` of the remaining images, or with fixed shares those of all n; all text where none remains."""
    if not fixed_shares:
        return _weights(remaining, k)
    u, v = _weights(n, k)
    return torch.where(remaining > 0, u, 1.0), torch.where(remaining > 0, v, 0.0)


def mix_means(text: Tensor, means: Tensor, counts: Tensor, k: float) -> Tensor:
    """m_c = (k t̃_c + n_c x̄_c) / (k + n_c) of texts and means (C, D) and counts (C,)."""
    u, v = _weights(counts, k)
    return u[:, None] * text + v[:, None] * means


def has_peers(labels: Tensor, groups: Tensor) -> Tensor:
    """Whether another image of the class, not a copy, remains without an image: labels, groups (N,) -> (N,)."""
    pairs = torch.unique(torch.stack([labels, groups]), dim=1)
    return (torch.bincount(pairs[0]) > 1)[labels]


def subsample(count: int, most: int) -> Tensor:
    """Draw at most `most` of the indices below `count`, always the same ones, in order."""
    if count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:most].sort().values


def iterate_copies(groups: Tensor) -> Iterator[Tensor]:
    """Iterate over groups with several images, as indices of these images. groups: (N,)."""
    order = groups.argsort(stable=True)
    sizes = torch.bincount(groups)
    for rows in torch.split(order, sizes[sizes > 0].tolist()):
        if len(rows) > 1:
            yield rows


def kernel_rate(x: Tensor, width: float) -> float:
    """W / s of unit features x (N, D), s the mean of 1 - x·x' over pairs of different images."""
    n = len(x)
    return width / max(float((n - x.sum(dim=0).square().sum() / n) / max(n - 1, 1)), 1e-12)


def image_weights(labels: Tensor, classes: int) -> Tensor:
    """ω_i = N / (C n_{y_i}), C the classes that have images: (N,)."""
    counts = torch.bincount(labels, minlength=classes).double()
    return len(labels) / ((counts > 0).sum() * counts[labels])


@dataclass(frozen=True)
class KernelRidge:
    """Kernel ridge regression on unit features x (N, D), float64, and labels (N,) of C classes.

    groups: (N,), copies share a number. width: w.
    """

    x: Tensor
    labels: Tensor
    classes: int
    groups: Tensor
    width: float

    @cached_property
    def rate(self) -> float:
        """Rate w / s; kernel values are exp(-rate (1 - x·x'))."""
        return kernel_rate(self.x, self.width)

    @property
    def keys(self) -> Tensor:
        """The images that predictions compare with, (N, D)."""
        return self.x

    def kernel_values(self, x: Tensor) -> Tensor:
        """κ of unit features x (B, D) and the training images: (B, N)."""
        return (self.rate * (x.double() @ self.x.T - 1)).exp()

    @cached_property
    def targets(self) -> Tensor:
        """Y, one-hot labels (N, C)."""
        return F.one_hot(self.labels, self.classes).double()

    @cached_property
    def _root(self) -> Tensor:
        """√ω_i, (N,)."""
        return image_weights(self.labels, self.classes).sqrt()

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        weighted = self._root[:, None] * self.kernel_values(self.x) * self._root
        values, vectors = torch.linalg.eigh(weighted)
        return values.clamp_min(0), vectors

    def _inverse(self, rho: float) -> tuple[Tensor, Tensor]:
        """G = B diag(1 / (e + λ)) Bᵀ: B (N, N) and 1 / (e + λ) (N,)."""
        values, vectors = self._spectrum
        return self._root[:, None] * vectors, 1 / (values + rho * values.mean())

    def coefficients(self, rho: float) -> Tensor:
        """A = G Y, (N, C)."""
        B, inverse = self._inverse(rho)
        return B @ (inverse[:, None] * (B.T @ self.targets))

    def held_out(self, rho: float, rows: Tensor | None = None) -> Tensor:
        """Predictions (N, C) for every image, or (n, C) for those of `rows`, without it and its copies."""
        B, inverse = self._inverse(rho)
        A = self.coefficients(rho)
        held = self.targets - A / (B.square() @ inverse)[:, None]
        for copies in iterate_copies(self.groups):
            block = (B[copies] * inverse) @ B[copies].T
            held[copies] = self.targets[copies] - torch.linalg.solve(block, A[copies])
        return held if rows is None else held[rows]

    def without_each(self, rows: Tensor, rho: float) -> KernelWithoutEach:
        """Predictions for new images by the models without image i of `rows` (n,)."""
        B, inverse = self._inverse(rho)
        A = self.coefficients(rho)
        diagonal = (B[rows].square() @ inverse)[:, None]
        return KernelWithoutEach(self.x, self.rate, A, (B * inverse) @ B[rows].T, A[rows] / diagonal)


@dataclass(frozen=True)
class LandmarkRidge:
    """Kernel ridge regression over landmarks; x, labels, classes, groups and width as in `KernelRidge`.

    landmarks: images that are landmarks, (m,).
    """

    x: Tensor
    labels: Tensor
    classes: int
    groups: Tensor
    width: float
    landmarks: Tensor

    @classmethod
    def with_landmarks(cls, x: Tensor, labels: Tensor, classes: int, groups: Tensor, width: float, m: int) -> Self:
        """Draw m landmarks, equally many of each class as far as it has them."""
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).to(labels.device)
        by_class = order[labels[order].argsort(stable=True)]
        starts = torch.bincount(labels, minlength=classes).cumsum(0).roll(1)
        starts[0] = 0
        rank = torch.arange(len(labels), device=labels.device) - starts[labels[by_class]]
        return cls(x, labels, classes, groups, width, by_class[rank.argsort(stable=True)[:m]].sort().values)

    @cached_property
    def rate(self) -> float:
        """Rate w / s, s over all training images."""
        return kernel_rate(self.x, self.width)

    @property
    def keys(self) -> Tensor:
        """The landmarks, (m, D)."""
        return self.x[self.landmarks]

    def kernel_values(self, x: Tensor) -> Tensor:
        """κ of unit features x (B, D) and the landmarks: (B, m)."""
        return (self.rate * (x.double() @ self.keys.T - 1)).exp()

    @cached_property
    def _root(self) -> Tensor:
        """R, lower triangular (m, m)."""
        values = self.kernel_values(self.keys)
        values.diagonal().add_(1e-9)  # landmarks may be copies of each other
        root: Tensor = torch.linalg.cholesky(values)
        return root

    def _features(self, x: Tensor) -> Tensor:
        """φ, (B, m)."""
        features: Tensor = torch.linalg.solve_triangular(self._root, self.kernel_values(x).T, upper=False).T
        return features

    @cached_property
    def _weights(self) -> Tensor:
        return image_weights(self.labels, self.classes)

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Eigenvalues (m,) and eigenvectors (m, m) of Σ_i ω_i φ_i φ_iᵀ, and Σ_i ω_i φ_i y_iᵀ (m, C)."""
        m = len(self.landmarks)
        second, first = self.x.new_zeros(m, m), self.x.new_zeros(self.classes, m)
        for rows in torch.split(torch.arange(len(self.x), device=self.x.device), BLOCK):
            values = self.kernel_values(self.x[rows])
            weighted = values * self._weights[rows, None]
            second.addmm_(values.T, weighted)
            first.index_add_(0, self.labels[rows], weighted)
        half = torch.linalg.solve_triangular(self._root, second, upper=False)
        second = torch.linalg.solve_triangular(self._root, half.T, upper=False)
        values, vectors = torch.linalg.eigh((second + second.T) / 2)
        return values.clamp_min(0), vectors, torch.linalg.solve_triangular(self._root, first.T, upper=False)

    def _beta(self, rho: float) -> Tensor:
        """βᵀ, (m, C)."""
        values, vectors, first = self._moments
        return vectors @ ((vectors.T @ first) / (values + rho)[:, None])

    def coefficients(self, rho: float) -> Tensor:
        """A with f(x) = κ(x, z) A, (m, C)."""
        found: Tensor = torch.linalg.solve_triangular(self._root.T, self._beta(rho), upper=True)
        return found

    def held_out(self, rho: float, rows: Tensor | None = None) -> Tensor:
        """Predictions (N, C) for every image, or (n, C) for those of `rows`, without it and its copies."""
        rows = torch.arange(len(self.x), device=self.x.device) if rows is None else rows
        values, vectors, _ = self._moments
        beta = self._beta(rho)
        held = self.x.new_empty(len(rows), self.classes)
        for at in torch.split(torch.arange(len(rows), device=rows.device), BLOCK):
            phi, y, weights = self._take(rows[at])
            own = weights * ((phi @ vectors).square() / (values + rho)).sum(dim=-1)
            held[at] = y - (y - phi @ beta) / (1 - own)[:, None]
        place = torch.full_like(self.labels, -1)
        place[rows] = torch.arange(len(rows), device=rows.device)
        for copies in iterate_copies(self.groups):
            if (kept := place[copies] >= 0).any():
                phi, y, weights = self._take(copies)
                turned = phi @ vectors
                hat = (turned / (values + rho)) @ turned.T * weights
                left = torch.linalg.solve(torch.eye(len(hat), dtype=hat.dtype, device=hat.device) - hat, y - phi @ beta)
                held[place[copies][kept]] = (y - left)[kept]
        return held

    def without_each(self, rows: Tensor, rho: float) -> KernelWithoutEach:
        """Predictions for new images by the models without image i of `rows` (n,)."""
        values, vectors, _ = self._moments
        beta, (phi, y, weights) = self._beta(rho), self._take(rows)
        turned = (phi @ vectors) / (values + rho)
        own = weights * (turned * (phi @ vectors)).sum(dim=-1)
        changes = vectors @ turned.T * (weights / (1 - own))
        changes = torch.linalg.solve_triangular(self._root.T, changes, upper=True)
        return KernelWithoutEach(self.keys, self.rate, self.coefficients(rho), changes, y - phi @ beta)

    def _take(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """φ (n, m), one-hot labels (n, C) and ω (n,) of the images `rows`."""
        targets = F.one_hot(self.labels[rows], self.classes).double()
        return self._features(self.x[rows]), targets, self._weights[rows]
