"""The accuracy with its interval, next to zero-shot CLIP and a linear probe: measured on test images, or estimated.

The linear probe shows what the training images tell without the names of their classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray

from dca.core.text import pluralize
from dca.methods.linear_probe import LinearProbeOptions, solve
from dca.model.copies import describe_seen
from dca.report.page import Section, percent
from dca.report.reported_model import ReportedModel
from dca.report.svg import Scale, drawing, element, label, line, rect, shorten
from dca.stats.intervals import effective_images, wilson_interval
from dca.stats.paired import PairedDifference, paired_difference

ZERO_SHOT, PROBE = "zero-shot CLIP", "linear probe"
# Training images times classes up to which it is solved: 100 classes of 16 images take about a second.
MOST_PROBE_SIZE = 200_000


@dataclass(frozen=True)
class Accuracy:
    """One accuracy with its interval. basis: what it was measured on. main: whether it is the headline.

    estimated: whether it is a mean over classes of held-out training images, and not a share of test images.
    """

    name: str
    share: float
    low: float
    high: float
    basis: str
    main: bool = False
    estimated: bool = False


def build(reported: ReportedModel) -> Mapping[str, Any] | str:
    """The figures of the headline, and a drawing of all of them."""
    rows = collect_accuracies(reported)
    if not rows:
        return "The accuracy was neither measured nor estimated: give labelled images, or fit with --estimate."
    main, estimate = next(row for row in rows if row.main), reported.model.estimate_
    return {
        "main": main,
        "caveats": estimate.caveats() if estimate is not None and main.estimated else [],
        "plain": next((row for row in rows if row.name == ZERO_SHOT), None),
        "probe": next((row for row in rows if row.name == PROBE), None),
        "paired": _difference_to_zero_shot(reported),
        "chart": draw_accuracies(rows),
        "rows": rows,
        "seen": _warn_of_seen(reported),
        "facts": _describe_model(reported),
    }


def collect_accuracies(reported: ReportedModel) -> list[Accuracy]:
    """What is known of the accuracy, zero-shot CLIP first: measured now, else by the run, else estimated."""
    estimated = _estimated_accuracies(reported)
    if found := _measured_accuracies(reported) or _recorded_accuracies(reported):
        return [*found, *estimated[-1:]]
    own = [dataclasses.replace(row, main=True, name=reported.model.method_.name) for row in estimated[-1:]]
    return [*estimated[:-1], *own]


def _measured_accuracies(reported: ReportedModel) -> list[Accuracy]:
    """The accuracies on the test images of the report: zero-shot CLIP and a linear probe where there are, the model."""
    found, method = reported.predictions, reported.model.method_.name
    if found is None or not found.tested:
        return []
    rights = {} if found.zero_shot is None else {ZERO_SHOT: found.zero_shot == found.truth}
    if method != "linear_probe" and (right := evaluate_linear_probe(reported)) is not None:
        rights[PROBE] = right
    others = [_with_interval(name, float(right.mean()), len(found), found.basis) for name, right in rights.items()]
    return [*others, _with_interval(method, float(found.right.mean()), len(found), found.basis, main=True)]


def evaluate_linear_probe(reported: ReportedModel) -> NDArray[np.bool_] | None:
    """Whether a linear probe over frozen features is right about each test image, (N,).

    It is fitted on the features in the model's gallery with the c of CLIP's authors. None where there are no test
    images or no gallery, where a class has no training image, where the test images are of other classes, or where it
    would take long.
    """
    found, gallery, classes = reported.predictions, reported.gallery, list(map(str, reported.model.classes_.tolist()))
    if found is None or not found.tested or gallery is None or reported.labels != classes:
        return None
    if len(gallery) * len(classes) > MOST_PROBE_SIZE or len(set(gallery.labels)) < len(classes):
        return None
    features = reported.features(range(len(found)))
    if features is None:
        return None
    options, labels = LinearProbeOptions(), torch.tensor(gallery.labels)
    weight, bias = solve(
        gallery.features.double().cpu(), labels, len(classes), options.default_c, iterations=options.iterations
    )
    answer = (features.double().cpu() @ weight.T + bias).argmax(dim=-1)
    right: NDArray[np.bool_] = answer.numpy() == found.truth
    return right


def _warn_of_seen(reported: ReportedModel) -> str:
    """The warning that test images were trained on, those of the report or else of the fit; "" without any."""
    found = reported.evaluation
    if found is not None:
        return describe_seen(found.seen_in_training, f"{found.n:,} images") if found.seen_in_training else ""
    for row in [] if reported.model.lineage_ else (reported.model.results_.get("targets") or [])[:1]:
        if seen := row.get("seen_in_training", 0):
            return describe_seen(seen, f"{row['test_images']:,} test images of {row['name']}")
    return ""


def _with_interval(name: str, share: float, n: float, basis: str, *, main: bool = False) -> Accuracy:
    return Accuracy(name, share, *wilson_interval(share, n), basis, main)


def _recorded_accuracies(reported: ReportedModel) -> list[Accuracy]:
    """What the run that made the model measured on its test images."""
    rows = reported.model.results_.get("targets") or []
    if not rows or reported.model.lineage_:
        return []
    row, method = rows[0], reported.model.method_.name
    n, basis = row["test_images"], f"{pluralize(row['test_images'], 'test image')} of {row['name']}, by the fit"
    plain = row["zero_shot_accuracy"]
    others = [] if plain is None else [_with_interval(ZERO_SHOT, plain, n, basis)]
    return [*others, _with_interval(method, row["accuracy"], n, basis, main=True)]


def _estimated_accuracies(reported: ReportedModel) -> list[Accuracy]:
    """The estimate of the fit: zero-shot CLIP where it is known, then the model. Both are means over classes."""
    found = reported.model.estimate_
    if found is None:
        return []
    own = Accuracy("estimated by the fit", found.accuracy, found.low, found.high, found.basis, estimated=True)
    if found.zero_shot_accuracy is None:
        return [own]
    different = {(image.label, image.sha256) for image in reported.model.training_images_ if image.held_out}
    worth = effective_images([label for label, _ in different])
    return [_with_interval(ZERO_SHOT, found.zero_shot_accuracy, worth, pluralize(found.n, "training image")), own]


def _difference_to_zero_shot(reported: ReportedModel) -> PairedDifference | None:
    """The paired difference to zero-shot CLIP on test images; None without any."""
    predictions = reported.predictions
    if predictions is None or predictions.zero_shot is None:
        return None
    return paired_difference(predictions.right, predictions.zero_shot == predictions.truth)


def draw_accuracies(rows: list[Accuracy]) -> Markup:
    """One line per accuracy: a bar to the value, and its interval."""
    width, top, step = 360.0, 8.0, 46.0
    scale = Scale(0, 1, 4, width - 24)
    height = top + step * len(rows) + 20
    parts = [line(scale(x), top, scale(x), height - 20, "grid") for x in (0, 0.25, 0.5, 0.75, 1)]
    parts += [label(scale(x), height - 5, f"{100 * x:.0f}", "middle") for x in (0.25, 0.5, 0.75)]
    parts += [label(4, height - 5, "0"), label(width, height - 5, "100 %", "end")]
    for index, row in enumerate(rows):
        y = top + step * index
        parts.append(label(4, y + 13, f"{shorten(row.name)}: {percent(row.share)}", "strong"))
        parts.append(rect(4, y + 20, scale(row.share) - 4, 14, "good" if row.main else "pale"))
        parts.append(line(scale(row.low), y + 27, scale(row.high), y + 27, "whisker"))
        parts += [line(scale(end), y + 22, scale(end), y + 32, "whisker") for end in (row.low, row.high)]
    said = "; ".join(f"{r.name} {percent(r.share)} ({percent(r.low)} to {percent(r.high)})" for r in rows)
    return drawing(width, height, f"Accuracy: {said}", element("g", *parts))


def _describe_model(reported: ReportedModel) -> list[tuple[str, str]]:
    """The model in one line each."""
    model = reported.model
    return [
        ("classes", f"{len(model.classes_):,}"),
        ("training images", f"{len(model.training_images_):,}" if model.training_images_ else "not recorded"),
        ("method", model.method_.name),
        ("backbone", f"{model.method_.encoder.source}, {model.method_.encoder.preprocess.size} px"),
    ]


SECTION = Section("headline", "How good is it?", build)
