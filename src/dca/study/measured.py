"""The accuracies that `dca methods` shows, from the finished cells of a sweep."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dca.core.errors import UserError
from dca.core.hints import finish_sweep
from dca.core.text import pluralize
from dca.datasets import catalog
from dca.study.index import RunRecord, read_results
from dca.study.specification import Cell, Specification


def measured_accuracies(study: Specification, runs: Path, *, shots: int = 16) -> dict[str, Any]:
    """Test accuracy of every method, as `methods/measured.json` holds it.

    Args:
        study: A study with few-shot cells of methods on public datasets. Of a method with several settings those that
            come first count.
        runs: Folder of runs, or results file.
        shots: Only cells with this number of images per class, and those of zero-shot CLIP.

    Returns:
        Accuracies in percent by method and dataset, mean over the seeds, the best method first; the settings of each
        method that are no defaults; methods with cells that are not finished; and how the accuracies were made.

    Raises:
        UserError: If there are no such cells, or no method is finished.
    """
    cells = _first_settings(study.cells, shots)
    rows = {row.id: row for row in read_results(runs).records if row.measured_on == "test"}
    lacking = [cell for cell in cells if cell.id not in rows]
    left_out = {cell.experiment.method for cell in lacking}
    cells = [cell for cell in cells if cell.experiment.method not in left_out]
    if not cells:
        problem = f"{pluralize(len(lacking), 'cell')} of {study.name} not finished in {runs}, so no method is complete"
        details = [f"{cell.id}  {cell.label}" for cell in lacking]
        raise UserError(problem, details=details, hint=finish_sweep(study.name, str(runs)))
    found: dict[str, dict[str, list[RunRecord]]] = {}
    for cell in cells:
        row = rows[cell.id]
        found.setdefault(row.method, {}).setdefault(catalog.title_of(row.dataset), []).append(row)
    accuracy = {method: {name: _mean_percent(of) for name, of in by_data.items()} for method, by_data in found.items()}
    best_first = sorted(accuracy.items(), key=lambda item: (-statistics.mean(item[1].values()), item[0]))
    return {
        "command": f"dca study sweep {study.name}",
        "about": "test accuracy in percent, mean over the seeds; settings: options that are no defaults",
        "not_finished": sorted(left_out),
        "backbone": cells[0].experiment.to_dict()["backbone"],
        "shots": shots,
        "seeds": sorted({cell.experiment.seed for cell in cells}),
        "test_images": _test_images(found),
        "settings": {
            cell.experiment.method: dict(cell.experiment.changed_options)
            for cell in cells
            if cell.experiment.changed_options
        },
        "accuracy": dict(best_first),
    }


def _first_settings(cells: Iterable[Cell], shots: int) -> list[Cell]:
    """The cells with these shots that have the first settings of their method; zero-shot CLIP needs no shots."""
    own = [
        cell
        for cell in cells
        if cell.experiment.protocol == "few-shot"
        and not cell.head
        and (cell.experiment.shots == shots or cell.experiment.method == "zero_shot")
    ]
    first: dict[str, Mapping[str, Any]] = {}
    return [
        cell
        for cell in own
        if first.setdefault(cell.experiment.method, cell.experiment.changed_options) == cell.experiment.changed_options
    ]


def _mean_percent(rows: Sequence[RunRecord]) -> float:
    """Mean accuracy in percent, to one decimal."""
    return round(100 * statistics.fmean(row.accuracy or 0.0 for row in rows), 1)


def _test_images(found: Mapping[str, Mapping[str, Sequence[RunRecord]]]) -> dict[str, int]:
    """Test images of each dataset."""
    return {name: rows[0].targets[0].test_images for by_data in found.values() for name, rows in by_data.items()}
