"""How long `dca study report RUNS` takes on many result files, and how large the report is.

    python benchmarks/runs_report.py [--cells 5000] [--folder DIR] [--keep]

Writes that many small result files into a temporary folder under DIR: the cells of the specifications that come with
dca, with invented accuracies, and further seeds of `paper/few-shot` until there are enough.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import count, islice
from pathlib import Path
from typing import Any

from dca.core.text import format_bytes
from dca.datasets import catalog
from dca.study.report.folder import write_runs_report
from dca.study.report.subject import read_subject
from dca.study.specification import Cell, list_shipped, load_specification

LEVEL = {"zero_shot": 0.0, "dca": 0.06}


def iterate_cells() -> Iterator[Cell]:
    """The cells of all specifications, each once, then those of `paper/few-shot` with seeds from 4 on."""
    seen: set[str] = set()
    for name in sorted(list_shipped()):
        for cell in load_specification(name).cells:
            if cell.id not in seen and cell.experiment.measured_on == "test":
                seen.add(cell.id)
                yield cell
    few = [cell for cell in load_specification("paper/few-shot").cells if cell.experiment.seed == 1]
    for seed in count(4):
        yield from (
            Cell(dataclasses.replace(cell.experiment, seed=seed))
            for cell in few
            if cell.experiment.method != "zero_shot"
        )


def invent_result(cell: Cell) -> dict[str, Any]:
    """An invented result: better with more shots, by method and dataset, with noise by seed; from the cell alone."""
    spec, named = cell.experiment, cell.experiment.to_dict()
    level = {name: random.Random(name).random() for name in (spec.method, spec.data)}
    noise = random.Random(cell.id)
    gain = LEVEL.get(spec.method, 0.05 * level[spec.method]) * (1 + 0.4 * (spec.shots or 16) ** 0.5)
    gain -= 0.01 * ("test_metric" in cell.head) + 0.02 * bool(spec.changed_options.get("n_prompts") == 1)

    def accuracy(name: str) -> float:
        shift = 0.1 * random.Random(name).random()
        return float(round(min(0.999, 0.35 + 0.4 * level[spec.data] - shift + gain + noise.gauss(0, 0.006)), 4))

    names = {
        "base-to-new": [f"{spec.data} base", f"{spec.data} new"],
        "few-shot": [spec.data],
        "transductive": [f"{spec.data} together"],
    }
    own = [spec.data] if spec.protocol == "domain-shift" else []
    figures = {name: accuracy(name) for name in names.get(spec.protocol, [*own, *spec.targets])}
    others = {"classes": 10, "zero_shot_accuracy": 0.3, "ece": 0.05}
    images = {name: catalog.get(name.split(" ")[0]).sizes[2] for name in figures}
    if spec.protocol == "base-to-new":
        images = {name: (total + place) // 2 for place, (name, total) in enumerate(images.items())}
    targets = [
        {"name": name, "accuracy": value, "test_images": images[name], **others} for name, value in figures.items()
    ]
    found = {name: named[name] for name in ("method", "protocol", "shots", "seed")} | {"public": named["data"]}
    found |= {
        "accuracy": None if spec.protocol in ("cross-dataset", "transductive") else next(iter(figures.values())),
        "targets": targets,
    }
    if spec.protocol == "base-to-new":
        base, new = figures.values()
        found["harmonic_mean"] = 2 * base * new / (base + new)
    seconds = round(5 + 300 * level[spec.method] * noise.uniform(0.9, 1.1), 2)
    parameters = 0 if spec.method in ("zero_shot", "tip_adapter") else int(20_000 + 900_000 * level[spec.method])
    return found | {"seconds": seconds, "evaluation_seconds": 1.0, "trained_parameters": parameters}


def write_cell(runs: Path, cell: Cell, result: Mapping[str, Any]) -> None:
    """The files of a finished cell, as far as the index reads them."""
    folder = runs / cell.id
    folder.mkdir(parents=True)
    record = {"spec": cell.experiment.to_dict(), **({"head": dict(cell.head)} if cell.head else {})}
    (folder / "spec.json").write_text(json.dumps(record))
    (folder / "result.json").write_text(json.dumps(result))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=5000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    chosen = parser.parse_args()
    folder = (
        Path(tempfile.mkdtemp(dir=chosen.folder)) if chosen.keep else tempfile.TemporaryDirectory(dir=chosen.folder)
    )
    runs = Path(folder if isinstance(folder, Path) else folder.name) / "runs"
    for cell in islice(iterate_cells(), chosen.cells):
        write_cell(runs, cell, invent_result(cell))
    began = time.perf_counter()
    page = write_runs_report(read_subject(runs, specifications=["paper/few-shot"]), runs.parent / "report")
    seconds = time.perf_counter() - began
    files = [path for path in page.parent.rglob("*") if path.is_file()]
    print(f"{chosen.cells:,} result files: {seconds:.1f} s")
    whole = format_bytes(sum(path.stat().st_size for path in files))
    print(f"page {format_bytes(page.stat().st_size)}, {len(files)} files, {whole}")
    if chosen.keep:
        print(page)


if __name__ == "__main__":
    main()
