"""Accuracy, trained values and seconds of every method on image datasets.

    python benchmarks/method_accuracy.py DATA ... [--method NAME ...] [--seed 1 ...] [--jobs 2] [--out runs]
    python benchmarks/method_accuracy.py DATA ... --trials --method lamm

DATA are dataset folders as `dca fit` takes them. Every run is the same as with `dca fit`; finished runs are kept
in --out and not repeated. Every method has its default options and those of --set. --trials compares the defaults with
TRIALS on the validation images and never opens a test image.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click

from dca.data import load_dataset
from dca.data.dataset import Dataset
from dca.core.errors import UserError
from dca.methods.registry import all_methods, get_method
from dca.experiment.run import run
from dca.experiment.spec import Spec

SHOTS = 16
# Method -> settings to compare with its defaults on the validation images.
TRIALS: dict[str, list[dict[str, Any]]] = {
    "lamm": [
        {"recipe": "paper"},
        {"recipe": "paper", "learning_rate": 0.02, "anchor": "paper"},
        {"learning_rate": 0.006},
        {"anchor": "paper"},
    ],
    "clap": [
        {"recipe": "paper"},
        {"recipe": "paper", "strength": 0.01, "learning_rate": 1.0},
        *({"strength": s} for s in (1.0, 0.1, 0.03)),
    ],
}


def validating(dataset: Dataset) -> Dataset:
    """The dataset with those validation images that exist in place of the test images."""
    here = tuple(i for i in dataset.val if not isinstance(i.image, Path) or i.image.is_file())
    return dataclasses.replace(dataset, test=here, val=())


def folder_of(spec: Spec, trial: bool) -> str:
    """Folder name of a run."""
    return f"{Path(spec.data).name}-{spec.method}-{spec.shots}-{spec.seed}-{spec.id[:8]}{'-validation' * trial}"


def work(spec: Spec, out: Path, device: str, trial: bool) -> dict[str, Any]:
    """Do one run; returns its figures."""
    dataset = load_dataset(spec.data)
    dataset = validating(dataset) if trial else dataset
    result = run(spec, out / folder_of(spec, trial), dataset=dataset, device=device).result
    return {**result, "data": Path(spec.data).name, "settings": dict(spec.options)}


def outcomes(
    specs: Sequence[Spec], out: Path, device: str, trial: bool, at_once: int
) -> Iterator[tuple[Spec, Callable[[], Any]]]:
    """Each spec with a function that returns its figures or raises its error; in processes if several run at once."""
    if at_once == 1:
        yield from ((spec, partial(work, spec, out, device, trial)) for spec in specs)
        return
    with ProcessPoolExecutor(at_once, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(work, spec, out, device, trial): spec for spec in specs}
        for done in as_completed(waiting):
            yield waiting[done], done.result


def carried_out(specs: Sequence[Spec], out: Path, device: str, trial: bool, at_once: int) -> list[dict[str, Any]]:
    """The figures of all runs; a run that fails is printed and left out."""
    rows = []
    for spec, figures in outcomes(specs, out, device, trial, at_once):
        place = folder_of(spec, trial)
        try:
            rows.append(figures())
        except UserError as error:
            click.echo(f"{place}: {error.problem}", err=True)
            continue
        found = f"{100 * rows[-1]['accuracy']:.1f} %, {rows[-1]['seconds']:.0f} s"
        click.echo(f"{place} {dict(spec.options)}: {found}", err=True)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One row per method and settings: accuracy (mean over seeds), trained values and seconds on each dataset."""
    names = sorted({row["data"] for row in rows})
    found: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        settings = {"shots": row["shots"], **row["settings"]}
        key = row["method"], " ".join(f"{k}={v}" for k, v in settings.items())
        found.setdefault(key, {}).setdefault(row["data"], []).append(row)
    head = "| method | " + " | ".join(f"{name} | values | s" for name in names) + " |"
    lines = [head, "|---|" + "---:|---:|---:|" * len(names)]
    for (method, settings), by_data in sorted(found.items()):
        cells = []
        for name in names:
            runs = by_data.get(name)
            if not runs:
                cells.append(" | | ")
                continue
            accuracy, seconds = (statistics.mean(r[key] for r in runs) for key in ("accuracy", "seconds"))
            cells.append(f"{100 * accuracy:.1f} | {runs[0]['trained_parameters']:,} | {seconds:.0f}")
        lines.append(f"| `{method}` {settings} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Run and print; returns 2 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--method", action="append", help="repeatable; all unless given")
    parser.add_argument("--seed", action="append", type=int, help="repeatable; 1 unless given")
    parser.add_argument("--shots", action="append", type=int, help="repeatable; 16 unless given")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="for every method that uses this option")
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--trials", action="store_true", help="TRIALS on the validation images")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    chosen = parser.parse_args()
    common = {key: json.loads(value) for key, _, value in (text.partition("=") for text in chosen.set)}
    specs: list[Spec] = []
    for data in chosen.data:
        for method in chosen.method or all_methods():
            used = {k: v for k, v in common.items() if k not in get_method(method).unused_options()}
            tried = [{}, *TRIALS.get(method, [])] if chosen.trials else [{}]
            for settings in tried:
                common_to = {"data": data, "method": method, "backbone": chosen.backbone}
                common_to["options"] = {**settings, **used}
                pairs = product(chosen.shots or [SHOTS], chosen.seed or [1])
                specs += [Spec(**common_to, shots=shots, seed=seed) for shots, seed in pairs]
    rows = carried_out(specs, chosen.out, chosen.device, chosen.trials, chosen.jobs)
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if rows:
        click.echo(table(rows))
    return 0 if len(rows) == len(specs) else 2


if __name__ == "__main__":
    sys.exit(main())
