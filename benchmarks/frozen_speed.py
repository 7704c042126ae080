"""Seconds of a fit of methods over frozen features: with no feature stored, and with all of them stored.

    python benchmarks/frozen_speed.py DATA ... [--method NAME ...] [--shots 16] [--seed 1] [--repeats 3] [--json]

DATA are dataset folders as `dca fit` takes them. Every method begins with an empty feature store. Its first fit encodes
the images; of the `--repeats` fits after it, which read the features, the shortest counts. The backbone is loaded
before, and nothing is evaluated or saved.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from pathlib import Path

import click
import torch

from dca.datasets import load_dataset
from dca.datasets.dataset import Dataset
from dca.datasets.draws import draw_few_shot
from dca.features.store import FeatureStore
from dca.methods.base import Method
from dca.methods.registry import get_method
from dca.training.context import FitContext
from dca.training.fit import fit
from dca.training.session import Session

METHODS = ("linear_probe", "cross_modal")


def measure_fit_seconds(kind: type[Method], dataset: Dataset, session: Session, backbone: str, seed: int) -> float:
    """Time of one fit with default options."""
    clip = session.load_backbone(backbone)
    began = time.perf_counter()
    fit(kind, kind.parse_options({}), dataset, FitContext(session=session, encoder=clip, seed=seed))
    if clip.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(name: str, dataset: Dataset, given: argparse.Namespace) -> dict[str, float]:
    """Seconds of the first fit and of the shortest later one."""
    kind = get_method(name)
    drawn = draw_few_shot(dataset, given.shots, given.seed)
    drawn = dataclasses.replace(drawn, val=()) if kind.validation == "none" else drawn
    with tempfile.TemporaryDirectory() as folder:
        session = Session(device=given.device, store=FeatureStore(Path(folder)))
        first, *later = (
            measure_fit_seconds(kind, drawn, session, given.backbone, given.seed) for _ in range(given.repeats + 1)
        )
    return {"not_stored_s": first, "stored_s": min(later)}


def main() -> None:
    """Measure and print one row per dataset and method."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", nargs="+")
    parser.add_argument("--method", action="append", help=f"repeatable; {' and '.join(METHODS)} unless given")
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for data in given.data:
        dataset = load_dataset(data)
        for name in given.method or METHODS:
            found[f"{Path(data).name} {name}"] = row = measure(name, dataset, given)
            if not given.json:
                times = f"not stored {row['not_stored_s']:7.2f} s   stored {row['stored_s']:7.2f} s"
                click.echo(f"{Path(data).name:<16} {name:<14} {times}")
    if given.json:
        click.echo(json.dumps(found))


if __name__ == "__main__":
    main()
