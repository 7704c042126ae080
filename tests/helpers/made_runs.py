"""Result files of runs that were never made: as many as a table needs, with accuracies as a test wants them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dca.datasets import catalog
from dca.study.experiment import Experiment
from dca.study.index import RunIndex
from dca.study.results import Block, Variant, build_blocks
from dca.study.specification import Cell


def invent_target(name: str, accuracy: float = 0.5) -> dict[str, Any]:
    """The figures of one target with all of its test images, as a result file holds them."""
    entry = catalog.find(name.partition("@")[0])
    counts = {"classes": 10, "test_images": entry.sizes[2] if entry else 100}
    return {"name": name, **counts, "accuracy": accuracy, "zero_shot_accuracy": 0.3, "ece": 0.05, "metric": None}


def write_run(
    runs: Path,
    accuracy: float | Sequence[float],
    head: Mapping[str, Any] | None = None,
    result: Mapping[str, Any] | None = None,
    device: str | None = None,
    **spec: Any,
) -> str:
    """Write the files of one finished cell; returns its id. accuracy: of each target."""
    cell = Cell(Experiment(**{"data": "eurosat", "shots": 4, **spec}), head or {})
    own, protocol = cell.experiment, cell.experiment.protocol
    values = [accuracy] if isinstance(accuracy, float) else list(accuracy)
    names = {"base-to-new": ["base", "new"], "few-shot": [own.data], "transductive": [own.data]}.get(
        protocol, [*own.targets]
    )
    names = names if len(names) == len(values) else [own.data, *names]
    targets = [invent_target(name, value) for name, value in zip(names, values, strict=True)]
    if protocol == "base-to-new":
        total = invent_target(own.data)["test_images"]
        for target, images in zip(targets, (total // 2, total - total // 2), strict=True):
            target["test_images"] = images
    made = {
        **{"method": own.method, "protocol": protocol, "shots": own.shots, "seed": own.seed, "public": own.data},
        **{
            "accuracy": None if protocol == "transductive" else values[0],
            "targets": targets,
            "seconds": 2.0,
            "trained_parameters": 10,
            **(result or {}),
        },
    }
    if protocol == "base-to-new":
        made["harmonic_mean"] = 2 * values[0] * values[1] / sum(values)
    folder = runs / cell.id
    folder.mkdir(parents=True)
    spec_record = {"spec": own.to_dict(), **({"head": dict(cell.head)} if cell.head else {})}
    if device:
        spec_record["identity"] = {"device": device}
    (folder / "spec.json").write_text(json.dumps(spec_record))
    (folder / "result.json").write_text(json.dumps(made))
    return cell.id


def blocks_under(runs: Path, listed: Sequence[Variant] = ()) -> tuple[Block, ...]:
    """The blocks of a folder of runs."""
    with RunIndex(runs) as index:
        index.refresh()
        return build_blocks(index.rows(), listed)
