"""Whether probabilities can be trusted: accuracy by confidence, and the expected calibration error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from dca.report.page import Section
from dca.report.subject import Subject
from dca.report.svg import Scale, drawing, element, line, percent_axis, rect, words
from dca.stats.calibration import Bins, bin_predictions, calibration_error, suitable_bins
from dca.stats.intervals import wilson_interval

# Bins with fewer images are drawn pale.
FEW = 5


def build(subject: Subject) -> Mapping[str, Any] | str:
    """The reliability diagram."""
    found = subject.predictions
    if found is None:
        return "No predictions for images that the model has not seen."
    bins = suitable_bins(len(found))
    table, ece = bin_predictions(found.sure, found.right, bins), calibration_error(found.sure, found.right, bins)
    mean, share = float(found.sure.mean()), float(found.right.mean())
    return {
        "chart": chart(table, ece),
        "ece": ece,
        "bins": bins,
        "mean": mean,
        "share": share,
        "tilt": "too sure" if mean > share else "not sure enough",
        "basis": found.basis,
        "temperature": subject.model.method_.temperature,
        "few": FEW,
    }


def chart(table: Bins, ece: float) -> Markup:
    """Accuracy of every bin of the confidence with its interval, and below it how many images there are."""
    left, right, bins = 40.0, 344.0, len(table.count)
    x, y = Scale(0, 1, left, right), Scale(0, 1, 232, 12)
    low = Scale(0, max(1, int(table.count.max())), 310, 258)
    parts = [percent_axis(y, left, right)]
    for place in range(bins):
        if not (count := int(table.count[place])):
            continue
        start, width = x(place / bins) + 1, (right - left) / bins - 2
        share = table.right[place] / count
        ends = wilson_interval(share, count)
        said = f"{count} images, confidence {100 * table.confidence[place]:.0f} %, right {100 * share:.0f} %"
        look, middle = "good few" if count < FEW else "good", start + width / 2
        parts.append(rect(start, y(max(share, 0.008)), width, y(0) - y(max(share, 0.008)), look, _title(said)))
        parts.append(line(middle, y(ends[0]), middle, y(ends[1]), "whisker"))
        parts.append(rect(start, low(count), width, low(0) - low(count), "pale", _title(said)))
    parts.append(line(x(0), y(0), x(1), y(1), "dash"))
    parts += [words(x(share), 326, f"{100 * share:.0f}", "middle") for share in (0, 0.25, 0.5, 0.75, 1)]
    parts += [line(left, 310, right, 310, "axis"), words(left - 6, 268, f"{int(table.count.max())}", "end")]
    parts += [words(left - 6, 310, "0", "end"), words(left + 6, 24, "right, %"), words(left + 6, 254, "images")]
    parts.append(words((left + right) / 2, 344, "probability of the answer, %", "middle"))
    return drawing(360, 350, f"Reliability diagram, ECE {ece:.3f} with {bins} bins", *parts)


def _title(text: str) -> Markup:
    return element("title", text)


SECTION = Section("calibration", "Can the probabilities be trusted?", build)
