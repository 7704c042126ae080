"""Every row of every shipped specification can be run: one cell of each, on miniatures of the public datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from dca.studies.cell import Cell, jobs_of
from dca.studies.spec_file import load_study, shipped
from dca.studies.worker import Worker

Make = Callable[[str], Path]
LARGE = ("paper/domain-shift", "cross-dataset")
SMALL = [name for name in shipped() if name not in LARGE]
# Images per class of the miniatures: one validation image is drawn, another measured on.
PER_CLASS = {"train": 2, "val": 2, "test": 1}


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a dataset under the folder of the datasets."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "data")
    import miniatures
    from miniatures import miniature

    monkeypatch.setattr(miniatures, "PER_CLASS", PER_CLASS)
    return lambda name: miniature(name, tmp_path / "data")


def one_of_each(name: str, backbone: Path, epochs: int) -> Iterable[Cell]:
    """The first cell of every row, method and head, with one shot and few epochs; every setting of the selection."""
    found: dict[tuple[object, ...], Cell] = {}
    for cell in load_study(name, backbone=str(backbone)).cells:
        spec = cell.spec
        trained = spec.kind.trains_on != "nothing" and "epochs" not in spec.kind.unused_options()
        options = {**spec.options, **({"epochs": epochs} if trained else {})}
        data = spec.data if name in LARGE else "eurosat"
        small = dataclasses.replace(spec, data=data, shots=1, seed=1, options=options)
        setting = str([spec.options, cell.head]) if name == "selection" else cell.head.get("center")
        found.setdefault((spec.method, cell.rows, setting), Cell(small, cell.head, cell.rows))
    return found.values()


def require_done(cells: Iterable[Cell], make: Make, root: Path) -> None:
    cells = list(cells)
    for name in sorted({place for cell in cells for place in (cell.spec.data, *cell.spec.targets)}):
        make(name)
    worker = Worker(root / "runs", root / "data", "cpu")
    reports = [report for job in jobs_of(cells) for report in worker.carry_out(job)]
    assert {report.id for report in reports} == {cell.id for cell in cells}
    assert [report.error for report in reports if report.error] == []


@pytest.mark.parametrize("name", SMALL)
def test_a_cell_of_every_row_runs(name: str, make: Make, tiny_folder: Path, tmp_path: Path):
    require_done(one_of_each(name, tiny_folder, epochs=1), make, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_cell_of_every_row_with_imagenet_runs(name: str, make: Make, tiny_folder: Path, tmp_path: Path):
    require_done(one_of_each(name, tiny_folder, epochs=0), make, tmp_path)
