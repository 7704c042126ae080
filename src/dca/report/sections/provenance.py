"""How the model was made: the command, versions, seed and hashes."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch

import dca
from dca.core.files import json_digest, read_json
from dca.core.text import format_seconds
from dca.methods.blend import Blend
from dca.methods.registry import DEFAULT_METHOD
from dca.model.checkpoint import CONFIG, SPEC
from dca.model.records import TrainingImage
from dca.report.page import Section
from dca.report.reported_model import ReportedModel


def build(reported: ReportedModel) -> Mapping[str, Any] | str:
    """Everything that decides the model, as far as it is recorded."""
    model, folder = reported.model, reported.folder
    spec = read_json(folder / SPEC).get("spec", {}) if folder is not None and (folder / SPEC).is_file() else {}
    version = read_json(folder / CONFIG).get("version", "") if folder is not None else dca.__version__
    encoder, options = model.method_.encoder, model._to_record().fit_arguments.options
    facts = [
        ("seed", str(model.method_.problem.seed)),
        ("images per class", str(spec.get("shots") or model.shots or "all")),
        *([("other images", str(len(model.other_images_)))] if model.other_images_ else []),
        ("draw (sha256)", hash_draw(model.training_images_) if model.training_images_ else "not recorded"),
        ("backbone", f"{encoder.source} (sha256 {encoder.digest[:16]})"),
        ("options", ", ".join(f"{name}={value}" for name, value in options.items()) or "defaults"),
        ("fitted with", f"dca {version}"),
        ("this page", f"dca {dca.__version__}, {_describe_system()}"),
    ]
    if seconds := model.results_.get("seconds"):
        facts.insert(0, ("time of the fit", format_seconds(seconds)))
    return {"command": fit_command(spec) if spec else "", "facts": facts, "lineage": list(map(str, model.lineage_))}


def hash_draw(images: Sequence[TrainingImage]) -> str:
    """Hash of the training images and their classes, the same as in the run's `spec.json`."""
    return json_digest([[image.label, image.sha256] for image in images])


def fit_command(spec: Mapping[str, Any]) -> str:
    """The command of a recorded spec, of a fit or of a study; of paths only the last parts are recorded."""
    words = ["dca", *(["study", "run"] if "protocol" in spec else ["fit"]), str(spec["data"])]
    method, options = spec["method"], dict(spec["options"])
    if method == Blend.name:
        words += ["--with", str(options.pop("trained", Blend.Options().trained))]
        options |= options.pop("trained_options", {})
    flags = {
        "--method": None if method in (DEFAULT_METHOD, Blend.name) else method,
        "--shots": spec["shots"],
        "--seed": spec["seed"] if spec["seed"] != 1 else None,
        "--backbone": spec["backbone"] if spec["backbone"] != "mini" else None,
        "--protocol": spec["protocol"] if spec.get("protocol", "few-shot") != "few-shot" else None,
        "--rules": spec["rules"] if spec["rules"] != "strict" else None,
        "--hold-out": spec["hold_out"] or None,
        "--other": spec.get("other"),
        "--measured-on": spec.get("measured_on"),
        "--draw": spec.get("draw"),
    }
    for flag, value in flags.items():
        words += [] if value is None else [flag, str(value)]
    for target in spec.get("targets", []):
        words += ["--target", str(target)]
    for name, value in options.items():
        words += ["--set", f"{name}={value}"]
    return shlex.join(words)


def _describe_system() -> str:
    """Versions of libraries and Python, and the machine."""
    libraries = f"torch {torch.__version__}, numpy {numpy.__version__}"
    return f"{libraries}, Python {platform.python_version()} on {platform.system()} {platform.machine()}"


SECTION = Section("provenance", "How it was made", build)
