"""A flat map of the image features, with the spread of each class as an ellipse and the texts as stars.

Two planes: through the two classes that are confused most (x: from one mean to the other; y: the direction in which
these two classes vary most otherwise), and the two directions in which all features vary most (PCA). The second is a
plain projection, so distances in the drawing are distances of features. In the first, every image of the two classes
stands where it would if it had not been among those whose means make x: with few images and many dimensions, the
difference of two means separates even classes that are the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor
from torch.nn import functional as F

from dca.report.page import Section
from dca.report.reported_model import ReportedModel, collect_training_features
from dca.report.svg import Scale, drawing, element
from dca.stats.confusion import order_by_error

# Classes with a colour of their own in the second plane, and points of the others.
COLOURED, MOST_OTHERS = 7, 1200
# Standard deviations of the ellipses: 86 % of a normal distribution in two dimensions.
REACH = 2.0
# Images below which a class has no ellipse.
LEAST = 3
WIDTH, HEIGHT, EDGE = 620.0, 440.0, 14.0


@dataclass(frozen=True)
class CentredFeatures:
    """Centred features.

    images: (N, D). classes: (N,). texts: (M, C, D). names: label of each class.
    """

    images: Tensor
    classes: Tensor
    texts: Tensor
    names: Sequence[str]

    def of_class(self, c: int) -> Tensor:
        """Images of a class, (n, D)."""
        return self.images[self.classes == c]


def build(reported: ReportedModel) -> Mapping[str, Any] | str:
    """Both planes."""
    cloud = centre_features(reported)
    if cloud is None:
        return "The model has kept no features of its training images (--no-gallery)."
    a, b = find_confused_pair(reported, cloud)
    pair, spread = find_pair_plane(cloud, a, b), find_main_plane(cloud)
    first = [a, b]
    second = _choose_coloured(reported, cloud, first)
    shared = float((cloud.images @ spread.T).square().sum() / cloud.images.square().sum())
    places, title = project_left_out(cloud, pair, a, b), f"Plane of {cloud.names[a]} and {cloud.names[b]}"
    return {
        "pair": draw_plane(cloud, pair, first, places, title),
        "pair_legend": make_legend(cloud, first),
        "spread": draw_plane(cloud, spread, second, cloud.images @ spread.T, "Plane of the two main directions"),
        "spread_legend": make_legend(cloud, second),
        "a": cloud.names[a],
        "b": cloud.names[b],
        "share": shared,
        "prompts": len(cloud.texts),
        "others": len(cloud.names) > 2,
        "more": len(cloud.names) > len(second),
        "n": len(cloud.images),
    }


def centre_features(reported: ReportedModel) -> CentredFeatures | None:
    """Features of the training images and of the texts, each about the mean of the classes."""
    known = collect_training_features(reported)
    if known is None:
        return None
    images, classes = F.normalize(known[0].double(), dim=-1), torch.tensor(known[1])
    texts = reported.model.method_.prompt_features()
    if texts is None and reported.reads_texts:
        texts = reported.model.zero_shot().prompt_features()
    if texts is None:
        texts = images.new_zeros(0, len(reported.labels), images.shape[1])
    texts = texts.detach().cpu().double()
    names = list(map(str, reported.model.classes_.tolist()))
    means = torch.stack([images[classes == c].mean(dim=0) for c in sorted(set(known[1]))])
    # CLIP keeps texts and images apart: each is drawn about its own mean.
    return CentredFeatures(images - means.mean(dim=0), classes, texts - texts.mean(dim=(0, 1)), names)


def find_confused_pair(reported: ReportedModel, cloud: CentredFeatures) -> tuple[int, int]:
    """The two classes that are confused most often; if none are, those whose means are nearest."""
    found, index = reported.predictions, {name: c for c, name in enumerate(cloud.names)}
    present = sorted(set(cloud.classes.tolist()))
    if found is not None:
        counts = torch.from_numpy(found.confusion(len(reported.labels)))
        wrong = (counts + counts.T).fill_diagonal_(0)
        first, second = divmod(int(wrong.argmax()), len(wrong))
        pair = index[reported.labels[first]], index[reported.labels[second]]
        if wrong.max() > 0 and pair[0] in present and pair[1] in present:
            return pair
    means = torch.stack([cloud.of_class(c).mean(dim=0) for c in present])
    apart = torch.cdist(means, means).fill_diagonal_(math.inf)
    first, second = divmod(int(apart.argmin()), len(present))
    return present[first], present[second]


def find_pair_plane(cloud: CentredFeatures, a: int, b: int) -> Tensor:
    """Orthonormal axes (2, D): from the mean of b to that of a, and the main spread within both across it."""
    step = F.normalize(cloud.of_class(a).mean(dim=0) - cloud.of_class(b).mean(dim=0), dim=0)
    within = torch.cat([cloud.of_class(c) - cloud.of_class(c).mean(dim=0) for c in (a, b)])
    across = within - (within @ step)[:, None] * step
    return torch.stack([step, find_main_directions(across, 1, step)[0]])


def project_left_out(cloud: CentredFeatures, plane: Tensor, a: int, b: int) -> Tensor:
    """Places (N, 2) in the plane (2, D) of `find_pair_plane`, x of each image of a and b by the means without it.

    x is then the distance from the middle of the two means, along the line between them. The only image of a class
    stays where it is.
    """
    places, means = cloud.images @ plane.T, {c: cloud.of_class(c).mean(dim=0) for c in (a, b)}
    middle = (means[a] + means[b]) / 2
    for own in (a, b):
        rows, sign = (cloud.classes == own).nonzero()[:, 0], 1.0 if own == a else -1.0
        x, n = cloud.images[rows], len(rows)
        if n < 2:
            continue
        without = (n * means[own] - x) / (n - 1)
        other = means[b if own == a else a]
        step, centre = sign * F.normalize(without - other, dim=-1), (without + other) / 2
        places[rows, 0] = ((x - centre) * step).sum(dim=-1) + middle @ plane[0]
    return places


def find_main_plane(cloud: CentredFeatures) -> Tensor:
    """Orthonormal axes (2, D) of the largest variance of all images."""
    return find_main_directions(cloud.images - cloud.images.mean(dim=0), 2)


def find_main_directions(rows: Tensor, k: int, besides: Tensor | None = None) -> Tensor:
    """The k directions (k, D) of the largest variance of rows (n, D); filled up with others, across `besides`."""
    _, sizes, directions = torch.linalg.svd(rows, full_matrices=False)
    found = [d for d, size in zip(directions, sizes, strict=True) if size > 1e-9][:k]
    taken = [*found, *([besides] if besides is not None else [])]
    for axis in torch.eye(rows.shape[1], dtype=rows.dtype):
        if len(found) == k:
            break
        left = axis - sum((axis @ one) * one for one in taken)
        if float(left.norm()) > 0.1:
            found.append(F.normalize(left, dim=0))
            taken.append(found[-1])
    return torch.stack(found)


def _choose_coloured(reported: ReportedModel, cloud: CentredFeatures, first: Sequence[int]) -> list[int]:
    """Classes of the second plane: the two of the first, then those with the highest share of errors."""
    order: list[int] = []
    if reported.predictions is not None:
        index = {name: c for c, name in enumerate(cloud.names)}
        order = [
            index[reported.labels[c]] for c in order_by_error(reported.predictions.confusion(len(reported.labels)))
        ]
    present = set(cloud.classes.tolist())
    ranked = dict.fromkeys([*first, *order, *range(len(cloud.names))])
    return [c for c in ranked if c in present][:COLOURED]


def draw_plane(cloud: CentredFeatures, axes: Tensor, coloured: Sequence[int], points: Tensor, title: str) -> Markup:
    """All images in a plane (2, D): the coloured classes with shapes and ellipses, the others pale behind them.

    points: places of the images (N, 2).
    """
    texts = cloud.texts @ axes.T
    ellipses = {c: make_ellipse(points[cloud.classes == c]) for c in coloured}
    corners = [points, texts[:, list(coloured)].flatten(0, 1), *(e for e in ellipses.values() if e is not None)]
    x, y = _equal_scales(torch.cat(corners))
    others = torch.tensor([c not in coloured for c in cloud.classes.tolist()]).nonzero()[:, 0]
    others = others[:: max(len(others) // MOST_OTHERS, 1)]
    dots = [element("circle", cx=x(float(p[0])), cy=y(float(p[1])), r=2.5, class_="mark") for p in points[others]]
    parts = [element("rect", x=0.5, y=0.5, width=WIDTH - 1, height=HEIGHT - 1, class_="frame")]
    parts.append(element("g", *dots, class_="k8"))
    for order, c in enumerate(coloured):
        own = ellipses[c]
        shown = [] if own is None else [_draw_outline(own, x, y)]
        shown += [draw_mark(order, x(float(p[0])), y(float(p[1])), 4.0) for p in points[cloud.classes == c]]
        parts.append(element("g", element("title", cloud.names[c]), *shown, class_=f"k{order}"))
    for order, c in enumerate(coloured):
        stars = [draw_star(x(float(t[0])), y(float(t[1])), 9.0) for t in texts[:, c]]
        parts.append(element("g", element("title", f"text of {cloud.names[c]}"), *stars, class_=f"k{order}"))
    return drawing(WIDTH, HEIGHT, title, *parts, class_="chart map")


def _equal_scales(corners: Tensor) -> tuple[Scale, Scale]:
    """Equal scales for both axes, so that distances are true."""
    low, high = corners.amin(dim=0).tolist(), corners.amax(dim=0).tolist()
    unit = min((WIDTH - 2 * EDGE) / max(high[0] - low[0], 1e-9), (HEIGHT - 2 * EDGE) / max(high[1] - low[1], 1e-9))
    middle = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
    reach = [(WIDTH / 2) / unit, (HEIGHT / 2) / unit]
    return (
        Scale(middle[0] - reach[0], middle[0] + reach[0], 0, WIDTH),
        Scale(middle[1] - reach[1], middle[1] + reach[1], HEIGHT, 0),
    )


def make_ellipse(points: Tensor) -> Tensor | None:
    """Outline (64, 2) of the covariance of points (n, 2) about their mean; None for too few points."""
    if len(points) < LEAST:
        return None
    values, vectors = torch.linalg.eigh(points.T.cov())
    angle = torch.linspace(0, 2 * math.pi, 65, dtype=points.dtype)[:-1]
    circle = torch.stack([angle.cos(), angle.sin()])
    outline: Tensor = points.mean(dim=0) + (REACH * vectors @ (values.clamp_min(0).sqrt()[:, None] * circle)).T
    return outline


def _draw_outline(points: Tensor, x: Scale, y: Scale) -> Markup:
    path = " ".join(f"{x(float(p[0])):.1f},{y(float(p[1])):.1f}" for p in points)
    return element("polygon", points=path, class_="ellipse")


# Corners of the shapes of classes, which tell them apart without colour; the first is a circle.
SHAPES: tuple[tuple[tuple[float, float], ...], ...] = (
    (),
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
    ((0, -1.3), (1.0, 0), (0, 1.3), (-1.0, 0)),
    ((0, 1.2), (1.1, -0.8), (-1.1, -0.8)),
    ((-1.3, -0.45), (1.3, -0.45), (1.3, 0.45), (-1.3, 0.45)),
    ((-0.45, -1.3), (0.45, -1.3), (0.45, 1.3), (-0.45, 1.3)),
)


def draw_mark(order: int, x: float, y: float, size: float) -> Markup:
    """The mark of an image of the class with this colour."""
    corners = SHAPES[order % len(SHAPES)]
    if not corners:
        return element("circle", cx=x, cy=y, r=size, class_="mark")
    path = " ".join(f"{x + size * dx:.1f},{y + size * dy:.1f}" for dx, dy in corners)
    return element("polygon", points=path, class_="mark")


def draw_star(x: float, y: float, size: float) -> Markup:
    """The mark of a text: a star with five points."""
    corners = []
    for step in range(10):
        angle, reach = math.pi * step / 5 - math.pi / 2, size if step % 2 == 0 else 0.42 * size
        corners.append(f"{x + reach * math.cos(angle):.1f},{y + reach * math.sin(angle):.1f}")
    return element("polygon", points=" ".join(corners), class_="text-mark")


def make_legend(cloud: CentredFeatures, coloured: Sequence[int]) -> list[tuple[Markup, str]]:
    """Mark and label of each coloured class."""
    return [
        (drawing(16, 16, "", draw_mark(order, 8, 8, 5.5), class_=f"k{order}"), cloud.names[c])
        for order, c in enumerate(coloured)
    ]


SECTION = Section("feature_map", "A map of the features", build)
