"""Paired differences between methods: intervals over datasets and over draws, t-tests and sign tests over datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dca.stats.paired import MeanDifference, holm, sign_test, sign_test_datasets
from dca.stats.student import t_test
from dca.study.claims import FEWEST_DATASETS, Pairs, pairs_of
from dca.study.report.means import mean_over_datasets, shots_title
from dca.study.report.subject import Subject
from dca.study.report.tables import Line, Part, RunsSection, Table, TableCell, interval_text
from dca.study.results import Block, Shots, Variant

NOTE = (
    "A method minus the reference, in points, over pairs with the same dataset and seed, hence the same training "
    "images. The effect is the mean over datasets, with its 95 % interval over datasets (Student's t): for datasets "
    "like these. Over draws: the 95 % interval for these very datasets with other draws. p: t-test over datasets, from "
    f"{FEWEST_DATASETS} on, corrected for the number of methods by Holm's method at each number of shots."
)
COLUMNS = ("difference", "over draws", "pairs", "datasets", "above on", "p", "p, Holm")
SIGNS, SIGNS_HOLM = "p, signs", "p, signs, Holm"


def build(subject: Subject) -> Part | str:
    """One table per number of shots."""
    tables = [table for block in subject.of_protocol("few-shot") for table in _tables(subject, block)]
    return Part(notes=(NOTE,), tables=tuple(tables)) if tables else "Fewer than two few-shot methods share a run."


def _tables(subject: Subject, block: Block) -> Iterator[Table]:
    for shots in block.shots:
        reference = _reference(subject, block, shots)
        own = {variant: pairs_of(block, variant, reference, [shots]) for variant in subject.methods(block)}
        found = {variant: pairs for variant, pairs in own.items() if variant != reference and pairs.pairs}
        if not found:
            continue
        name = subject.names(reference)
        title = f"Differences to {name}, {shots_title(shots)}{subject.where(block)}"
        stem = f"differences-{shots if shots is not None else 'all'}{subject.file_suffix(block)}"
        columns, lines, note = _lines({subject.names(variant): pairs for variant, pairs in found.items()})
        folded = shots != block.shots[-1]
        yield Table(stem, title, (f"method minus {name}",), columns, lines, notes=(note,), folded=folded)


def _lines(found: dict[str, Pairs]) -> tuple[tuple[str, ...], tuple[Line, ...], str]:
    """The columns, one line per method, and what a sign test could show.

    The sign test has columns where some method was compared on enough datasets for it to reach 5 %, and is corrected
    over methods where it could still reach 5 % then.
    """
    differences = {name: pairs.difference() for name, pairs in found.items()}
    known = {name: difference for name, difference in differences.items() if difference is not None}
    most = max(difference.groups for difference in known.values())
    tests = {"t": _p_values(known, FEWEST_DATASETS, lambda one: t_test(one.means))}
    columns: tuple[str, ...] = COLUMNS
    if most >= sign_test_datasets():
        tests["signs"] = _p_values(known, sign_test_datasets(), lambda one: sign_test(one.means))
        note = f"p, signs: exact sign test over datasets, from {sign_test_datasets()} on."
        columns += (SIGNS,)
    else:
        note = f"A sign test over {most} datasets cannot reach 5 %; it takes {sign_test_datasets()}."
    if most >= (needed := sign_test_datasets(len(known))):
        columns += (SIGNS_HOLM,)
    else:
        note += f" With Holm's correction over {len(known)} methods it takes {needed}."
    return columns, tuple(_line(name, found[name], one, tests, columns) for name, one in known.items()), note


def _reference(subject: Subject, block: Block, shots: Shots) -> Variant:
    """The row that is the reference, where it was run, else the one with the best average."""
    rows = subject.methods(block)
    for row in rows:
        if subject.is_reference(row) and any(block.runs(row, name, shots) for name in block.datasets):
            return row
    averages = {variant: mean_over_datasets(block, variant, shots, block.averaged) for variant in rows}
    known = {variant: entry.value for variant, entry in averages.items() if entry and entry.value is not None}
    return max(known or {next(iter(averages)): 0.0}, key=lambda variant: known.get(variant, 0.0))


def _p_values(
    known: dict[str, MeanDifference], fewest: int, test: Callable[[MeanDifference], float]
) -> dict[str, tuple[float, float]]:
    """The p-value of each method with enough datasets, and the same after Holm's correction over these methods."""
    raw = {name: test(one) for name, one in known.items() if one.groups >= fewest}
    return {name: (p, corrected) for (name, p), corrected in zip(raw.items(), holm(list(raw.values())), strict=True)}


def _line(
    name: str,
    pairs: Pairs,
    found: MeanDifference,
    tests: dict[str, dict[str, tuple[float, float]]],
    columns: tuple[str, ...],
) -> Line:
    runs, draws = pairs.runs, found.over_draws()
    low, high = found.over_datasets() or (None, None)
    effect = TableCell(found.effect, low=low, high=high, runs=runs, signed=True)
    counts = [TableCell(n, text=str(n), runs=runs) for n in (found.pairs, found.groups)]
    cells = {
        "difference": effect,
        "over draws": None if draws is None else TableCell(None, text=interval_text(effect, draws), runs=runs),
        "pairs": counts[0],
        "datasets": counts[1],
        "above on": TableCell(found.above, text=f"{found.above} of {found.groups}", runs=runs),
    }
    for test, (plain, corrected) in {"t": ("p", "p, Holm"), "signs": (SIGNS, SIGNS_HOLM)}.items():
        for column, p in zip((plain, corrected), tests.get(test, {}).get(name, ()), strict=False):
            cells[column] = TableCell(p, text=_p(p), runs=runs)
    return Line((name,), tuple(cells.get(column) for column in columns))


def _p(value: float) -> str:
    """A p-value as it is shown.

    >>> _p(0.03125), _p(0.0002)
    ('0.031', '< 0.001')
    """
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


SECTION = RunsSection("differences", "Are the differences chance?", build)
