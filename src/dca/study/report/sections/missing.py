"""Cells that tables lack: those of the specifications that were not run, and those that failed, with the reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from dca.core.text import pluralize
from dca.datasets.catalog import title_of
from dca.study.report.means import shots_column
from dca.study.report.subject import Subject
from dca.study.report.tables import Line, Part, RunsSection, Table, TableCell
from dca.study.results import Variant
from dca.study.specification import Cell

NOTE = (
    "Cells of the specifications that were given and of which at least one is finished here, and all cells that failed "
    "in the last sweeps. They are missing in the tables above."
)
COUNTS = ("cells", "finished", "failed", "not run")


def build(subject: Subject) -> Part | str:
    """How much of each specification is finished, then what was not run, then what failed."""
    studies = dict(_studies(subject))
    tables = [*_counts(subject, studies), *_not_run(subject, studies), *_failure_tables(subject)]
    return Part(notes=(NOTE,), tables=tuple(tables)) if tables else "No cell failed, and no specification was given."


def _studies(subject: Subject) -> Iterator[tuple[str, list[Cell]]]:
    """The cells of each specification that is measured on test images; without specifications that none is of here."""
    finished = {row.id for row in subject.rows}
    for study in subject.studies:
        cells = [cell for cell in study.cells if cell.experiment.measured_on == "test"]
        if any(cell.id in finished for cell in cells):
            yield study.name, cells


def _counts(subject: Subject, studies: Mapping[str, Sequence[Cell]]) -> Iterator[Table]:
    """How many cells of each specification are finished."""
    finished, failed = {row.id for row in subject.rows}, {one.id for one in subject.failed}
    lines = []
    for name, cells in studies.items():
        ids = {cell.id for cell in cells}
        numbers = (len(ids), len(ids & finished), len(ids & failed), len(ids - finished - failed))
        lines.append(Line((name,), tuple(TableCell(number, digits=0) for number in numbers)))
    if lines:
        yield Table("specifications", "Cells of the specifications", ("specification",), COUNTS, tuple(lines))


def _not_run(subject: Subject, studies: Mapping[str, Sequence[Cell]]) -> Iterator[Table]:
    """Which cells of each specification were not run, by row."""
    known = {row.id for row in subject.rows} | {one.id for one in subject.failed}
    lines = []
    for name, cells in studies.items():
        rows: dict[str, list[Cell]] = defaultdict(list)
        for cell in cells:
            if cell.id not in known:
                rows[
                    subject.names(Variant.of(cell.experiment.method, cell.experiment.changed_options, cell.head))
                ].append(cell)
        lines += [
            Line((name, row), tuple(TableCell(None, text=text) for text in _describe_cells(own)))
            for row, own in rows.items()
        ]
    if lines:
        columns = ("cells", "datasets", "shots", "seeds")
        yield Table("not-run", "Cells that were not run", ("specification", "row"), columns, tuple(lines), folded=True)


def _describe_cells(cells: Sequence[Cell]) -> Iterator[str]:
    """Number of cells, their datasets, shots and seeds, in words."""
    yield str(len(cells))
    yield ", ".join(dict.fromkeys(title_of(cell.experiment.data) for cell in cells))
    yield ", ".join(dict.fromkeys(shots_column(cell.experiment.shots) for cell in cells))
    yield ", ".join(map(str, sorted({cell.experiment.seed for cell in cells})))


def _failure_tables(subject: Subject) -> Iterator[Table]:
    """Every cell that failed, with its error."""
    if subject.failed:
        lines = tuple(Line((one.label,), (TableCell(None, text=one.error),)) for one in subject.failed)
        title = f"{pluralize(len(lines), 'cell')} that failed"
        yield Table("failed", title, ("cell",), ("error",), lines, folded=True)


SECTION = RunsSection("missing", "Missing cells", build)
