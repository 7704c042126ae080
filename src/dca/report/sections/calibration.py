"""Whether probabilities can be trusted: right answers by confidence, and the expected calibration error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from dca.report.page import Section
from dca.report.reported_model import ReportedModel
from dca.report.svg import Scale, drawing, element, label, line, percent_axis, rect
from dca.stats.calibration import BINS, Reliability, measure_reliability
from dca.stats.intervals import wilson_interval

# Bins with fewer images are drawn pale.
FEW = 5


def build(reported: ReportedModel) -> Mapping[str, Any] | str:
    """The reliability diagram."""
    predictions = reported.predictions
    if predictions is None:
        return "No predictions for images that the model has not seen."
    found, estimate = measure_reliability(predictions.confidence, predictions.right), reported.model.estimate_
    return {
        "chart": draw_reliability(found),
        "ece": found.ece,
        "bins": BINS,
        "mean": found.confidence,
        "share": found.accuracy,
        "estimate": None if predictions.tested or estimate is None else estimate.accuracy,
        "tilt": "too sure" if found.confidence > found.accuracy else "not sure enough",
        "basis": predictions.basis,
        "temperature": reported.model.method_.temperature,
        "few": FEW,
    }


def draw_reliability(found: Reliability) -> Markup:
    """Share of right answers in every bin of the confidence with its interval, and below it the number of images."""
    table = found.bins
    left, right, bins = 40.0, 344.0, len(table.count)
    x, y = Scale(0, 1, left, right), Scale(0, 1, 232, 12)
    low = Scale(0, max(1, int(table.count.max())), 310, 258)
    parts = [percent_axis(y, left, right)]
    for index in range(bins):
        if not (count := int(table.count[index])):
            continue
        start, width = x(index / bins) + 1, (right - left) / bins - 2
        share = table.right[index] / count
        ends = wilson_interval(share, count)
        said = f"{count} images, confidence {100 * table.confidence[index]:.0f} %, right {100 * share:.0f} %"
        look, middle = "good few" if count < FEW else "good", start + width / 2
        parts.append(
            rect(start, y(max(share, 0.008)), width, y(0) - y(max(share, 0.008)), look, element("title", said))
        )
        parts.append(line(middle, y(ends[0]), middle, y(ends[1]), "whisker"))
        parts.append(rect(start, low(count), width, low(0) - low(count), "pale", element("title", said)))
    parts.append(line(x(0), y(0), x(1), y(1), "dash"))
    parts += [label(x(share), 326, f"{100 * share:.0f}", "middle") for share in (0, 0.25, 0.5, 0.75, 1)]
    parts += [line(left, 310, right, 310, "axis"), label(left - 6, 268, f"{int(table.count.max())}", "end")]
    parts += [label(left - 6, 310, "0", "end"), label(left + 6, 24, "right, %"), label(left + 6, 254, "images")]
    parts.append(label((left + right) / 2, 344, "probability of the answer, %", "middle"))
    return drawing(360, 350, f"Reliability diagram, ECE {found.ece:.3f}", *parts)


SECTION = Section("calibration", "Can the probabilities be trusted?", build)
