"""Accuracy over the shrinkage of the covariance, γ1 by γ2."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from dca.study.report.figures import Figure, heat_map
from dca.study.report.means import mean_over_seeds, shots_title
from dca.study.report.sections.curves import point_of
from dca.study.report.subject import Subject
from dca.study.report.tables import Part, RunsSection, TableCell
from dca.study.results import OURS, Block, Shots, Variant, short_value

AXES = ("gamma1", "gamma2")
NOTE = (
    "Test accuracy in percent, mean over seeds, with γ1 and γ2 of the head. The stronger the colour, the better, in "
    "each figure by itself. × failed, mostly since the shrunk covariance of a class is not positive definite; point at "
    "it for the reason. – was not run."
)
Settings = tuple[tuple[str, Any], ...]
Grid = tuple[str, Settings]
GammaPair = tuple[float, float]


def build(subject: Subject) -> Part | str:
    """One figure per dataset, shots and further settings."""
    figures = [figure for block in subject.of_protocol("few-shot") for figure in _figures(subject, block)]
    return Part(notes=(NOTE,), figures=tuple(figures)) if figures else "γ1 and γ2 were not varied together."


def _figures(subject: Subject, block: Block) -> Iterator[Figure]:
    failed = _errors_by_gamma(subject, block)
    for number, (grid, variants) in enumerate(_grids(block).items()):
        words = ", ".join([grid[0], *(f"{name}={short_value(value)}" for name, value in grid[1])])
        for dataset in block.datasets:
            for shots in block.shots:
                entries = {place: mean_over_seeds(block, v, dataset, shots) for place, v in variants.items()}
                if sum(entry is not None for entry in entries.values()) < 4:
                    continue
                title = f"γ of {words}: {block.title(dataset)}, {shots_title(shots)}{subject.where(block)}"
                stem = f"gamma-{grid[0]}-{number}-{dataset}-{shots}{subject.file_suffix(block)}"
                yield _figure(entries, failed[(*grid, dataset, shots)], title, stem)


def _figure(
    entries: Mapping[GammaPair, TableCell | None], failed: Mapping[GammaPair, str], title: str, stem: str
) -> Figure:
    rows, columns = (sorted({place[axis] for place in (*entries, *failed)}) for axis in (0, 1))
    cells = [[point_of(entries.get((r, c)), f"γ1 = {r:g}, γ2 = {c:g}") for c in columns] for r in rows]
    crosses = {(rows.index(r), columns.index(c)): error for (r, c), error in failed.items()}
    names = [f"{r:g}" for r in rows], [f"{c:g}" for c in columns]
    svg = heat_map(cells, *names, ("γ1", "γ2"), title, crosses)
    return Figure(stem, title, svg, tuple(point.runs for some in cells for point in some if point))


def _grids(block: Block) -> dict[Grid, dict[GammaPair, Variant]]:
    """Variants with both γ, by method and further settings, then by γ1 and γ2."""
    found: dict[Grid, dict[GammaPair, Variant]] = defaultdict(dict)
    for variant in block.variants:
        if has_both_gammas(variant):
            grid, place = _split_gammas(variant)
            found[grid].setdefault(place, variant)
    return found


def _errors_by_gamma(subject: Subject, block: Block) -> dict[tuple[str, Settings, str, Shots], dict[GammaPair, str]]:
    """Errors of failed cells with both γ, by method, further settings, dataset and shots, then by γ1 and γ2."""
    found: dict[tuple[str, Settings, str, Shots], dict[GammaPair, str]] = defaultdict(dict)
    for one in subject.failed:
        variant = Variant.of(one.spec["method"], one.spec["options"], one.head)
        where = one.spec["protocol"], one.spec["backbone"], one.spec["rules"]
        own = where == (block.protocol, block.context.backbone, block.context.rules)
        if own and has_both_gammas(variant):
            grid, place = _split_gammas(variant)
            found[(*grid, one.spec["data"], one.spec["shots"])][place] = one.error
    return found


def _split_gammas(variant: Variant) -> tuple[Grid, GammaPair]:
    """Method and further settings of a variant, and its γ1 and γ2."""
    settings = variant.settings
    rest = tuple((name, value) for name, value in settings.items() if name not in AXES)
    return (variant.method, rest), (settings[AXES[0]], settings[AXES[1]])


def has_both_gammas(variant: Variant) -> bool:
    """Whether γ1 and γ2 of the head of a finished model were changed: both may also be settings of every fit."""
    return all(isinstance(dict(variant.head).get(axis), int | float) for axis in AXES)


SECTION = RunsSection("gamma", "Shrinkage of the covariance", build, method=OURS)
