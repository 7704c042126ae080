"""Tables of methods: what each one learns, how long it takes, and how accurate it was where that has been measured."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from dca.backbones.clip import VIT_B_16, CLIPConfig
from dca.backbones.clip.weights import build_without_weights
from dca.methods.base import Method, Problem, TrainsOn
from dca.methods.registry import DEFAULT_METHOD

CLASSES = 100
Speed = Literal["seconds", "minutes"]
Reason = Literal["default", "seconds", "minutes"]
# Speed class -> words for it, in the order of the tables.
SPEEDS: dict[Speed, str] = {
    "seconds": "seconds on a CPU (frozen features)",
    "minutes": "minutes on a CPU, a GPU helps (trained on images)",
}


def parameter_count(
    method: type[Method], config: CLIPConfig = VIT_B_16, classes: int = CLASSES, shots: int = 16, **options: Any
) -> int:
    """Number of trained values on a backbone of this shape, whose weights are not needed.

    options: options other than the defaults. One class name is a single token, as in nearly every
    dataset, since LAMM learns as many tokens per name as the shortest name has.
    """
    names = ("class", *(f"class {c}" for c in range(1, classes)))
    return method.build(
        build_without_weights(config), Problem(names=names, shots=shots), method.Options(**options)
    ).count_parameters()


@dataclass(frozen=True)
class Measurements:
    """measured.json: test accuracy of the methods in percent, and how it was measured.

    command, about: how to measure again. not_finished: methods without a figure. test_images: number of test images by
    dataset. accuracy: by method and dataset. settings: options of a method that were no defaults.
    """

    command: str
    about: str
    not_finished: Sequence[str]
    backbone: str
    shots: int
    seeds: Sequence[int]
    test_images: Mapping[str, int]
    settings: Mapping[str, Mapping[str, Any]]
    accuracy: Mapping[str, Mapping[str, float]]


@cache
def load_measurements() -> Measurements:
    """Read measured.json."""
    return Measurements(**json.loads(files("dca.methods").joinpath("measured.json").read_text(encoding="utf-8")))


def mean_accuracy(name: str) -> float | None:
    """Mean test accuracy of a method over the measured datasets, in percent; None if it has not been measured."""
    accuracy = load_measurements().accuracy.get(name)
    return round(statistics.mean(accuracy.values()), 1) if accuracy else None


def speed_class(method: type[Method]) -> Speed:
    """Speed class: the image tower runs in every step, or once per image and view."""
    return "minutes" if method.trains_on == "images" or method.fits_others else "seconds"


@dataclass(frozen=True)
class MethodSummary:
    """One row of the tables.

    default: whether it is the default method. summary: first line of its documentation. speed, gpu: how long a fit
    takes, and whether a GPU helps. mean_accuracy: in percent; None if not measured. accuracy: by dataset.
    measured_with: options of that measurement that are no defaults. trains_on: input of the training loop.
    learns_from: what the trained values come from. trained_parameters: on ViT-B/16 with 100 classes.
    """

    name: str
    default: bool
    summary: str
    speed: Speed
    gpu: Literal["helps", "not needed"]
    mean_accuracy: float | None
    accuracy: Mapping[str, float] | None
    measured_with: Mapping[str, Any]
    trains_on: TrainsOn
    learns_from: str
    trained_parameters: int
    paper: str


def summarize(method: type[Method]) -> MethodSummary:
    """Summarise a method for the tables."""
    measurements, trained, speed = load_measurements(), parameter_count(method), speed_class(method)
    return MethodSummary(
        name=method.name,
        default=method.name == DEFAULT_METHOD,
        summary=(method.__doc__ or "").splitlines()[0],
        speed=speed,
        gpu="helps" if speed == "minutes" else "not needed",
        mean_accuracy=mean_accuracy(method.name),
        accuracy=measurements.accuracy.get(method.name),
        measured_with=measurements.settings.get(method.name, {}),
        trains_on=method.trains_on,
        learns_from=learns_from(method, trained),
        trained_parameters=trained,
        paper=method.paper,
    )


def learns_from(method: type[Method], trained: int) -> str:
    """What the trained values come from; `trains_on` names only the input of the training loop."""
    if method.fits_others:
        return "images"
    if method.trains_on == "nothing":
        return "frozen features, solved" if trained else "nothing is trained"
    return "frozen features" if method.trains_on == "features" else method.trains_on


def sort_rows(rows: Iterable[MethodSummary]) -> list[MethodSummary]:
    """Sort by speed class, in each the most accurate first, methods without a figure last."""
    speeds = list(SPEEDS)
    return sorted(rows, key=lambda row: (speeds.index(row.speed), -(row.mean_accuracy or 0), row.name))


def recommend(rows: Sequence[MethodSummary]) -> list[tuple[Reason, MethodSummary]]:
    """Methods to recommend, each with the reason: the default, and the most accurate of each speed class."""
    recommended: list[tuple[Reason, MethodSummary]] = [("default", row) for row in rows if row.default]
    for speed in SPEEDS:
        measured = [row for row in rows if row.speed == speed and row.mean_accuracy is not None]
        if measured:
            recommended.append((speed, max(measured, key=lambda row: row.mean_accuracy or 0.0)))
    return recommended


def describe_measurements() -> str:
    """How the accuracies were measured, in one sentence."""
    measurements = load_measurements()
    *names, last = measurements.test_images
    seeds = len(measurements.seeds)
    draws = "one draw" if seeds == 1 else f"mean of {seeds} draws"
    where = f"{', '.join(names)} and {last}"
    return f"mean test accuracy on {where}; {measurements.shots} shots, {draws}, backbone {measurements.backbone}"


def markdown_table(methods: Iterable[type[Method]]) -> str:
    """Markdown with one row per method: how fast and how accurate it is, what it learns, and from what."""
    lines = [
        "| method | what it is | takes | accuracy | learns from | trained values | paper |",
        "|---|---|---|---:|---|---:|---|",
    ]
    for row in sort_rows(map(summarize, methods)):
        accuracy = "" if row.mean_accuracy is None else f"{row.mean_accuracy:.1f}"
        learned = f"{row.learns_from} | {row.trained_parameters:,}"
        what = row.summary.rstrip(".")
        lines.append(f"| `{row.name}` | {what} | {row.speed} | {accuracy} | {learned} | {row.paper} |")
    return "\n".join(lines)
