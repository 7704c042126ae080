"""Images for which the models give different answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from dca.model.comparison import Comparison
from dca.report.page import Section
from dca.report.thumbnails import thumbnail_urls

# Images that are shown of each kind, at most so many with the same answers, and pixels of each.
MOST, ALIKE, SIDE = 16, 2, 120
KINDS = ("only others are wrong", "the first is wrong and another is right", "all are wrong, differently")


def build(comparison: Comparison) -> Mapping[str, Any] | str:
    """The images in three groups: the first model is right, another is, or none."""
    if not comparison.disagreements:
        return "The models give the same answer for every image."
    groups: list[dict[str, Any]] = [{"title": title, "rows": [], "count": 0} for title in KINDS]
    seen = Counter[tuple[str, ...]]()
    for row in comparison.disagreements:
        hits = [hit for _, _, hit in row.answers]
        group = groups[0 if hits[0] else 1 if any(hits) else 2]
        alike = (row.truth, *(label for label, *_ in row.answers))
        group["count"] += 1
        seen[alike] += 1
        if len(group["rows"]) < MOST and seen[alike] <= ALIKE:
            group["rows"].append(row)
    for group in groups:
        thumbnails = thumbnail_urls([comparison.images[row.index] for row in group["rows"]], SIDE)
        group["rows"] = list(zip(group["rows"], thumbnails, strict=True))
    names = [model.name for model in comparison.models]
    shown = [group for group in groups if group["count"]]
    return {"groups": shown, "names": names, "count": len(comparison.disagreements), "n": len(comparison.images)}


SECTION = Section("disagreements", "Where they disagree", build)
