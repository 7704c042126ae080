"""What is noteworthy about the images and class names: copies, unreadable or tiny images, odd names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dca.core.errors import UserError
from dca.core.hints import render_hint
from dca.core.progress import stage_progress
from dca.datasets.check import CheckReport, check_dataset
from dca.datasets.folder import load_folder
from dca.model.copies import SharedImages, describe_shared_images
from dca.report.page import Section
from dca.report.reported_model import ReportedModel


def build(reported: ReportedModel) -> Mapping[str, Any] | str:
    """Findings of the data check, and notes of the fit."""
    model, checked = reported.model, check_data(reported)
    notes = [*model.results_.get("warnings", []), *_warn_of_shared_images(reported), *model.method_.notes()]
    if checked is None:
        return (
            {"notes": notes, "findings": [], "facts": []} if notes else "No data was given, and the fit noted nothing."
        )
    facts = [(name.replace("_", " "), f"{value:,}") for name, value in checked.facts.items() if type(value) is int]
    rows = [
        {"level": one.level, "what": one.what, "examples": one.examples, "advice": render_hint(one.advice, "cli")}
        for one in checked.findings
    ]
    return {"notes": notes, "findings": rows, "facts": facts}


def _warn_of_shared_images(reported: ReportedModel) -> list[str]:
    """The warning of the fit about images in two classes, if it gave one."""
    rows = (reported.model.results_.get("findings") or {}).get("shared_images") or ()
    return [describe_shared_images([SharedImages.from_dict(row) for row in rows])] if rows else []


def check_data(reported: ReportedModel) -> CheckReport | None:
    """Look at all images of the data: every part of a folder, or the part that was measured."""
    dataset, path = reported.dataset, Path(reported.data or "in memory").expanduser()
    if dataset is None:
        return None
    if path.is_dir():
        try:
            dataset = load_folder(path)
        except UserError:  # enough to measure on, but not to learn from
            path = Path("one part")
    return check_dataset(dataset, path, progress=stage_progress(reported.progress, "checking images"))


SECTION = Section("data_notes", "Notes on the data", build)
