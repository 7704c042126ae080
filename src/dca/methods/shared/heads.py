"""Inverse covariances of all classes in one table, stored without padding.

Finished heads: unit image features (B, D) -> probabilities (B, C).

A head is a frozen value. Everything that does not depend on the image is computed once, in float64,
when the head is made; a call is a few matrix products over a batch of any size, so that a head
can be exported with a dynamic batch. `prompt_logits` is for training, where texts change in every step.

    LinearHead       softmax_y( w_y · f + b_y )
    PromptHead       1/M Σ_m softmax_y( τ u_{m,y} · f ), or of the score of ‖f - u_{m,y}‖²
    CacheHead        softmax_y( w_y · f + α Σ_{i of class y} exp(-β (1 - k_i · f)) )
    MahalanobisHead  1/M Σ_m softmax_y( score of (f - u_{m,y})ᵀ Σ̂⁻¹ (f - u_{m,y}) ), in mahalanobis_head.py

The finished head of DCA: Mahalanobis distances to text features, as two matrix products.

Shared by methods whose head is made of class names alone: p(y | x) = softmax_y( τ f·t_y ).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.core.errors import UserError
from dca.methods.base import Head, Method, Problem, Support
from dca.methods.shared import gaussian, metric
from dca.methods.shared.frozen import shape_problems
from dca.methods.shared.gaussian import Gaussian
from dca.methods.shared.metric import Precision
from dca.methods.shared.shots import ClassFeatures


@dataclass(frozen=True)
class ClassPrecisions:
    """Σ̂⁻¹ of C classes (`metric.Precision`); classes that share one share its rows.

    diagonal, ones: (C, D). sign, log_det: (C,). rows: (S + 1, D), the last one zero. table: (C, R),
    which rows belong to each class, padded with S. groups: classes with equally many rows R as their
    places (c,), the places whose Σ̂⁻¹ they have, (c,) or (1,) if they share one, and R.
    """

    diagonal: Tensor
    ones: Tensor
    sign: Tensor
    log_det: Tensor
    rows: Tensor
    table: Tensor
    groups: tuple[tuple[Tensor, Tensor, int], ...]

    @classmethod
    def of(cls, shots: ClassFeatures, head: Gaussian, dtype: torch.dtype) -> ClassPrecisions:
        """About the means of the images, computed in float64 and kept in `dtype`."""
        C, D = len(shots.counts), shots.features.shape[-1]
        new = shots.features.new_zeros
        diagonal, ones = new(C, D, dtype=dtype), new(C, D, dtype=dtype)
        sign, log_det = new(C, dtype=dtype), new(C, dtype=dtype)
        rows, groups, lines, stored = [], [], [], 0
        for places, form in gaussian.precisions(shots, head):
            diagonal[places], ones[places] = form.diagonal.to(dtype), form.ones.to(dtype)
            sign[places], log_det[places] = form.sign.to(dtype), form.log_det.to(dtype)
            c, R = form.rows.shape[:2]
            rows.append(form.rows.flatten(0, 1).to(dtype))
            lines.append((places, stored + torch.arange(c * R, device=places.device).view(c, R)))
            groups.append((places, places[:c], R))
            stored += c * R
        table = torch.full((C, max(R for *_, R in groups)), stored, device=shots.counts.device)
        for places, line in lines:
            table[places, : line.shape[1]] = line
        return cls(diagonal, ones, sign, log_det, torch.cat([*rows, new(1, D, dtype=dtype)]), table, tuple(groups))

    def __getitem__(self, labels: Tensor) -> Precision:
        """Σ̂⁻¹ of the classes `labels` (B,), padded to the most rows of any class: a batch (B,)."""
        return self._take(labels, self.table.shape[1])

    def _take(self, labels: Tensor, R: int) -> Precision:
        rows = self.rows[self.table[labels, :R]]
        return Precision(self.diagonal[labels], self.ones[labels], self.sign[labels], rows, self.log_det[labels])

    def distances(self, f: Tensor, u: Tensor) -> Tensor:
        """d_m of every f (N, D) to every class about its u (M, C, D): (M, C, N)."""
        found = [metric.mahalanobis(self._take(first, R), f, u[:, places]) for places, first, R in self.groups]
        order = torch.cat([places for places, *_ in self.groups]).argsort()
        return torch.cat(found, dim=1)[:, order]


@dataclass(frozen=True)
class LinearHead(Head):
    """Softmax of w_y · f + b_y. weight: (C, D), scale included. bias: (C,) or None."""

    weight: Tensor
    bias: Tensor | None = None

    @classmethod
    def cosine(cls, text: Tensor, tau: float) -> LinearHead:
        """Softmax of τ t_y · f for unit text features (C, D)."""
        return cls(_as(tau * text.double(), text))

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
    return metric.scores(distance, tau, eps, score).transpose(-1, -2)


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
    def of(cls, u: Tensor, tau: float, metric_name: str, score: str = "inverse", eps: float = 1e-6) -> PromptHead:
        """From unit text features u (M, C, D) and the metric "cosine" or "euclidean"."""
        exact, classes = u.double().flatten(0, 1), u.shape[1]
        squares = _as(exact.square().sum(dim=-1), u)
        require_finite(squares)
        if metric_name == "cosine":
            return cls(_as(tau * exact, u), None, classes, tau, score, eps)
        return cls(_as(-2 * exact, u), squares, classes, tau, score, eps)

    def logits(self, f: Tensor) -> Tensor:
        """Inputs of the M softmaxes of image features f (B, D): (B, M, C)."""
        logits = F.linear(f, self.weight, self.squares)
        if self.squares is not None:
            distance = (logits + f.square().sum(dim=-1, keepdim=True)).clamp_min(0)
            logits = metric.scores(distance, self.tau, self.eps, self.score)
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

    text: (C, D), τ included. keys: β k (D, N), classes with equally many keys together. offset: log α - β, ().
    sizes: number of such classes, and of keys of each of them. order: (C,), position of each class.
    """

    text: Tensor
    keys: Tensor
    offset: Tensor
    sizes: tuple[tuple[int, int], ...]
    order: Tensor

    @classmethod
    def of(cls, text: Tensor, keys: Tensor, labels: Tensor, tau: float, alpha: float, beta: float) -> CacheHead:
        """From unit text features (C, D), keys (N, D) and their labels (N,)."""
        counts = torch.bincount(labels, minlength=len(text))
        classes = counts.argsort(stable=True)
        rows = (counts[labels] * len(text) + labels).argsort(stable=True)
        each, numbers = torch.unique(counts, return_counts=True)
        return cls(
            text=_as(tau * text.double(), text),
            keys=_as(beta * keys.double()[rows].T, text),
            offset=text.new_tensor(alpha).log() - beta,
            sizes=tuple(zip(numbers.tolist(), each.tolist(), strict=True)),
            order=classes.argsort(),
        )

    def logits(self, f: Tensor) -> Tensor:
        """Text and cache of image features f (B, D), before the softmax: (B, C)."""
        near = (f @ self.keys + self.offset).exp()
        sums, start = [], 0
        for classes, each in self.sizes:
            own = near[:, start : start + classes * each]
            sums.append(torch.unflatten(own, 1, (classes, each)).sum(dim=-1))
            start += classes * each
        cache = torch.cat(sums, dim=1).index_select(1, self.order)
        return F.linear(f, self.text) + cache

    def __call__(self, f: Tensor) -> Tensor:
        """Image features f (B, D) -> probabilities (B, C)."""
        return self.logits(f).softmax(dim=-1)

    @property
    def values_per_image(self) -> int:
        """One affinity per key."""
        return self.keys.shape[1]


def require_finite(constants: Tensor) -> None:
    """Raise for constants that overflowed: infinite distances would give equal probabilities for all classes."""
    if not torch.isfinite(constants).all():
        raise UserError(
            "the text or training features of this model hold extreme values",
            hint="fit again, with the default options first",
        )


def _as(tensor: Tensor, like: Tensor) -> Tensor:
    """In the type of another tensor, contiguous."""
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
    def of(
        cls,
        u: Tensor,
        shots: ClassFeatures,
        family: Gaussian,
        *,
        tau: float,
        center: str = "text",
        texts: Tensor | None = None,
        score: str = "inverse",
        eps: float = 1e-6,
    ) -> MahalanobisHead:
        """From the unit vectors u (M, C, D) that distances are measured to, and the training features of the classes.

        center: "text" measures the spread of a class about its text feature, "visual" about the mean of
        its images. texts: the text features (M, C, D), if u are others.
        """
        centers = u if texts is None else texts
        alike: dict[tuple[int, bool], list[_Part]] = {}
        for part in _measured(u, shots, family, centers if center == "text" else None):
            alike.setdefault((part.form.rows.shape[2], part.shared), []).append(part)
        groups = [_group(parts) for parts in alike.values()]
        products = sum(R * m * c for R, m, c in (group.shape for group in groups))
        weight = u.new_empty(u.shape[-1], products + u.shape[:2].numel())
        square = u.new_empty(u.shape[-1], sum(group.sign.numel() for group in groups))
        row, own, last = 0, 0, products
        for group, parts in zip(groups, alike.values(), strict=True):
            (R, m, c), M, n = group.shape, len(u), group.classes
            rows = torch.unflatten(weight[:, row : row + R * m * c], 1, (R, m, c))
            forms = torch.unflatten(square[:, own : own + m * c], 1, (m, c))
            _fill(parts, rows, forms, torch.unflatten(weight[:, last : last + M * n], 1, (M, n)))
            row, own, last = row + R * m * c, own + m * c, last + M * n
        places = [part.places for parts in alike.values() for part in parts]
        constant = torch.cat([part.constant for parts in alike.values() for part in parts], dim=1)
        require_finite(constant)
        return cls(weight, square, constant, torch.cat(places).argsort(), tuple(groups), tau, score, eps)

    def distances(self, f: Tensor) -> Tensor:
        """d_m of every image to every class under every prompt: f (B, D) -> (B, M, C)."""
        products, squares = f @ self.weight, f.square() @ self.square
        M, row, own = len(self.constant), 0, 0
        last = self.weight.shape[1] - self.constant.numel()
        found = []
        for group in self.groups:
            R, m, c = group.shape
            rows = torch.unflatten(products[:, row : row + R * m * c], 1, group.shape).square()
            form = torch.unflatten(squares[:, own : own + m * c], 1, (m, c))
            form = form - rows[:, :-1].sum(dim=1) - group.sign * rows[:, -1]
            found.append(form + torch.unflatten(products[:, last : last + M * group.classes], 1, (M, group.classes)))
            row, own, last = row + R * m * c, own + m * c, last + M * group.classes
        distance = torch.cat(found, dim=2) if len(found) > 1 else found[0]
        return (distance + self.constant).clamp_min(0).index_select(2, self.order)

    def logits(self, f: Tensor) -> Tensor:
        """Inputs of the M softmaxes of image features f (B, D): (B, M, C)."""
        return metric.scores(self.distances(f), self.tau, self.eps, self.score)

    def __call__(self, f: Tensor) -> Tensor:
        """Image features f (B, D) -> probabilities (B, C)."""
        return self.logits(f).softmax(dim=-1).mean(dim=1)

    @property
    def values_per_image(self) -> int:
        """One number per column of the weight."""
        return self.weight.shape[1]


@dataclass(frozen=True)
class _Part:
    """Some classes: places (n,), Σ̂⁻¹ as a batch (m, c), v (M, n, D) and u·v (M, n)."""

    places: Tensor
    form: Precision
    v: Tensor
    constant: Tensor

    @property
    def shared(self) -> bool:
        """Whether the classes share one Σ̂⁻¹."""
        return self.form.sign.shape[1] < len(self.places)


def _measured(u: Tensor, shots: ClassFeatures, family: Gaussian, centers: Tensor | None) -> Iterator[_Part]:
    """A few classes at a time, computed in float64 and given in the type of u (M, C, D)."""
    for places, form in gaussian.precisions(shots, family, centers):
        text = u[:, places].double()
        v = metric.precision_times(form, text)
        batch = form.map(lambda tensor: tensor[None]) if form.sign.dim() == 1 else form
        constant = (text * v).sum(dim=-1).to(u.dtype)
        yield _Part(places, batch.map(lambda tensor: tensor.to(u.dtype)), v.to(u.dtype), constant)


def _group(parts: list[_Part]) -> ClassGroup:
    """Parts with equally many rows as one group."""
    sign = torch.cat([part.form.sign for part in parts], dim=1)
    R = parts[0].form.rows.shape[2]
    return ClassGroup((R + 1, *sign.shape), sign, sum(len(part.places) for part in parts))


def _fill(parts: list[_Part], rows: Tensor, square: Tensor, linear: Tensor) -> None:
    """Write the parts of a group into its rows (D, R + 1, m, c), h (D, m, c) and -2 v (D, M, n)."""
    place = first = 0
    for part in parts:
        forms, classes = part.form.sign.shape[1], len(part.places)
        own = slice(place, place + forms)
        rows[:, :-1, :, own] = part.form.rows.permute(3, 2, 0, 1)
        rows[:, -1, :, own] = part.form.ones.movedim(-1, 0)
        square[:, :, own] = part.form.diagonal.movedim(-1, 0)
        linear[:, :, first : first + classes] = -2 * part.v.movedim(-1, 0)
        place, first = place + forms, first + classes


class NameHeadMethod(Method):
    """A method that stores one unit text feature per class; `finish` makes them and needs no image."""

    results = MappingProxyType({"text_features": torch.float32})
    text_features: Tensor

    def finish(self, support: Support | None = None) -> None:
        """Make `text_features`, (C, D)."""
        raise NotImplementedError

    def retarget(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """The same sentences for other names."""
        other = self.copy_for(problem, sources)
        other.finish()
        return other.build_head()

    def prompt_features(self) -> Tensor | None:
        """One per class."""
        return self.text_features[None]

    def make_head(self) -> Head:
        """Softmax of τ cos."""
        return LinearHead.cosine(self.text_features, self.clip.tau)

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """One text feature per class."""
        expected = (len(self.problem.names), self.clip.config.embed_dim)
        return shape_problems({"text_features": (state["text_features"], expected)})
