"""Learned prompts in words: nearest tokens with their distances, and angles between prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dca.model.prompt_words import describe_prompts
from dca.report.page import Section
from dca.report.reported_model import ReportedModel


def build(reported: ReportedModel) -> Mapping[str, Any] | str:
    """All learned prompts."""
    method = reported.model.method_
    found = describe_prompts(method, reported.model.classes_.tolist())
    if found is None:
        return f"{method.name} learns no prompts."
    return {
        "prompts": found.prompts,
        "left_out": found.left_out,
        "typical_distance": found.typical_distance,
        "angles": found.angles,
    }


SECTION = Section("prompts", "The learned prompts in words", build)
