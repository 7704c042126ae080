"""Tables of methods: what each one learns, how long it takes, and how accurate it was where that has been measured."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from dca.backbones.clip import VIT_B_16, CLIPConfig
from dca.backbones.clip.weights import build_without_weights
from dca.methods.base import Method, Problem
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
    method: type[Method], config: CLIPConfig = VIT_B_16, classes: int = CLASSES, shots: int = 16, **chosen: Any
) -> int:
    """Number of trained values on a backbone of this shape, whose weights are not needed.

    chosen: options other than the defaults. One class name is a single token, as in nearly every
    dataset, since LAMM learns as many tokens per name as the shortest name has.
    """
    names = ("class", *(f"class {c}" for c in range(1, classes)))
    return method.build(
        build_without_weights(config), Problem(names=names, shots=shots), method.Options(**chosen)
    ).count_parameters()


@cache
def load_measurements() -> dict[str, Any]:
    """measured.json: test accuracy of the methods in percent, and how it was measured."""
    found: dict[str, Any] = json.loads(files("dca.methods").joinpath("measured.json").read_text(encoding="utf-8"))
    return found


def mean_accuracy(name: str) -> float | None:
    """Mean test accuracy of a method over the measured datasets, in percent; None if it has not been measured."""
    found = load_measurements()["accuracy"].get(name)
    return round(statistics.mean(found.values()), 1) if found else None


def speed_class(method: type[Method]) -> Speed:
    """Speed class: the image tower runs in every step, or once per image and view."""
    return "minutes" if method.trains_on == "images" or method.fits_others else "seconds"


def summarize(method: type[Method]) -> dict[str, Any]:
    """One row of the tables."""
    trained = parameter_count(method)
    return {
        "name": method.name,
        "default": method.name == DEFAULT_METHOD,
        "summary": (method.__doc__ or "").splitlines()[0],
        "speed": speed_class(method),
        "gpu": "helps" if speed_class(method) == "minutes" else "not needed",
        "mean_accuracy": mean_accuracy(method.name),
        "accuracy": load_measurements()["accuracy"].get(method.name),
        "measured_with": load_measurements()["settings"].get(method.name, {}),
        "trains_on": method.trains_on,
        "learns_from": learns_from(method, trained),
        "trained_parameters": trained,
        "paper": method.paper,
    }


def learns_from(method: type[Method], trained: int) -> str:
    """What the trained values come from; `trains_on` names only the input of the training loop."""
    if method.fits_others:
        return "images"
    if method.trains_on == "nothing":
        return "frozen features, solved" if trained else "nothing is trained"
    return "frozen features" if method.trains_on == "features" else method.trains_on


def sort_rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows by speed class, in each the most accurate first, methods without a figure last."""
    speeds = list(SPEEDS)
    return sorted(rows, key=lambda row: (speeds.index(row["speed"]), -(row["mean_accuracy"] or 0), row["name"]))


def recommend(rows: Sequence[dict[str, Any]]) -> list[tuple[Reason, dict[str, Any]]]:
    """Rows to recommend, each with the reason: the default, and the most accurate of each speed class."""
    chosen: list[tuple[Reason, dict[str, Any]]] = [("default", row) for row in rows if row["default"]]
    for speed in SPEEDS:
        known = [row for row in rows if row["speed"] == speed and row["mean_accuracy"] is not None]
        if known:
            chosen.append((speed, max(known, key=lambda row: float(row["mean_accuracy"]))))
    return chosen


def describe_measurements() -> str:
    """How the accuracies were measured, in one sentence."""
    about = load_measurements()
    *sets, last = about["test_images"]
    where = f"{', '.join(sets)} and {last}"
    draws = "one draw" if len(about["seeds"]) == 1 else f"mean of {len(about['seeds'])} draws"
    return f"mean test accuracy on {where}; {about['shots']} shots, {draws}, backbone {about['backbone']}"


def markdown_table(methods: Iterable[type[Method]]) -> str:
    """Markdown with one row per method: how fast and how accurate it is, what it learns, and from what."""
    lines = [
        "| method | what it is | takes | accuracy | learns from | trained values | paper |",
        "|---|---|---|---:|---|---:|---|",
    ]
    for row in sort_rows(map(summarize, methods)):
        what, accuracy = row["summary"].rstrip("."), row["mean_accuracy"]
        shown = "" if accuracy is None else f"{accuracy:.1f}"
        learned = f"{row['learns_from']} | {row['trained_parameters']:,}"
        lines.append(f"| `{row['name']}` | {what} | {row['speed']} | {shown} | {learned} | {row['paper']} |")
    return "\n".join(lines)
