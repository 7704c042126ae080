"""The finished head of DCA: Mahalanobis distances to text features, as two matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dca.methods.shared import gaussian, metric
from dca.methods.shared.gaussian import Gaussian
from dca.methods.shared.heads import Head, require_finite
from dca.methods.shared.metric import Precision
from dca.methods.shared.shots import Shots


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
        shots: Shots,
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
    def numbers_per_image(self) -> int:
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


def _measured(u: Tensor, shots: Shots, family: Gaussian, centers: Tensor | None) -> Iterator[_Part]:
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
