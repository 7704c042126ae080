"""Two experts over frozen features, with exact leave-one-out: a Gaussian head with text, and kernel ridge regression.

All computations are in float64.

**Gaussian head whose class means are informed by text.** Unit image features x_i with labels y_i, n_c images of class
c, N in all, unit text features t_c:

    x̄_c  mean of class c,   x̄  mean of the x̄_c,   t̄  mean of the t_c
    t̃_c = x̄ + r (t_c - t̄),   r = mean_c ‖x̄_c - x̄‖ / mean_c ‖t_c - t̄‖      text moved to where images are
    m_c = (k t̃_c + n_c x̄_c) / (k + n_c)                                     text counts as k images
    S   = 1/ν Σ_i (x_i - x̄_{y_i}) (x_i - x̄_{y_i})ᵀ,   ν = N - C,   Σ = S + λ I,   λ = g tr(S) / D
    score_c(x) = xᵀ P m_c - ½ m_cᵀ P m_c,   P = Σ⁻¹

Leaving images out changes the means of their classes and S; ν, λ and t̃ are held fixed. For one image with
d = x - x̄_y and n = n_y, S loses n / ((n - 1) ν) d dᵀ, so that P gains a matrix of rank one. Images that are
copies of each other leave together. The scores of every image under the model without it then cost one
eigendecomposition and a few products (N, D) x (D, C), in coordinates in which P is the identity.

A held-out image is farther from the mean of the n - b remaining images than a new image is from the mean of n.
`corrected` scores multiply its squared distance to its own class by (1 + 1/(n + k)) / (1 + 1/(n - b + k)).

Where fewer than half of the images have another image of their class, little can be left out and S would be
almost nothing. Then S is the covariance about the texts, 1/N Σ_i (x_i - t̃_{y_i}) (x_i - t̃_{y_i})ᵀ.

**Kernel ridge regression** to one-hot labels over the training images:

    κ(x, x') = exp(-w (1 - x·x') / s),   s = mean over pairs of training images of 1 - x·x'
    min over f of  Σ_i ω_i ‖f(x_i) - y_i‖² + λ ‖f‖²,   ω_i = N / (C n_{y_i}), so that all classes count the same
    G = (K + λ Ω⁻¹)⁻¹,   A = G Y,   f(x) = κ(x, ·) A,   λ = ρ times the mean eigenvalue of Ω^½ K Ω^½

The prediction for an image by the model without it is y_i - A_i / G_ii; images B that leave together have
Y_B - G_BB⁻¹ A_B. One eigendecomposition serves every ρ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.methods.shared.class_features import ClassFeatures


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
    def can_hold_out(self) -> bool:
        """Whether enough images can be left out: at least half of them."""
        return 2 * int(self.peers.sum()) >= len(self.labels)

    @cached_property
    def residuals(self) -> Tensor:
        """d_i = x_i - x̄_{y_i}, or x_i - t̃_{y_i} where too few images can be left out: (N, D)."""
        return self.x - (self.means if self.can_hold_out else self.moved_text)[self.labels]

    @cached_property
    def nu(self) -> float:
        """ν: degrees of freedom of S."""
        return float(len(self.x) - int((self.counts > 0).sum())) if self.can_hold_out else float(len(self.x))

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (D,) and eigenvectors (D, D) of S."""
        values, vectors = torch.linalg.eigh(self.residuals.T @ self.residuals / self.nu)
        return values.clamp_min(0), vectors

    def whiten(self, g: float) -> WhitenedGaussian:
        """Change to coordinates in which Σ is the identity."""
        values, vectors = self.spectrum
        scale = (values + g * values.mean().clamp_min(1e-12)).rsqrt()
        return WhitenedGaussian(self, vectors * scale)


@dataclass(frozen=True)
class WhitenedGaussian:
    """A `TextGaussian` for one ridge g. basis: (D, D), P = basis basisᵀ."""

    source: TextGaussian
    basis: Tensor

    @cached_property
    def x(self) -> Tensor:
        """Images, (N, D)."""
        return self.source.x @ self.basis

    @cached_property
    def text(self) -> Tensor:
        """t̃, (C, D)."""
        return self.source.moved_text @ self.basis

    @cached_property
    def means(self) -> Tensor:
        """x̄_c, (C, D)."""
        return self.source.means @ self.basis

    def centers(self, k: float) -> Tensor:
        """m_c, (C, D); that of a class without images is t̃_c."""
        return mix_means(self.text, self.means, self.source.counts, k)

    def linear(self, k: float) -> tuple[Tensor, Tensor]:
        """W (C, D) and b (C,) of score_c(x) = w_c · x + b_c, for images in their own coordinates."""
        centers = self.centers(k)
        return centers @ self.basis.T, -centers.square().sum(dim=-1) / 2

    def distances(self, x: Tensor, k: float) -> Tensor:
        """Squared distances (x - m_c)ᵀ P (x - m_c) of images x (B, D) in their own coordinates: (B, C)."""
        return squared_distances(x.double() @ self.basis, self.centers(k))

    @cached_property
    def _products(self) -> _Products:
        x, t, m, y = self.x, self.text, self.means, self.source.labels
        return _Products(
            xt=x @ t.T, xm=x @ m.T, dt=(x - m[y]) @ t.T, dm=(x - m[y]) @ m.T, xd=(x * (x - m[y])).sum(dim=-1),
            h=(x - m[y]).square().sum(dim=-1), xx=x.square().sum(dim=-1), tt=t.square().sum(dim=-1),
            tm=(t * m).sum(dim=-1), mm=m.square().sum(dim=-1),
        )  # fmt: skip

    def held_out(self, k: float, *, corrected: bool = True) -> tuple[Tensor, Tensor]:
        """Scores (N, C) and squared distances (N, C) of every image under the model without it and its copies."""
        scores, squares = self._held_out_singly(k)
        for rows in iterate_copies(self.source.groups):
            scores[rows], squares[rows] = self._held_out_jointly(rows, k)
        if corrected:
            rows, y = torch.arange(len(scores), device=scores.device), self.source.labels
            scores[rows, y] += (1 - self.distance_correction(k)) * squares[rows, y] / 2
        return scores, squares

    def distance_correction(self, k: float) -> Tensor:
        """Factor of the squared distance of each held-out image to its own class, (N,)."""
        labels, groups = self.source.labels, self.source.groups
        _, member = torch.unique(torch.stack([groups, labels]), dim=1, return_inverse=True)
        leaving = torch.bincount(member)[member].double()
        n = self.source.counts[labels] + k
        remaining = n - leaving
        return torch.where(remaining > 0, (1 + 1 / n) / (1 + 1 / remaining), 1.0)

    def _held_out_singly(self, k: float) -> tuple[Tensor, Tensor]:
        """As `held_out`, as if no image had copies."""
        p, y, counts = self._products, self.source.labels, self.source.counts
        n = counts[y]
        alpha = torch.where(n > 1, n / ((n - 1).clamp_min(1) * self.source.nu), 0.0)
        gamma = alpha / (1 - alpha * p.h)
        u, v = _weights(counts, k)
        xm, dm = u * p.xt + v * p.xm, u * p.dt + v * p.dm
        mm = (u**2 * p.tt + v**2 * p.mm + 2 * u * v * p.tm).repeat(len(y), 1)
        # The own class, whose mean lost the image: u t̃ + v x̄ - w d.
        rows, (u, v) = torch.arange(len(y), device=y.device), _weights(n - 1, k)
        w = torch.where(k + n > 1, 1 / (k + n - 1).clamp_min(1e-12), 0.0)
        dt, dx = p.dt[rows, y], p.dm[rows, y]
        xm[rows, y] = u * p.xt[rows, y] + v * p.xm[rows, y] - w * p.xd
        dm[rows, y] = u * dt + v * dx - w * p.h
        mm[rows, y] = u**2 * p.tt[y] + v**2 * p.mm[y] + 2 * u * v * p.tm[y] + w**2 * p.h - 2 * w * (u * dt + v * dx)
        xd = p.xd[:, None]
        xm, mm = xm + gamma[:, None] * xd * dm, mm + gamma[:, None] * dm**2
        return xm - mm / 2, (p.xx + gamma * p.xd**2)[:, None] - 2 * xm + mm

    def scores_without_each(self, x: Tensor, rows: Tensor, k: float) -> Tensor:
        """Scores of new images x (B, D), in their own coordinates, under the models without image i of `rows` (n,).

        Returns (B, n, C); no other image leaves with i.
        """
        p, y, counts = self._products, self.source.labels[rows], self.source.counts
        z, d, n = x.double() @ self.basis, (self.x - self.means[self.source.labels])[rows], counts[y]
        alpha = torch.where(n > 1, n / ((n - 1).clamp_min(1) * self.source.nu), 0.0)
        gamma = (alpha / (1 - alpha * p.h[rows]))[:, None]
        centers, zd = self.centers(k), z @ d.T  # (B, n)
        zm = (z @ centers.T)[:, None, :].repeat(1, len(rows), 1)
        dm = d @ centers.T
        mm = centers.square().sum(dim=-1).repeat(len(rows), 1)
        # The own class of the image that is left out has another mean.
        at, (u, v) = torch.arange(len(rows), device=y.device), _weights(n - 1, k)
        w = torch.where(k + n > 1, 1 / (k + n - 1).clamp_min(1e-12), 0.0)
        own = u[:, None] * self.text[y] + v[:, None] * self.means[y] - w[:, None] * d
        zm[:, at, y], dm[at, y], mm[at, y] = z @ own.T, (d * own).sum(dim=-1), own.square().sum(dim=-1)
        return zm + gamma * zd[..., None] * dm - (mm + gamma * dm**2) / 2

    def _held_out_jointly(self, rows: Tensor, k: float) -> tuple[Tensor, Tensor]:
        """As `held_out`, for the images `rows` (b,) that leave together."""
        source, nu = self.source, self.source.nu
        means, counts = self.means.clone(), source.counts.clone()
        lost = []
        for c in sorted(set(source.labels[rows].tolist())):
            d = self.x[rows[source.labels[rows] == c]] - self.means[c]
            counts[c] -= len(d)
            lost.append(d)
            if counts[c] > 0:
                lost.append(d.sum(dim=0, keepdim=True) / counts[c].sqrt())
                means[c] -= d.sum(dim=0) / counts[c]
        centers = mix_means(self.text, means, counts, k)
        U = torch.cat(lost)  # rows u with Σ without the images = Σ - 1/ν Uᵀ U
        inner = nu * torch.eye(len(U), dtype=U.dtype, device=U.device) - U @ U.T
        x, xu, mu = self.x[rows], self.x[rows] @ U.T, centers @ U.T
        solved = torch.linalg.solve(inner, mu.T)
        xm, mm = x @ centers.T + xu @ solved, centers.square().sum(dim=-1) + (mu * solved.T).sum(dim=-1)
        xx = x.square().sum(dim=-1) + (xu * torch.linalg.solve(inner, xu.T).T).sum(dim=-1)
        return xm - mm / 2, xx[:, None] - 2 * xm + mm


@dataclass(frozen=True)
class _Products:
    """Products of images x, residuals d, texts t and means m with P between them: (N, C), (N,) and (C,)."""

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


def _weights(n: Tensor, k: float) -> tuple[Tensor, Tensor]:
    """Weights of text and images in a mean of n images: k / (k + n) and n / (k + n); all text where both are 0."""
    total = (k + n).clamp_min(1e-12)
    return torch.where(k + n > 0, k / total, 1.0), n / total


def mix_means(text: Tensor, means: Tensor, counts: Tensor, k: float) -> Tensor:
    """m_c = (k t̃_c + n_c x̄_c) / (k + n_c) of texts and means (C, D) and counts (C,)."""
    u, v = _weights(counts, k)
    return u[:, None] * text + v[:, None] * means


def squared_distances(x: Tensor, centers: Tensor) -> Tensor:
    """‖x_i - m_c‖² of x (B, D) and centers (C, D): (B, C)."""
    squares = x.square().sum(dim=-1, keepdim=True) - 2 * x @ centers.T + centers.square().sum(dim=-1)
    return squares.clamp_min(0)


def has_peers(labels: Tensor, groups: Tensor) -> Tensor:
    """Whether another image of the class, not a copy, remains without an image: labels, groups (N,) -> (N,)."""
    pairs = torch.unique(torch.stack([labels, groups]), dim=1)
    return (torch.bincount(pairs[0]) > 1)[labels]


def iterate_copies(groups: Tensor) -> Iterator[Tensor]:
    """Iterate over groups with several images, as indices of these images. groups: (N,)."""
    order = groups.argsort(stable=True)
    sizes = torch.bincount(groups)
    for rows in torch.split(order, sizes[sizes > 0].tolist()):
        if len(rows) > 1:
            yield rows


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
        n = len(self.x)
        s = float((n - self.x.sum(dim=0).square().sum() / n) / max(n - 1, 1))  # over pairs of different images
        return self.width / max(s, 1e-12)

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
        counts = torch.bincount(self.labels, minlength=self.classes).double()
        return (len(self.labels) / ((counts > 0).sum() * counts[self.labels])).sqrt()

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

    def held_out(self, rho: float) -> Tensor:
        """Predictions (N, C) for every image by the model without it and its copies."""
        B, inverse = self._inverse(rho)
        A = self.coefficients(rho)
        held = self.targets - A / (B.square() @ inverse)[:, None]
        for rows in iterate_copies(self.groups):
            block = (B[rows] * inverse) @ B[rows].T
            held[rows] = self.targets[rows] - torch.linalg.solve(block, A[rows])
        return held

    def predictions_without_each(self, x: Tensor, rows: Tensor, rho: float) -> Tensor:
        """Predictions for new images x (B, D) by the models without image i of `rows` (n,): (B, n, C)."""
        B, inverse = self._inverse(rho)
        A, values = self.coefficients(rho), self.kernel_values(x)
        diagonal = (B[rows].square() @ inverse)[:, None]
        change = (values @ B * inverse) @ B[rows].T  # κ(x, ·) G at i
        return (values @ A)[:, None, :] - change[..., None] * (A[rows] / diagonal)
