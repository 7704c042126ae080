"""The claims of the paper: which hold, which do not, which are not decided and what would decide them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from dca.core.text import pluralize
from dca.datasets.catalog import title_of
from dca.stats.student import MOST_DATASETS
from dca.study.claims import FEWEST_DATASETS, LOG_SECONDS, RULE, ClaimComparison, JudgedClaim, Outcome, ToDecide
from dca.study.report.subject import Subject
from dca.study.report.tables import MISSING, Line, Mark, Part, RunsSection, Table, TableCell, interval_text
from dca.study.results import PARAMETERS, SECONDS, Context

UNITS = {SECONDS: " s", PARAMETERS: " parameters", LOG_SECONDS: " (log2)"}
# Accuracies differ by at most 100 points.
FARTHEST = 100.0
COLUMNS = (
    *("outcome", "effect", "over draws", "datasets", "pairs", "least favourable comparison", "measured"),
    *("what would decide it", "the paper prints"),
)
NOTE = (
    "Effect: the comparison that speaks least for the claim, one minus the other, in points unless a unit is given, as "
    "the mean over datasets, with its 95 % interval over datasets (Student's t): for datasets like these. Over draws: "
    "the 95 % interval for these very datasets with other draws. What would decide it: the number of datasets with "
    "which the comparison is decided with a chance of 80 %, if the true difference is the one that was seen and "
    "datasets vary as these do; and how far from the bound the true difference would have to be for the datasets "
    "that there are."
)


def build(subject: Subject) -> Part | str:
    """Per backbone and rules one table of claims, and one of the comparisons behind them."""
    notes, tables = [RULE], []
    for context, judged in subject.judged.items():
        counts = Counter(one.outcome for one in judged)
        where = "" if len(subject.contexts) == 1 else f" ({context.label})"
        said = ", ".join(f"{counts[outcome]} {_plural(outcome)}" for outcome in get_args(Outcome))
        notes.append(f"Of {len(judged)} claims of the paper{where}: {said}.")
        notes.append(_describe_variation(judged, context))
        slug = "" if len(subject.contexts) == 1 else f"-{context.slug}"
        if any(one.measured for one in judged):
            tables += [_claims(judged, where, slug), _comparisons(judged, where, slug)]
    return Part(notes=tuple(notes), tables=tuple(tables))


def _plural(outcome: Outcome) -> str:
    return {"holds": "hold", "does not hold": "do not hold"}.get(outcome, outcome)


def _describe_variation(judged: tuple[JudgedClaim, ...], context: Context) -> str:
    """What was varied behind the claims of a context, and what was not."""
    pairs = [pair for one in judged for compared in one.measured for pair in compared.pairs.pairs]
    datasets = ", ".join(dict.fromkeys(title_of(pair.dataset) for pair in pairs))
    draws = {pair.draw for pair in pairs if pair.draw is not None}
    count = pluralize(len({pair.dataset for pair in pairs}), "dataset")
    return (
        f"Varied: {count} ({datasets or MISSING}) and {pluralize(len(draws), 'draw')} of their training images. Not "
        f"varied: {context.label}. The paper has ViT-B/16 and 11 datasets, so an outcome is about the claim under "
        "these conditions."
    )


def _claims(judged: tuple[JudgedClaim, ...], where: str, slug: str) -> Table:
    lines = tuple(Line((one.claim.text, one.claim.place), _entries(one)) for one in judged)
    return Table(f"claims{slug}", f"Claims{where}", ("claim", "place"), COLUMNS, lines, notes=(NOTE,))


def _entries(one: JudgedClaim) -> tuple[TableCell | None, ...]:
    runs = tuple(dict.fromkeys(id for compared in one.measured for id in compared.runs))
    weakest = one.weakest
    measured = _difference_cells(weakest, UNITS.get(one.claim.quantity, "")) if weakest else (None,) * 4
    words = None if weakest is None else TableCell(None, text=weakest.words)
    count = TableCell(None, text=f"{len(one.measured)} of {len(one.comparisons)}") if one.comparisons else None
    decided: Mark = "best" if one.outcome in ("holds", "does not hold") else ""
    missing = _describe_missing(one)
    return (
        TableCell(None, text=one.outcome, runs=runs, mark=decided),
        *measured,
        words,
        count,
        TableCell(None, text=missing) if missing else None,
        TableCell(None, text=one.claim.printed),
    )


def _describe_missing(one: JudgedClaim) -> str:
    """What would decide a claim that is not decided; empty for others."""
    if one.outcome != "not decided":
        return ""
    parts = []
    if to_decide := one.to_decide():
        parts.append(_describe_need(to_decide, UNITS.get(one.claim.quantity, "")))
    if lacking := len(one.comparisons) - len(one.measured):
        parts.append(f"{pluralize(lacking, 'comparison', 'are')} not measured")
    return "; ".join(parts)


def _describe_need(need: ToDecide, unit: str) -> str:
    """What would decide a comparison, in words."""
    if need.deviation is None:
        return f"at least {FEWEST_DATASETS} datasets; how many, one dataset cannot say"
    count = f"more than {MOST_DATASETS:,}" if need.needed is None else f"{need.needed:,}"
    words = f"{count} datasets (standard deviation {need.deviation:,.2f} over {need.datasets})"
    if need.distance is None or (unit == "" and need.distance > FARTHEST):
        return words
    return f"{words}, or a difference {need.distance:,.2f} from the bound with these"


def _difference_cells(one: ClaimComparison, unit: str) -> tuple[TableCell | None, ...]:
    """The effect with its interval over datasets, the interval over draws, the datasets and the number of pairs."""
    found = one.difference
    assert found is not None
    low, high = found.over_datasets() or (None, None)
    draws, digits = found.over_draws(), 0 if unit == UNITS[PARAMETERS] else 2
    entry = TableCell(found.effect, low=low, high=high, runs=one.runs, signed=True, digits=digits)
    effect = replace(entry, text=f"{entry.main}{unit}")
    named = ", ".join(f"{title_of(name)} {entry.number(value)}" for name, value in one.by_dataset.items())
    return (
        effect,
        None if draws is None else TableCell(None, text=interval_text(entry, draws), runs=one.runs),
        TableCell(found.groups, text=str(found.groups), runs=one.runs, note=named),
        TableCell(found.pairs, text=str(found.pairs), runs=one.runs),
    )


def _comparisons(judged: tuple[JudgedClaim, ...], where: str, slug: str) -> Table:
    lines = tuple(line for one in judged for line in _comparison_lines(one))
    columns = ("outcome", "difference", "over draws", "datasets", "pairs", "by dataset")
    heads = ("claim", "comparison")
    return Table(f"comparisons{slug}", f"All comparisons behind the claims{where}", heads, columns, lines, folded=True)


def _comparison_lines(one: JudgedClaim) -> Iterator[Line]:
    unit = UNITS.get(one.claim.quantity, "")
    for compared in one.comparisons:
        outcome = TableCell(None, text=compared.outcome)
        if compared.difference is None:
            yield Line((one.claim.name, compared.words), (outcome, *(None,) * 5))
            continue
        cells = _difference_cells(compared, unit)
        count = cells[2]
        assert count is not None
        yield Line((one.claim.name, compared.words), (outcome, *cells, TableCell(None, text=count.note)))


SECTION = RunsSection("claims", "Claims of the paper", build, of_paper=True)
