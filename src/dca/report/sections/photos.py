"""Accuracy against the number of photos per class: measured with fewer, expected with more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from dca.methods.base import CurvePoint
from dca.report.page import Section, percent
from dca.report.reported_model import ReportedModel
from dca.report.svg import LogScale, Scale, drawing, element, label, percent_axis


def build(reported: ReportedModel) -> Mapping[str, Any] | str:
    """The learning curve."""
    found = reported.model.estimate_
    points = [] if found is None else reported.model.method_.learning_curve(found.accuracy)
    if found is None or not points:
        name = reported.model.method_.name
        return f"{name} cannot tell from these training images: the closed form can, with at least 4 images per class."
    now = [point for point in points if not point.expected][-1]
    twice = next(point for point in points if point.expected)
    return {
        "chart": draw_curve(points),
        "now": now,
        "twice": twice,
        "reach": max(found.high - found.accuracy, found.accuracy - found.low),
    }


def draw_curve(points: Sequence[CurvePoint]) -> Markup:
    """Measured points joined by a line, expected ones by dashes."""
    left, right = 40.0, 346.0
    x = LogScale(points[0].shots, points[-1].shots, left + 14, right - 14)
    y = Scale(0, 1, 196, 26)
    measured = [point for point in points if not point.expected]
    ahead = [measured[-1], *(point for point in points if point.expected)]
    parts = [percent_axis(y, left, right)]
    for some, look in ((measured, "curve"), (ahead, "ahead")):
        where = " ".join(f"{x(p.shots):.1f},{y(p.accuracy):.1f}" for p in some)
        parts.append(element("polyline", points=where, class_=look))
    for point in points:
        said = f"{point.shots:.3g} per class: {percent(point.accuracy)}"
        if point.low is not None and point.high is not None:
            ends = {"y1": y(point.low), "y2": y(point.high)}
            parts.append(element("line", x1=x(point.shots), x2=x(point.shots), class_="ahead", **ends))
        dot = {"cx": x(point.shots), "cy": y(point.accuracy), "r": 4.5}
        parts.append(element("circle", element("title", said), **dot, class_="hollow" if point.expected else "good"))
        parts.append(label(x(point.shots), y(point.accuracy) - 10, f"{100 * point.accuracy:.0f}", "middle strong"))
        parts.append(label(x(point.shots), 214, f"{point.shots:.3g}", "middle"))
    parts.append(label((left + right) / 2, 234, "photos per class", "middle"))
    parts.append(label(left + 6, 190, "right, %"))
    said = ", ".join(f"{p.shots:.3g}: {percent(p.accuracy)}" for p in points)
    return drawing(360, 240, f"Accuracy by photos per class: {said}", *parts)


SECTION = Section("photos", "Would more photos help?", build)
