"""A table as CSV: one row per number, with the ids of the runs behind it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from dca.report.runs.table import Table
from dca.studies.index import Row
from dca.studies.results import Variant
from dca.studies.row_names import RowNames

COLUMNS = ("column", "kind", "value", "std", "low", "high", "n", "mark", "text", "note", "runs")
RUN_COLUMNS = (
    *("id", "method", "dataset", "protocol", "shots", "seed", "backbone", "selection", "accuracy", "harmonic_mean"),
    *("seconds", "trained_parameters"),
)


def csv_table(table: Table) -> str:
    """The table in long form; numbers with all digits, nothing for a missing cell."""
    rows = [
        (
            *line.heads,
            name,
            line.kind,
            e.value,
            e.std,
            e.low,
            e.high,
            e.n or None,
            e.mark,
            e.text,
            e.note,
            " ".join(e.runs),
        )
        for line in table.lines
        for name, e in zip(table.columns, line.entries, strict=True)
        if e is not None
    ]
    return _text((*table.heads, *COLUMNS), rows)


def csv_runs(rows: Iterable[Row], names: RowNames) -> str:
    """All runs: one row each, as its result file has it."""
    found = []
    for row in rows:
        variant = Variant.of(row.method, row.spec.get("options", {}), row.head)
        targets = " ".join(f"{target['name']}={target['accuracy']}" for target in row.targets if "accuracy" in target)
        found.append((*(getattr(row, name) for name in RUN_COLUMNS), names(variant), targets))
    return _text((*RUN_COLUMNS, "row", "targets"), found)


def _text(header: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()
