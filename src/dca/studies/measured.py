"""The accuracies that `dca methods` shows, from the finished cells of a sweep."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dca.core.errors import UserError
from dca.core.wording import counted
from dca.data.sources import catalog
from dca.studies.cell import Cell
from dca.studies.index import Row, RunIndex
from dca.studies.spec_file import Study


def measured_accuracies(study: Study, runs: Path, *, shots: int = 16) -> dict[str, Any]:
    """Test accuracy of every method with its defaults, as `methods/measured.json` holds it.

    Args:
        study: A study with few-shot cells of methods on public datasets.
        runs: Folder of the results.
        shots: Only cells with this number of images per class, and those of zero-shot CLIP.

    Returns:
        Accuracies in percent by method and dataset, mean over the seeds, the best method first; and how they were made.

    Raises:
        UserError: If there are no such cells, or some are not finished.
    """
    cells = [cell for cell in study.cells if _counts(cell, shots)]
    with RunIndex(runs) as index:
        index.refresh()
        rows = {row.id: row for row in index.rows(measured_on="test")}
    lacking = [f"{cell.id}  {cell.label}" for cell in cells if cell.id not in rows]
    if lacking or not cells:
        problem = f"{counted(len(lacking), 'cell', of=len(cells))} of {study.name} not finished in {runs}"
        raise UserError(problem, details=lacking, hint=f"dca sweep {study.name} --runs {runs}")
    found: dict[str, dict[str, list[Row]]] = {}
    for cell in cells:
        row = rows[cell.id]
        found.setdefault(row.method, {}).setdefault(_title(row.dataset), []).append(row)
    accuracy = {method: {name: _percent(of) for name, of in by_data.items()} for method, by_data in found.items()}
    best_first = sorted(accuracy.items(), key=lambda item: (-statistics.mean(item[1].values()), item[0]))
    return {
        "command": f"dca sweep {study.name}",
        "about": "test accuracy in percent of every method with its defaults, mean over the seeds",
        "backbone": cells[0].spec.to_dict()["backbone"],
        "shots": shots,
        "seeds": sorted({cell.spec.seed for cell in cells}),
        "test_images": _test_images(found),
        "settings": {},
        "accuracy": dict(best_first),
    }


def _counts(cell: Cell, shots: int) -> bool:
    """Whether a cell is a method with its defaults at these shots; zero-shot CLIP does not depend on them."""
    spec = cell.spec
    plain = spec.protocol == "few-shot" and not spec.options and not cell.head
    return plain and (spec.shots == shots or spec.method == "zero_shot")


def _title(dataset: str) -> str:
    entry = catalog.lookup(dataset)
    return entry.title if entry else dataset


def _percent(rows: Sequence[Row]) -> float:
    """Mean accuracy in percent, to one decimal."""
    return round(100 * statistics.fmean(row.accuracy or 0.0 for row in rows), 1)


def _test_images(found: Mapping[str, Mapping[str, Sequence[Row]]]) -> dict[str, int]:
    """Test images of each dataset."""
    return {
        name: int(rows[0].targets[0]["test_images"]) for by_data in found.values() for name, rows in by_data.items()
    }
