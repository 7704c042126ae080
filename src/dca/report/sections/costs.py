"""What each model costs: trained values, time per image, time of the fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dca.core.text import format_seconds
from dca.model.comparison import TIMED, Comparison
from dca.report.page import Section


def build(comparison: Comparison) -> Mapping[str, Any]:
    """One row per model."""
    rows = [
        {
            "name": model.name,
            "parameters": f"{model.cost.parameters:,}",
            "milliseconds": f"{model.cost.milliseconds:.2f}",
            "fit": "–" if model.cost.fit_seconds is None else format_seconds(model.cost.fit_seconds),
            "ece": f"{model.evaluation.ece:.3f}",
        }
        for model in comparison.models
    ]
    return {"rows": rows, "timed": TIMED}


SECTION = Section("costs", "What they cost", build)
