"""Finished heads: unit image features (B, D) -> probabilities (B, C).

A head is a frozen value. Everything that does not depend on the image is computed once, in float64, when the head is
built; a call is a few matrix products over a batch of any size, so that a head can be exported with a dynamic batch.

    LinearHead       softmax_y( w_y · f + b_y )
    PromptHead       1/M Σ_m softmax_y( τ u_{m,y} · f ), or of the score of ‖f - u_{m,y}‖²
    CacheHead        softmax_y( w_y · f + α Σ_{i of class y} exp(-β (1 - k_i · f)) )
    MahalanobisHead  1/M Σ_m softmax_y( score of (f - u_{m,y})ᵀ Σ̂_y⁻¹ (f - u_{m,y}) ), the head of DCA

`prompt_logits` is for training, where texts change in every step. `ClassPrecisions` has the inverse covariances of all
classes in one table, without padding, for training; `MahalanobisHead` folds them into two matrix products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.core.errors import UserError
from dca.methods.base import Head
from dca.methods.shared import gaussian, metric
from dca.methods.shared.class_features import ClassFeatures
from dca.methods.shared.gaussian import Gaussian
from dca.methods.shared.metric import Precision


@dataclass(frozen=True)
class ClassPrecisions:
    """Σ̂⁻¹ of C classes (`metric.Precision`); classes that share one share its rows.

    diagonal, ones: (C, D). sign, log_det: (C,). rows: (S + 1, D), the last one zero. table: (C, R),
    which rows belong to each class, padded with S. groups: classes with equally many rows R, as their
    indices (c,), the indices whose Σ̂⁻¹ they have, (c,) or (1,) if they share one, and R.
    """

    diagonal: Tensor
    ones: Tensor
    sign: Tensor
    log_det: Tensor
    rows: Tensor
    table: Tensor
    groups: tuple[tuple[Tensor, Tensor, int], ...]

    @classmethod
    def from_features(cls, features: ClassFeatures, head: Gaussian, dtype: torch.dtype) -> ClassPrecisions:
        """Estimate them about the class means, in float64, and keep them in `dtype`."""
        C, D = len(features.counts), features.features.shape[-1]
        new = features.features.new_zeros
        diagonal, ones = new(C, D, dtype=dtype), new(C, D, dtype=dtype)
        sign, log_det = new(C, dtype=dtype), new(C, dtype=dtype)
        rows, groups, row_numbers, stored = [], [], [], 0
        for classes, form in gaussian.precisions(features, head):
            diagonal[classes], ones[classes] = form.diagonal.to(dtype), form.ones.to(dtype)
            sign[classes], log_det[classes] = form.sign.to(dtype), form.log_det.to(dtype)
            c, R = form.rows.shape[:2]
            rows.append(form.rows.flatten(0, 1).to(dtype))
            row_numbers.append((classes, stored + torch.arange(c * R, device=classes.device).view(c, R)))
            groups.append((classes, classes[:c], R))
            stored += c * R
        table = torch.full((C, max(R for *_, R in groups)), stored, device=features.counts.device)
        for classes, numbers in row_numbers:
            table[classes, : numbers.shape[1]] = numbers
        return cls(diagonal, ones, sign, log_det, torch.cat([*rows, new(1, D, dtype=dtype)]), table, tuple(groups))

    def __getitem__(self, labels: Tensor) -> Precision:
        """Σ̂⁻¹ of the classes `labels` (B,), padded to the most rows of any class: a batch (B,)."""
        return self._take(labels, self.table.shape[1])

    def _take(self, labels: Tensor, R: int) -> Precision:
        rows = self.rows[self.table[labels, :R]]
        return Precision(self.diagonal[labels], self.ones[labels], self.sign[labels], rows, self.log_det[labels])

    def distances(self, f: Tensor, u: Tensor) -> Tensor:
        """d_m of every f (N, D) to every class about its u (M, C, D): (M, C, N)."""
        distances = [metric.mahalanobis(self._take(owners, R), f, u[:, own]) for own, owners, R in self.groups]
        order = torch.cat([classes for classes, *_ in self.groups]).argsort()
        return torch.cat(distances, dim=1)[:, order]


@dataclass(frozen=True)
class LinearHead(Head):
    """Softmax of w_y · f + b_y. weight: (C, D), scale included. bias: (C,) or None."""

    weight: Tensor
    bias: Tensor | None = None

    @classmethod
    def cosine(cls, text: Tensor, tau: float) -> LinearHead:
        """Softmax of τ t_y · f for unit text features (C, D)."""
        return cls(_like(tau * text.double(), text))

    def logits(self, f: Tensor) -> Tensor:
        """w_y · f + b_y of image features f (B, D): (B, C)."""
        return F.linear(f, self.weight, self.bias)

    def __call__(self, f: Tensor) -> Tensor:
        """Image features f (B, D) -> probabilities (B, C)."""
        return self.logits(f).softmax(dim=-1)

    @property
    def values_per_image(self) -> int:
        """One logit per class."""
        return len(self.weight)


def prompt_logits(
    f: Tensor,
    u: Tensor,
    *,
    tau: float,
    metric_name: str = "cosine",
    score: str = "inverse",
    eps: float = 1e-6,
    precisions: ClassPrecisions | None = None,
) -> Tensor:
    """Inputs of M softmaxes, (M, N, C), of f (N, D) under unit text features u (M, C, D), differentiable in both.

    precisions: Σ̂⁻¹ of the classes, for the metric "mahalanobis".
    """
    if metric_name == "cosine":
        return tau * (f @ u.mT)
    if metric_name == "euclidean":
        distance = metric.euclidean(f, u)
    elif precisions is not None:
        distance = precisions.distances(f, u)
    else:
        raise ValueError("the Mahalanobis metric needs precisions")
    return metric.softmax_inputs(distance, tau, eps, score).transpose(-1, -2)


@dataclass(frozen=True)
class PromptHead(Head):
    """Mean over M prompts of the softmax of τ cos, or of the score of the squared Euclidean distance.

    weight: (M·C, D), prompt after prompt: τ u, or -2 u. squares: ‖u‖² (M·C,) for distances, None for the cosine.
    """

    weight: Tensor
    squares: Tensor | None
    classes: int
    tau: float
    score: str
    eps: float

    @classmethod
    def from_text(
        cls, u: Tensor, tau: float, metric_name: str, score: str = "inverse", eps: float = 1e-6
    ) -> PromptHead:
        """From unit text features u (M, C, D) and the metric "cosine" or "euclidean"."""
        exact, classes = u.double().flatten(0, 1), u.shape[1]
        squares = _like(exact.square().sum(dim=-1), u)
        check_finite(squares)
        if metric_name == "cosine":
            return cls(_like(tau * exact, u), None, classes, tau, score, eps)
        return cls(_like(-2 * exact, u), squares, classes, tau, score, eps)

    def logits(self, f: Tensor) -> Tensor:
        """Inputs of the M softmaxes of image features f (B, D): (B, M, C)."""
        logits = F.linear(f, self.weight, self.squares)
        if self.squares is not None:
            distance = (logits + f.square().sum(dim=-1, keepdim=True)).clamp_min(0)
            logits = metric.softmax_inputs(distance, self.tau, self.eps, self.score)
        return torch.unflatten(logits, 1, (-1, self.classes))

    def __call__(self, f: Tensor) -> Tensor:
        """Image features f (B, D) -> probabilities (B, C)."""
        return self.logits(f).softmax(dim=-1).mean(dim=1)

    @property
    def values_per_image(self) -> int:
        """One logit per prompt and class."""
        return len(self.weight)


@dataclass(frozen=True)
class CacheHead(Head):
    """Softmax of text logits and of a cache of training images.

    text: (C, D), τ included. keys: β k (D, N), classes with equally many keys together. offset: log α - β, () or with
    the logarithm of the weight of each key (N,). sizes: number of such classes, and of keys of each of them. order:
    (C,), position of each class.
    """

    text: Tensor
    keys: Tensor
    offset: Tensor
    sizes: tuple[tuple[int, int], ...]
    order: Tensor

    @classmethod
    def from_keys(
        cls,
        text: Tensor,
        keys: Tensor,
        labels: Tensor,
        tau: float,
        alpha: float,
        beta: float,
        weights: Tensor | None = None,
    ) -> CacheHead:
        """From unit text features (C, D), keys (N, D), their labels (N,) and weights (N,), 1 where none are given."""
        counts = torch.bincount(labels, minlength=len(text))
        classes = counts.argsort(stable=True)
        rows = (counts[labels] * len(text) + labels).argsort(stable=True)
        sizes, numbers = torch.unique(counts, return_counts=True)
        return cls(
            text=_like(tau * text.double(), text),
            keys=_like(beta * keys.double()[rows].T, text),
            offset=text.new_tensor(alpha).log() - beta + (0.0 if weights is None else weights[rows].log()),
            sizes=tuple(zip(numbers.tolist(), sizes.tolist(), strict=True)),
            order=classes.argsort(),
        )

    def logits(self, f: Tensor) -> Tensor:
        """Text and cache of image features f (B, D), before the softmax: (B, C)."""
        affinity = (f @ self.keys + self.offset).exp()
        sums, start = [], 0
        for classes, size in self.sizes:
            block = affinity[:, start : start + classes * size]
            sums.append(torch.unflatten(block, 1, (classes, size)).sum(dim=-1))
            start += classes * size
        cache = torch.cat(sums, dim=1).index_select(1, self.order)
        return F.linear(f, self.text) + cache

    def __call__(self, f: Tensor) -> Tensor:
        """Image features f (B, D) -> probabilities (B, C)."""
        return self.logits(f).softmax(dim=-1)

    @property
    def values_per_image(self) -> int:
        """One affinity per key."""
        return self.keys.shape[1]


def check_finite(constants: Tensor) -> None:
    """Raise if constants overflowed: infinite distances would give all classes equal probabilities."""
    if not torch.isfinite(constants).all():
        raise UserError(
            "the text or training features of this model hold extreme values",
            hint="fit again, with the default options first",
        )


def _like(tensor: Tensor, like: Tensor) -> Tensor:
    """Convert to the type of another tensor, contiguous."""
    return tensor.to(like.dtype).contiguous()


@dataclass(frozen=True)
class ClassGroup:
    """Classes whose Σ̂⁻¹ have equally many rows; an axis m or c of size 1 is shared by the prompts or classes.

    shape: (R + 1, m, c), rows of Σ̂⁻¹ and its row q. sign: σ (m, c). classes: how many.
    """

    shape: tuple[int, int, int]
    sign: Tensor
    classes: int


@dataclass(frozen=True)
class MahalanobisHead(Head):
    """Mean over M prompts of the softmax of the score of d_m; symbols as in metric.py.

    d_m = h·f² - σ (q·f)² - ‖P f‖² - 2 v·f + u·v,    v = Σ̂⁻¹ u

    weight: columns that f is multiplied by: for each group P and q, row after row, then -2 v of each group.
    square: columns h that f² is multiplied by. Both (D, ...): with one image a product reads them from
    memory once, and columns are twice as fast as rows. constant: u·v (M, C), in the order of the groups.
    order: (C,), position of each class in it.
    """

    weight: Tensor
    square: Tensor
    constant: Tensor
    order: Tensor
    groups: tuple[ClassGroup, ...]
    tau: float
    score: str
    eps: float

    @classmethod
    def from_text(
        cls,
        u: Tensor,
        features: ClassFeatures,
        family: Gaussian,
        *,
        tau: float,
        center: str = "text",
        texts: Tensor | None = None,
        score: str = "inverse",
        eps: float = 1e-6,
    ) -> MahalanobisHead:
        """Build the head from the unit vectors u (M, C, D) that distances are measured to, and the training features.

        center: "text" measures the spread of a class about its text feature, "visual" about the mean of
        its images. texts: the text features (M, C, D), if u are others.
        """
        centers = u if texts is None else texts
        by_shape: dict[tuple[int, bool], list[_Part]] = {}
        for part in _iterate_parts(u, features, family, centers if center == "text" else None):
            by_shape.setdefault((part.form.rows.shape[2], part.shared), []).append(part)
        groups = [_merge_parts(parts) for parts in by_shape.values()]
        products = sum(R * m * c for R, m, c in (group.shape for group in groups))
        weight = u.new_empty(u.shape[-1], products + u.shape[:2].numel())
        square = u.new_empty(u.shape[-1], sum(group.sign.numel() for group in groups))
        row, own, last = 0, 0, products
        for group, parts in zip(groups, by_shape.values(), strict=True):
            (R, m, c), M, n = group.shape, len(u), group.classes
            rows = torch.unflatten(weight[:, row : row + R * m * c], 1, (R, m, c))
            forms = torch.unflatten(square[:, own : own + m * c], 1, (m, c))
            _write_parts(parts, rows, forms, torch.unflatten(weight[:, last : last + M * n], 1, (M, n)))
            row, own, last = row + R * m * c, own + m * c, last + M * n
        order = torch.cat([part.classes for parts in by_shape.values() for part in parts]).argsort()
        constant = torch.cat([part.constant for parts in by_shape.values() for part in parts], dim=1)
        check_finite(constant)
        return cls(weight, square, constant, order, tuple(groups), tau, score, eps)

    def distances(self, f: Tensor) -> Tensor:
        """d_m of every image to every class under every prompt: f (B, D) -> (B, M, C)."""
        products, squares = f @ self.weight, f.square() @ self.square
        M, row, own = len(self.constant), 0, 0
        last = self.weight.shape[1] - self.constant.numel()
        distances = []
        for group in self.groups:
            R, m, c = group.shape
            rows = torch.unflatten(products[:, row : row + R * m * c], 1, group.shape).square()
            form = torch.unflatten(squares[:, own : own + m * c], 1, (m, c))
            form = form - rows[:, :-1].sum(dim=1) - group.sign * rows[:, -1]
            distances.append(
                form + torch.unflatten(products[:, last : last + M * group.classes], 1, (M, group.classes))
            )
            row, own, last = row + R * m * c, own + m * c, last + M * group.classes
        distance = torch.cat(distances, dim=2) if len(distances) > 1 else distances[0]
        return (distance + self.constant).clamp_min(0).index_select(2, self.order)

    def logits(self, f: Tensor) -> Tensor:
        """Inputs of the M softmaxes of image features f (B, D): (B, M, C)."""
        return metric.softmax_inputs(self.distances(f), self.tau, self.eps, self.score)

    def __call__(self, f: Tensor) -> Tensor:
        """Image features f (B, D) -> probabilities (B, C)."""
        return self.logits(f).softmax(dim=-1).mean(dim=1)

    @property
    def values_per_image(self) -> int:
        """One number per column of the weight."""
        return self.weight.shape[1]


@dataclass(frozen=True)
class _Part:
    """Some classes: their indices (n,), Σ̂⁻¹ as a batch (m, c), v (M, n, D) and u·v (M, n)."""

    classes: Tensor
    form: Precision
    v: Tensor
    constant: Tensor

    @property
    def shared(self) -> bool:
        """Whether the classes share one Σ̂⁻¹."""
        return self.form.sign.shape[1] < len(self.classes)


def _iterate_parts(u: Tensor, features: ClassFeatures, family: Gaussian, centers: Tensor | None) -> Iterator[_Part]:
    """Compute a few classes at a time, in float64, and yield them in the type of u (M, C, D)."""
    for classes, form in gaussian.precisions(features, family, centers):
        text = u[:, classes].double()
        v = metric.precision_times(form, text)
        batch = form.map_tensors(lambda tensor: tensor[None]) if form.sign.dim() == 1 else form
        constant = (text * v).sum(dim=-1).to(u.dtype)
        yield _Part(classes, batch.map_tensors(lambda tensor: tensor.to(u.dtype)), v.to(u.dtype), constant)


def _merge_parts(parts: list[_Part]) -> ClassGroup:
    """Merge parts with equally many rows into a group."""
    sign = torch.cat([part.form.sign for part in parts], dim=1)
    R = parts[0].form.rows.shape[2]
    return ClassGroup((R + 1, *sign.shape), sign, sum(len(part.classes) for part in parts))


def _write_parts(parts: list[_Part], rows: Tensor, square: Tensor, linear: Tensor) -> None:
    """Write the parts of a group into its rows (D, R + 1, m, c), h (D, m, c) and -2 v (D, M, n)."""
    start = first = 0
    for part in parts:
        forms, classes = part.form.sign.shape[1], len(part.classes)
        own = slice(start, start + forms)
        rows[:, :-1, :, own] = part.form.rows.permute(3, 2, 0, 1)
        rows[:, -1, :, own] = part.form.ones.movedim(-1, 0)
        square[:, :, own] = part.form.diagonal.movedim(-1, 0)
        linear[:, :, first : first + classes] = -2 * part.v.movedim(-1, 0)
        start, first = start + forms, first + classes
