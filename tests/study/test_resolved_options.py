"""The options that runs record are those of their cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from dca.study.index import read_results
from dca.study.resolved_options import compare_options, resolve_cell_options
from dca.study.specification import group_jobs, parse_specification
from dca.study.worker import Worker


def test_fits_and_heads_are_told_apart_by_what_they_recorded(tmp_path: Path, photos: Path, tiny_folder: Path) -> None:
    common = {"data": str(photos), "backbone": str(tiny_folder), "shots": 2, "method": "dca", "options": {"epochs": 1}}
    grids = [{"head": {}}, {"head": {"center": "text"}}, {"head": {"center": "text", "gamma2": 7}}]
    cells = parse_specification({"common": common, "grid": grids}, "small").cells
    worker = Worker(tmp_path / "runs", None, "cpu")
    for job in group_jobs(cells):
        assert not [report.error for report in worker.run(job) if report.error]
    records = {record.id: record for record in read_results(worker.runs).records}
    found = [records[cell.id] for cell in cells]
    assert [(one.options["gamma1"], one.options["gamma2"]) for one in found] == [(500, 300), (500, 300), (500, 7)]
    for place, there in enumerate(found):
        assert [not compare_options(there.options, cell, there.classes) for cell in cells] == [
            place == other for other in range(3)
        ]


def test_a_difference_names_both_values() -> None:
    (cell,) = parse_specification({"grid": [{"data": "a", "method": "gda", "options": {"views": 3}}]}, "one").cells
    assert resolve_cell_options(cell)["views"] == 3
    assert compare_options({"views": 5, "unknown today": 1}, cell) == ["views=5 there, 3 today"]


@pytest.mark.parametrize(("classes", "epochs"), [(2, 8000), (100, 160)])
def test_epochs_may_follow_from_the_number_of_classes(classes: int, epochs: int) -> None:
    (cell,) = parse_specification({"grid": [{"data": "eurosat", "method": "clip_lora", "shots": 16}]}, "one").cells
    assert resolve_cell_options(cell, classes)["epochs"] == epochs
