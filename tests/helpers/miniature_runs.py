"""Runs of the shipped specifications on miniatures of the public datasets, with a random ViT-B/16 checkpoint.

    python tests/helpers/miniature_runs.py RUNS [--study paper/few-shot ...] [--shots 1 16] [--seeds 1] [--true-shape]

leaves a folder as `dca study sweep STUDY --backbone vit-b-16 --data ROOT --runs RUNS` would with the real weights:
the same specs and ids, so that reports can be made of it. Only the images, the weights and the length of training are
small: every method trains for one step.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from conftest import make_clip, save_hf
from dca.backbones.clip.config import VIT_B_16, CLIPConfig
from dca.study.specification import Cell, group_jobs, load_specification
from dca.study.sweep import plan_sweep
from dca.study.worker import CellResult, Worker
from dca.training.loop import Trainer
from dca.training.support import ImageSupport
from helpers.miniatures import Size, miniature

BACKBONE = "vit-b-16"
STUDIES = ("paper/few-shot", "paper/domain-shift", "base-to-new", "cross-dataset")
# Enough for 16 shots, and for validation images that were not drawn. For every test image CoCoOp reads all class names,
# of which ImageNet has 1,000, so it has few test images.
SIZE = Size(per_class={"train": 16, "val": 4, "test": 2}, classes=4, per_folder=20, tested=20, distinct=7)
Wanted = Callable[[Cell], bool]


def layout(width: int = 24, text_width: int = 16, embed_dim: int = 16) -> CLIPConfig:
    """ViT-B/16 with narrow towers: its layers, heads, patches, vocabulary and names of tensors."""
    vision, text = VIT_B_16.vision, VIT_B_16.text
    return dataclasses.replace(
        VIT_B_16,
        vision=dataclasses.replace(vision, width=width, hidden=4 * width),
        text=dataclasses.replace(text, width=text_width, hidden=4 * text_width),
        embed_dim=embed_dim,
    )


def checkpoint(folder: Path, *, true_shape: bool = False) -> Path:
    """A random checkpoint in Hugging Face layout; its folder has the name of the real one, which specs record."""
    return save_hf(make_clip(VIT_B_16 if true_shape else layout()), folder / BACKBONE)


def lay_out(root: Path, cells: Iterable[Cell], size: Size = SIZE) -> Path:
    """Miniatures of all datasets of some cells; returns the folder that holds them."""
    root.mkdir(parents=True, exist_ok=True)
    for name in sorted({name for cell in cells for name in (cell.experiment.data, *cell.experiment.targets)}):
        miniature(name, root, size)
    return root


@contextmanager
def short_fits() -> Iterator[None]:
    """Train every method for one step, with one view per image that all others repeat.

    The specs, and with them the ids, stay those of the specification.
    """
    init, order, encoded = Trainer.__init__, Trainer._order, ImageSupport.map

    def one_view(self, encode, *, views=0, **more):  # type: ignore[no-untyped-def]
        return torch.cat([encoded(self, encode, views=min(views, 1), **more)] * max(views, 1))

    def short_init(self, method, images, recipe, *more):  # type: ignore[no-untyped-def]
        init(self, method, images, dataclasses.replace(recipe, epochs=1, warmup_epochs=0), *more)

    Trainer.__init__, Trainer._order = short_init, lambda self, generator: order(self, generator)[:1]  # type: ignore
    ImageSupport.map = one_view  # type: ignore[method-assign]
    try:
        yield
    finally:
        Trainer.__init__, Trainer._order, ImageSupport.map = init, order, encoded  # type: ignore[method-assign]


def cells_of(studies: Iterable[str], backbone: Path, wanted: Wanted = lambda cell: True) -> list[Cell]:
    """The wanted cells of some specifications, each once."""
    found = {cell.id: cell for name in studies for cell in load_specification(name, backbone=str(backbone)).cells}
    return [cell for cell in found.values() if wanted(cell)]


def make_runs(cells: Iterable[Cell], runs: Path, root: Path) -> Iterator[CellResult]:
    """Finish cells in this process, on the CPU; yields how each ended."""
    worker = Worker(runs, root, "cpu")
    with short_fits():
        for job in group_jobs(cells):
            yield from worker.run(job)


def main() -> None:
    """Make a folder of runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="folder of the runs; the datasets and the weights go beside it")
    parser.add_argument("--study", nargs="+", default=list(STUDIES))
    parser.add_argument("--data", nargs="+", help="only cells that learn from these datasets")
    parser.add_argument("--method", nargs="+", help="only these methods")
    parser.add_argument("--shots", type=int, nargs="+", help="only these numbers of shots")
    parser.add_argument("--seeds", type=int, nargs="+", help="only these seeds")
    parser.add_argument("--true-shape", action="store_true", help="the widths of ViT-B/16: slow")
    given = parser.parse_args()

    def wanted(cell: Cell) -> bool:
        axes = ((given.data, "data"), (given.method, "method"), (given.shots, "shots"), (given.seeds, "seed"))
        return all(values is None or getattr(cell.experiment, name) in values for values, name in axes)

    place = given.runs.resolve().parent / f"{given.runs.name}-sources"
    weights = place / BACKBONE
    if not weights.exists():
        checkpoint(place, true_shape=given.true_shape)
    cells = cells_of(given.study, weights, wanted)
    root = place / "data"
    if not root.exists():
        lay_out(root, cells_of(STUDIES, weights))
    began, failed = time.monotonic(), 0
    for number, report in enumerate(make_runs(cells, given.runs, root), 1):
        failed += bool(report.error)
        words = next(cell.label for cell in cells if cell.id == report.id)
        sys.stderr.write(f"{number}/{len(cells)}  {report.seconds:.1f} s  {words}  {report.error}\n")
    sys.stdout.write(f"{len(cells)} cells, {failed} failed, {time.monotonic() - began:.0f} s\n")
    for name in given.study:  # as shipped, with the name of the real backbone
        made = plan_sweep(load_specification(name), given.runs)
        sys.stdout.write(f"{name}: {len(made.finished)} of {len(made.study.cells)} cells finished\n")


if __name__ == "__main__":
    main()
