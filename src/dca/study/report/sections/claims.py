"""The claims of the paper: which hold, which do not, and which were not measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from dca.study.claims import LOG_SECONDS, RULE, ClaimComparison, JudgedClaim, Outcome
from dca.study.report.subject import Subject
from dca.study.report.tables import Line, Mark, Part, RunsSection, Table, TableCell
from dca.study.results import PARAMETERS, SECONDS, Context

UNITS = {SECONDS: " s", PARAMETERS: " parameters", LOG_SECONDS: " (log2)"}


def build(subject: Subject) -> Part | str:
    """Per backbone and rules one table of claims, and one of the comparisons behind them."""
    notes, tables = [RULE], []
    for context, judged in subject.judged.items():
        counts = Counter(one.outcome for one in judged)
        where = "" if len(subject.contexts) == 1 else f" ({context.label})"
        said = ", ".join(f"{counts[outcome]} {_plural(outcome)}" for outcome in get_args(Outcome))
        notes.append(f"Of {len(judged)} claims of the paper{where}: {said}.")
        slug = "" if len(subject.contexts) == 1 else f"-{context.slug}"
        if any(one.measured for one in judged):
            tables += [_claims(judged, context, where, slug), _comparisons(judged, where, slug)]
    return Part(notes=tuple(notes), tables=tuple(tables))


def _plural(outcome: Outcome) -> str:
    return {"holds": "hold", "does not hold": "do not hold"}.get(outcome, outcome)


def _claims(judged: tuple[JudgedClaim, ...], context: Context, where: str, slug: str) -> Table:
    lines = [Line((one.claim.text, one.claim.place), _entries(one)) for one in judged]
    note = (
        "Effect: the comparison that speaks least for the claim, one minus the other, in points unless a unit is "
        f"given, with its 95 % interval. Measured here with {context.label}; the paper has ViT-B/16."
    )
    columns = ("outcome", "effect", "pairs", "least favourable comparison", "measured", "the paper prints")
    return Table(f"claims{slug}", f"Claims{where}", ("claim", "place"), columns, tuple(lines), notes=(note,))


def _entries(one: JudgedClaim) -> tuple[TableCell | None, ...]:
    runs = tuple(dict.fromkeys(id for compared in one.measured for id in compared.runs))
    weakest = one.weakest
    effect = None if weakest is None else _difference_cell(weakest, UNITS.get(one.claim.quantity, ""))
    pairs = words = None
    if weakest is not None and weakest.difference is not None:
        pairs = TableCell(weakest.difference.pairs, text=str(weakest.difference.pairs), runs=weakest.runs)
        words = TableCell(None, text=weakest.words)
    count = TableCell(None, text=f"{len(one.measured)} of {len(one.comparisons)}") if one.comparisons else None
    decided: Mark = "best" if one.outcome in ("holds", "does not hold") else ""
    return (
        TableCell(None, text=one.outcome, runs=runs, mark=decided),
        effect,
        pairs,
        words,
        count,
        TableCell(None, text=one.claim.printed),
    )


def _difference_cell(one: ClaimComparison, unit: str) -> TableCell:
    found = one.difference
    assert found is not None
    note = f"{found.pairs} pairs of {found.groups} datasets"
    digits = 0 if unit == UNITS[PARAMETERS] else 2
    entry = TableCell(
        found.effect, low=found.low, high=found.high, runs=one.runs, note=note, signed=True, digits=digits
    )
    return replace(entry, text=f"{entry.main}{unit}")


def _comparisons(judged: tuple[JudgedClaim, ...], where: str, slug: str) -> Table:
    lines = tuple(line for one in judged for line in _comparison_lines(one))
    columns = ("outcome", "difference", "pairs", "datasets")
    heads = ("claim", "comparison")
    return Table(f"comparisons{slug}", f"All comparisons behind the claims{where}", heads, columns, lines, folded=True)


def _comparison_lines(one: JudgedClaim) -> Iterator[Line]:
    unit = UNITS.get(one.claim.quantity, "")
    for compared in one.comparisons:
        found, outcome = compared.difference, TableCell(None, text=compared.outcome)
        if found is None:
            yield Line((one.claim.name, compared.words), (outcome, None, None, None))
            continue
        counts = [TableCell(n, text=str(n), runs=compared.runs) for n in (found.pairs, found.groups)]
        yield Line((one.claim.name, compared.words), (outcome, _difference_cell(compared, unit), *counts))


SECTION = RunsSection("claims", "Claims of the paper", build)
