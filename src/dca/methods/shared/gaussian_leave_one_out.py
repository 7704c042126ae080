"""Exact leave-one-out scores of GDA's Gaussian part, from one eigendecomposition.

N images have V views each; image i of class y leaves with all of its views. M is the scatter within the classes,
M = Σ (f - μ)(f - μ)ᵀ over the n = N V rows, m the number of rows of class y, Δ (V, D) the rows of image i minus
μ_y, and δ their mean. Without the image:

    M_i = M - Eᵀ E,    E = (I + 1 1ᵀ / (m - V))^½ Δ,    μ_y' = μ_y - V / (m - V) δ,    n' = n - V
    P_i = D (M_i + r_i I)⁻¹,    r_i = tr(M_i) / (n' - 1)

since the mean of the class moves, too. With M = Q diag(e) Qᵀ the shift r_i, which is different for every image,
changes only eigenvalues, w = 1 / (e + r_i), and Woodbury's formula takes the V rows of E out. In the basis Q:

    P_i / D = diag(w) + diag(w) Eᵀ (I - E diag(w) Eᵀ)⁻¹ E diag(w)

The cost is one eigendecomposition and O(N V C D). An image that is alone in its class has E = Δ: the class then
has no mean, and its score is -∞.

A left-out image is farther from the mean of the k - 1 other images of its class than a new image is from the mean of
all k: its expected squared distance is k / (k - 1) instead of (k + 1) / k times the variance. `repair` multiplies the
distance d² to its own class by the ratio (k² - 1) / k², for choices that are to suit the model of all images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dca.methods.shared.metric import FLAT
from dca.methods.shared.shots import Shots

# Numbers in the largest tensor of a batch of images: bounds memory, not results.
NUMBERS = 2**23


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
    def of(cls, rows: Tensor, labels: Tensor, queries: Tensor, classes: int) -> _Scatter:
        rows, queries = rows.double(), queries.double()
        all_labels = labels.repeat_interleave(rows.shape[1])
        shots = Shots.group(rows.flatten(0, 1), all_labels, classes)
        # A class without rows has no mean; zeros stand in, and no score of it is used.
        means = shots.means().nan_to_num(0.0)
        apart = rows.flatten(0, 1) - means[all_labels]
        e, Q = torch.linalg.eigh(apart.mT @ apart)
        return cls(e.clamp_min(0), means @ Q, rows @ Q, queries @ Q, labels, shots.counts)

    def batches(self) -> Iterator[Tensor]:
        """Places of images, a few at a time."""
        N, V, D = self.rows.shape
        at_once = max(NUMBERS // (V * max(len(self.means), D)), 1)
        yield from torch.split(torch.arange(N, device=self.labels.device), at_once)


def left_out_scores(rows: Tensor, labels: Tensor, queries: Tensor, classes: int, *, repair: bool = False) -> Tensor:
    """Gaussian part of each image under the model without it: f·w_c + b_c, (N, C) in float64.

    rows: unit features (N, V, D) of the views of each image. labels: (N,). queries: (N, D), the feature to score of
    each image, such as its evaluation view. The score of a class that is left without images is -∞. repair: not
    the refitted score of the own class, but the one with the distance of a new image.
    """
    scatter = _Scatter.of(rows, labels, queries, classes)
    scores = torch.cat([_scores(scatter, some, repair) for some in scatter.batches()])
    return scores - math.log(classes)


def left_out_logits(rows: Tensor, labels: Tensor, queries: Tensor, text: Tensor, *, tau: float, alpha: float) -> Tensor:
    """GDA's logits τ f·t + α (f·w + b) of each image under the model without it, (N, C) in float64.

    text: unit text features (C, D); the others as in `left_out_scores`.
    """
    return add_text(left_out_scores(rows, labels, queries, len(text)), queries, text, tau=tau, alpha=alpha)


def add_text(scores: Tensor, queries: Tensor, text: Tensor, *, tau: float, alpha: float) -> Tensor:
    """τ f·t + α · scores, (N, C). queries: f (N, D), text: t (C, D)."""
    zero_shot = tau * queries.double() @ text.double().mT
    return zero_shot + alpha * scores if alpha else zero_shot  # 0 · -∞ would not be a number


def _removed(scatter: _Scatter, some: Tensor) -> tuple[Tensor, Tensor]:
    """E (B, V, D) and μ_y' (B, D) of the images `some` (B,); μ_y' is not finite for an image alone in its class."""
    y, rows = scatter.labels[some], scatter.rows[some]
    V = rows.shape[1]
    own = scatter.means[y]
    apart = rows - own[:, None]
    middle = apart.mean(dim=1)
    left = (scatter.counts[y] - V)[:, None].double()
    # (I + 11ᵀ/(m - V))^½ = I + c 11ᵀ. The rows of a lone image are already centred: there c does not matter.
    factor = torch.where(left > 0, (1 + V / left.clamp_min(1)).sqrt() - 1, 0.0)
    return apart + (factor * middle)[:, None], own - V / left * middle


def _scores(scatter: _Scatter, some: Tensor, repair: bool) -> Tensor:
    """f·w_c - ½ μ_c·w_c of the images `some` (B,), each without itself: (B, C)."""
    E, own = _removed(scatter, some)
    N, V, D = scatter.rows.shape
    f, means, y = scatter.queries[some], scatter.means, scatter.labels[some]
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
    if repair:
        distance = (w * (f - own).square()).sum(dim=-1) + (along_f - along_own).square().sum(dim=-1)
        own_score = own_score + distance / 2 * (V / scatter.counts[y].double()).square()
    own_score = torch.where(scatter.counts[y] > V, own_score, -torch.inf)
    scores = (linear - squared / 2).scatter(1, y[:, None], own_score[:, None])
    return D * scores.masked_fill(scatter.counts == 0, -torch.inf)
