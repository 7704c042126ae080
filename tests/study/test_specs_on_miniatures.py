"""Every row of every shipped specification can be run on miniatures of the public datasets.

With a tiny backbone one cell of each row; with a random checkpoint that has ViT-B/16's layout, `miniature_runs.py`, the
specifications as they are.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from safetensors import safe_open

from dca.backbones.clip import CLIP
from dca.backbones.clip.config import VIT_B_16
from dca.study.specification import Cell, group_jobs, list_shipped, load_specification
from dca.study.sweep import plan_sweep
from dca.study.worker import Worker

Make = Callable[[str], Path]
LARGE = ("paper/domain-shift", "cross-dataset")
LONG = ("selection", "paper/few-shot")
SMALL = [name for name in list_shipped() if name not in LARGE]
# Images per class of the miniatures: one validation image is drawn, another measured on.
PER_CLASS = {"train": 2, "val": 2, "test": 1}


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a dataset under the folder of the datasets."""
    from helpers import miniatures
    from helpers.miniatures import miniature

    monkeypatch.setattr(miniatures, "PER_CLASS", PER_CLASS)
    return lambda name: miniature(name, tmp_path / "data")


def one_of_each(name: str, backbone: Path, epochs: int) -> Iterable[Cell]:
    """The first cell of every row, method and head, with one shot and few epochs; every setting of the selection."""
    found: dict[tuple[object, ...], Cell] = {}
    for cell in load_specification(name, backbone=str(backbone)).cells:
        spec = cell.experiment
        trained = spec.kind.trains_on != "nothing" and "epochs" not in spec.kind.unused_options()
        options = {**spec.changed_options, **({"epochs": epochs} if trained else {})}
        data = spec.data if name in LARGE else "eurosat"
        small = dataclasses.replace(spec, data=data, shots=1, seed=1, options=options)
        setting = str([spec.changed_options, cell.head]) if name == "selection" else cell.head.get("center")
        found.setdefault((spec.method, cell.rows, setting), Cell(small, cell.head, cell.rows))
    return found.values()


def require_done(cells: Iterable[Cell], make: Make, root: Path) -> None:
    cells = list(cells)
    for name in sorted({place for cell in cells for place in (cell.experiment.data, *cell.experiment.targets)}):
        make(name)
    worker = Worker(root / "runs", root / "data", "cpu")
    reports = [report for job in group_jobs(cells) for report in worker.run(job)]
    assert {report.id for report in reports} == {cell.id for cell in cells}
    assert [report.error for report in reports if report.error] == []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in SMALL]
)
def test_a_cell_of_every_row_runs(name: str, make: Make, tiny_folder: Path, tmp_path: Path):
    require_done(one_of_each(name, tiny_folder, epochs=1), make, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_cell_of_every_row_with_imagenet_runs(name: str, make: Make, tiny_folder: Path, tmp_path: Path):
    require_done(one_of_each(name, tiny_folder, epochs=0), make, tmp_path)


@pytest.fixture
def runs_maker() -> ModuleType:
    """`miniature_runs.py`, which is also a script."""
    from helpers import miniature_runs

    return miniature_runs


@pytest.mark.parametrize("true_shape", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_checkpoint_has_the_layout_of_the_real_one(runs_maker: Any, tmp_path: Path, true_shape: bool):
    folder = runs_maker.checkpoint(tmp_path, true_shape=true_shape)
    assert folder.name == "vit-b-16"
    with safe_open(folder / "model.safetensors", "pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    config = VIT_B_16 if true_shape else runs_maker.layout()
    # Hugging Face's names: 16 tensors per layer of 12 + 12, and those around them.
    for tower, width in (("vision", config.vision.width), ("text", config.text.width)):
        layers = [name for name in shapes if name.startswith(f"{tower}_model.encoder.layers.")]
        assert len(layers) == 12 * 16
        assert shapes[f"{tower}_model.encoder.layers.11.self_attn.q_proj.weight"] == (width, width)
        assert shapes[f"{tower}_model.encoder.layers.0.mlp.fc1.weight"] == (4 * width, width)
    assert shapes["vision_model.embeddings.patch_embedding.weight"][1:] == (3, 16, 16)
    assert shapes["vision_model.embeddings.position_embedding.weight"][0] == 197
    assert shapes["text_model.embeddings.token_embedding.weight"][0] == 49408
    assert shapes["text_model.embeddings.position_embedding.weight"][0] == 77
    assert CLIP.from_pretrained(folder).config == config


def test_all_that_is_typed_finds_everything(
    runs_maker: Any, tmp_path: Path, dca: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    weights = runs_maker.checkpoint(tmp_path)
    from helpers.miniatures import Size

    cells = runs_maker.cells_of(runs_maker.STUDIES, weights)
    root = runs_maker.lay_out(tmp_path / "data", cells, Size(classes=1))
    for name in runs_maker.STUDIES:
        said = dca(
            "study",
            "sweep",
            name,
            "--backbone",
            weights,
            "--data",
            root,
            "--runs",
            tmp_path / "runs",
            "--dry-run",
            "--json",
        )
        facts = json.loads(said.out)
        assert facts["missing"] == []
        assert [cell["id"] for cell in facts["cells"]] == [cell.id for cell in load_specification(name).cells]


def require_intact_weights(runs_maker: Any, cells: list[Cell], folder: Path) -> None:
    """Make the runs of cells, and find them finished by the specification as it is shipped."""
    root = runs_maker.lay_out(folder / "data", cells)
    reports = list(runs_maker.make_runs(cells, folder / "runs", root))
    assert {report.id: report.error for report in reports} == {cell.id: "" for cell in cells}
    assert {cell.experiment.backbone for cell in cells} == {str(folder / "vit-b-16")}


@pytest.mark.slow
def test_dca_and_zero_shot_run_on_every_dataset(runs_maker: Any, tmp_path: Path):
    weights = runs_maker.checkpoint(tmp_path)

    def wanted(cell: Cell) -> bool:
        spec = cell.experiment
        small = (spec.shots, spec.seed) == (1, 1) and spec.data != "imagenet"
        return small and spec.method in ("zero_shot", "dca")

    cells = runs_maker.cells_of(["paper/few-shot"], weights, wanted)
    assert len(cells) == 4 * 10, "DCA in three readings"
    require_intact_weights(runs_maker, cells, tmp_path)
    made = plan_sweep(load_specification("paper/few-shot"), tmp_path / "runs")
    assert {cell.id for cell in made.finished} == {cell.id for cell in cells}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paper/few-shot", "paper/domain-shift", "base-to-new", "cross-dataset"])
def test_a_specification_runs_as_it_is(name: str, runs_maker: Any, tmp_path: Path):
    """Every row and dataset, with one seed and the fewest and the most shots; few-shot on ImageNet with one shot."""

    def wanted(cell: Cell) -> bool:
        spec = cell.experiment
        large = name == "paper/few-shot" and spec.data == "imagenet"
        return spec.seed == 1 and spec.shots in ((1,) if large else (1, 16))

    cells = runs_maker.cells_of([name], runs_maker.checkpoint(tmp_path), wanted)
    assert {(cell.rows, cell.experiment.data) for cell in cells} == {
        (cell.rows, cell.experiment.data) for cell in load_specification(name).cells
    }
    require_intact_weights(runs_maker, cells, tmp_path)


@pytest.mark.slow
def test_the_true_shape_runs(runs_maker: Any, tmp_path: Path):
    def wanted(cell: Cell) -> bool:
        spec = cell.experiment
        return (spec.data, spec.shots, spec.seed) == ("eurosat", 1, 1) and spec.method in ("zero_shot", "coop", "dca")

    cells = runs_maker.cells_of(["paper/few-shot"], runs_maker.checkpoint(tmp_path, true_shape=True), wanted)
    assert len(cells) == 3
    require_intact_weights(runs_maker, cells, tmp_path)
    result = json.loads(cells[-1].result_file(tmp_path / "runs").read_text())
    assert (result["method"], result["image_size"]) == ("dca", 224)
