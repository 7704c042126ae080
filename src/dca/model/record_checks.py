"""Checks of the `config.json` of a model, field by field."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import Any

# Field, type, what JSON calls it.
FIELDS = (
    ("method", str, "string"),
    ("options", dict, "object"),
    ("problem", dict, "object"),
    ("labels", list, "array"),
    ("backbone", dict, "object"),
    ("given", dict, "object"),
    ("draw", list, "array"),
    ("results", dict, "object"),
    ("lineage", list, "array"),
    ("sha256", dict, "object"),
    ("package", str, "string"),
    ("temperature", float, "number"),
    ("estimate", dict, "object"),
)
# What may have been done to a class, or to the options of the head, since the fit.
CHANGES = ("added", "removed", "renamed", "options")


def record_problems(raw: dict[str, Any]) -> list[str]:
    """One line per field that is missing or wrong."""
    problems = [f"{name}: a JSON {word} expected" for name, kind, word in FIELDS if type(raw.get(name)) is not kind]
    if problems:
        return problems
    return [
        *_problem_faults(raw["problem"], raw["labels"]),
        *_text_faults(raw, "backbone", ("source", "digest")),
        *_text_faults(raw, "sha256", ("weights", "classes")),
        *_given_faults(raw["given"]),
        *_draw_faults(raw["draw"]),
        *_calibration_faults(raw["temperature"], raw["estimate"]),
        *_result_faults(raw["results"]),
        *_lineage_faults(raw["lineage"]),
    ]


def _problem_faults(problem: dict[str, Any], labels: list[Any]) -> list[str]:
    names = problem.get("names")
    faults = []
    if not isinstance(names, list) or len(names) < 2 or not all(isinstance(name, str) for name in names):
        faults.append("problem.names: at least two names expected")
    else:
        faults += [f"problem.names: {fault}" for fault in unreadable_names(names)]
        if len(labels) != len(names):
            faults.append(f"labels: {len(names)} expected, one per class name")
    faults += [
        f"labels: {label!r} is not text or a number" for label in labels if type(label) not in (str, int, float, bool)
    ]
    kinds = {"shots": int, "seed": int, "dataset": str, "template": str, "selection": str}
    faults += [f"problem.{k}: a {v.__name__} expected" for k, v in kinds.items() if type(problem.get(k)) is not v]
    return faults + [f"problem.{k}: unknown" for k in problem if k not in {*kinds, "names"}]


def _text_faults(raw: dict[str, Any], field: str, keys: Sequence[str]) -> list[str]:
    return [f"{field}.{key}: a text expected" for key in keys if not isinstance(raw[field].get(key), str)]


def _given_faults(given: dict[str, Any]) -> list[str]:
    faults = [] if type(given.get("shots")) in (int, type(None)) else ["given.shots: a number or nothing expected"]
    faults += [
        f"given.{k}: true or false expected" for k in ("estimate", "calibrate") if type(given.get(k)) is not bool
    ]
    faults += [f"given.{k}: unknown" for k in given if k not in ("shots", "options", "estimate", "calibrate")]
    return faults if type(given.get("options")) is dict else [*faults, "given.options: a JSON object expected"]


def unreadable_names(names: Sequence[str]) -> list[str]:
    """One line per class name that is empty or holds control characters or broken Unicode."""
    return [
        f"{name!r} is not a readable name"
        for name in names
        if not name.strip(" _") or any(unicodedata.category(c) in ("Cc", "Cs") for c in name)
    ]


def _draw_faults(draw: list[Any]) -> list[str]:
    kinds = {"label": int, "name": str, "sha256": str}
    if not all(isinstance(row, dict) and all(type(row.get(k)) is v for k, v in kinds.items()) for row in draw):
        return ["draw: label, name and sha256 of each image expected"]
    kinds = {"label": int, "probability": float, "own": float}
    held = [row["held_out"] for row in draw if "held_out" in row]
    good = all(isinstance(row, dict) and all(type(row.get(k)) is v for k, v in kinds.items()) for row in held)
    return [] if good else ["draw: label, probability and own of each held-out prediction expected"]


def _calibration_faults(temperature: float, estimate: dict[str, Any]) -> list[str]:
    faults = [] if 0 < temperature < math.inf else ["temperature: a number above 0 expected"]
    if not estimate:
        return faults
    kinds: dict[str, tuple[type, ...]] = {"how": (str,), "n": (int,), "zero_shot_accuracy": (float, type(None))}
    kinds |= dict.fromkeys(("accuracy", "low", "high"), (float,))
    faults += [f"estimate.{k}: another type expected" for k, v in kinds.items() if type(estimate.get(k)) not in v]
    return faults + [f"estimate.{k}: unknown" for k in estimate if k not in kinds]


def _result_faults(results: dict[str, Any]) -> list[str]:
    return [
        f"results.{name}: a number expected"
        for name in ("accuracy", "zero_shot_accuracy")
        if type(results.get(name)) not in (int, float, type(None))
    ]


def _lineage_faults(lineage: list[Any]) -> list[str]:
    return [
        f"lineage[{n}]: a change of a class or of options expected"
        for n, row in enumerate(lineage)
        if not _is_change(row)
    ]


def _is_change(row: Any) -> bool:
    """Whether a row of the lineage says what was done to which class of which model."""
    if not isinstance(row, dict) or row.get("change") not in CHANGES or not isinstance(row.get("before"), dict):
        return False
    if row["change"] == "options":
        changed = row.get("options")
        pairs = changed.values() if isinstance(changed, dict) else [None]
        return isinstance(row.get("version"), str) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
    texts = [row.get("name"), row.get("version"), row["before"].get("weights")]
    if row["change"] == "added":
        images = row.get("images")
        if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
            return False
        texts += [image.get(key) for image in images for key in ("name", "sha256")]
    if row["change"] == "renamed":
        texts.append(row.get("new_name"))
    needed = {"label", "new_label"} if row["change"] == "renamed" else {"label"}
    return needed <= row.keys() and all(isinstance(text, str) for text in texts)
