"""Accuracy over the shrinkage of the covariance, γ1 by γ2."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from dca.report.runs.charts import heat_map
from dca.report.runs.figure import Figure
from dca.report.runs.means import cell_entry, shots_title
from dca.report.runs.part import Part, RunsSection
from dca.report.runs.sections.curves import point_of
from dca.report.runs.subject import Subject
from dca.studies.results import Block, Variant, short_value

AXES = ("gamma1", "gamma2")
NOTE = (
    "Test accuracy in percent, mean over seeds, with γ1 and γ2 of the head. The stronger the colour, the better, in "
    "each figure by itself."
)
Settings = tuple[tuple[str, Any], ...]


def build(subject: Subject) -> Part | str:
    """One figure per dataset, shots and further settings."""
    figures = [figure for block in subject.of_protocol("few-shot") for figure in _figures(subject, block)]
    return Part(notes=(NOTE,), figures=tuple(figures)) if figures else "γ1 and γ2 were not varied together."


def _figures(subject: Subject, block: Block) -> Iterator[Figure]:
    for number, ((method, rest), variants) in enumerate(_grids(block).items()):
        words = ", ".join([method, *(f"{name}={short_value(value)}" for name, value in rest)])
        for dataset in block.datasets:
            for shots in block.shots:
                entries = {place: cell_entry(block, v, dataset, shots) for place, v in variants.items()}
                if sum(entry is not None for entry in entries.values()) < 4:
                    continue
                rows, columns = (sorted({place[axis] for place in entries}) for axis in (0, 1))
                cells = [[point_of(entries.get((r, c)), f"γ1 = {r:g}, γ2 = {c:g}") for c in columns] for r in rows]
                title = f"γ of {words}: {dataset}, {shots_title(shots)}{subject.where(block)}"
                names = [f"{r:g}" for r in rows], [f"{c:g}" for c in columns]
                svg = heat_map(cells, *names, ("γ1", "γ2"), title)
                groups = tuple(point.runs for some in cells for point in some if point)
                stem = f"gamma-{method}-{number}-{dataset}-{shots}{subject.slug(block)}"
                yield Figure(stem, title, svg, groups)


def _grids(block: Block) -> dict[tuple[str, Settings], dict[tuple[float, float], Variant]]:
    """Variants with both γ, by method and further settings, then by γ1 and γ2."""
    found: dict[tuple[str, Settings], dict[tuple[float, float], Variant]] = defaultdict(dict)
    for variant in block.variants:
        settings = variant.settings
        if all(isinstance(settings.get(axis), int | float) for axis in AXES):
            rest = tuple((name, value) for name, value in settings.items() if name not in AXES)
            found[variant.method, rest].setdefault((settings[AXES[0]], settings[AXES[1]]), variant)
    return found


SECTION = RunsSection("gamma", "Shrinkage of the covariance", build)
