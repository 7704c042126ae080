"""Accuracies of several models on the same images, and their differences to the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from dca.model.comparison import Comparison, ModelResult
from dca.report.page import Section, format_points
from dca.report.sections.headline import Accuracy, draw_accuracies
from dca.report.svg import Scale, drawing, label, line, rect, shorten
from dca.stats.paired import HOW


def build(comparison: Comparison) -> Mapping[str, Any]:
    """Both charts and the table."""
    first, *others = comparison.models
    rows = [
        Accuracy(model.name, model.evaluation.accuracy, model.low, model.high, "", model is first)
        for model in comparison.models
    ]
    return {
        "models": comparison.models,
        "first": first.name,
        "n": len(comparison.images),
        "data": comparison.data,
        "accuracies": draw_accuracies(rows),
        "differences": draw_differences(others),
        "how": HOW,
        "several": len(others) > 1,
    }


def draw_differences(models: list[ModelResult]) -> Markup:
    """One line per model: its difference to the first with the interval, zero marked."""
    found = [model.difference for model in models if model.difference is not None]
    reach = 1.1 * max([0.01, *(abs(end) for one in found for end in (one.low, one.high))])
    width, step = 360.0, 46.0
    x, height = Scale(-reach, reach, 10, width - 10), 8 + step * len(models) + 20
    parts = [line(x(0), 4, x(0), height - 20, "axis"), label(x(0), height - 5, "0 points", "middle")]
    for index, (model, one) in enumerate(zip(models, found, strict=True)):
        y = 8 + step * index
        parts.append(label(4, y + 11, f"{shorten(model.name)}: {format_points(one.difference)}", "strong"))
        parts.append(line(x(one.low), y + 26, x(one.high), y + 26, "whisker"))
        parts += [line(x(end), y + 21, x(end), y + 31, "whisker") for end in (one.low, one.high)]
        parts.append(rect(x(one.difference) - 4, y + 22, 8, 8, "good"))
    said = "; ".join(f"{m.name} {format_points(o.difference)}" for m, o in zip(models, found, strict=True))
    return drawing(width, height, f"Differences to the first model in points: {said}", *parts)


SECTION = Section("compared", "Which is better?", build)
