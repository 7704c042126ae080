"""What `dca methods` shows comes from result files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from dca.core.errors import UserError
from dca.methods.summary import load_measurements
from dca.study.measured import measured_accuracies
from dca.study.specification import Specification, parse_specification
from helpers.made_runs import invent_target

COMMON = {"data": ["eurosat", "oxford_flowers"], "shots": [4, 16], "seed": [1, 2]}
GRIDS = [
    {"method": "zero_shot", "shots": 1, "seed": 1},
    {"method": "gda"},
    {"method": "coop"},
    {"method": "coop", "options": {"epochs": 1}},
    {"method": "maple", "options": {"epochs": 1}},
    {"method": "maple"},
    {"method": "dca", "shots": 16, "head": {"center": "visual"}},
]


@pytest.fixture
def study() -> Specification:
    return parse_specification({"common": COMMON, "grid": GRIDS}, "small")


def write(study: Specification, runs: Path, *, without: int = 0) -> None:
    """Results whose accuracies follow from method, dataset and seed."""
    for cell in study.cells[: len(study.cells) - without]:
        spec, folder = cell.experiment.to_dict(), runs / cell.id
        folder.mkdir(parents=True)
        accuracy = {"zero_shot": 0.2, "gda": 0.5, "coop": 0.6, "maple": 0.1, "dca": 0.7}[spec["method"]]
        accuracy += 0.01 * spec["seed"] + 0.1 * (spec["data"] == "eurosat") + 0.001 * spec["shots"]
        result = {name: spec[name] for name in ("method", "protocol", "shots", "seed")}
        count = 8100 if spec["data"] == "eurosat" else 2463
        targets = [invent_target(spec["data"], accuracy) | {"test_images": count}]
        result |= {"public": spec["data"], "accuracy": accuracy, "seconds": 1.0, "targets": targets}
        (folder / "spec.json").write_text(json.dumps({"spec": spec, "head": dict(cell.head)}))
        (folder / "result.json").write_text(json.dumps(result))


def test_accuracies_are_means_over_seeds_of_methods_with_their_first_settings(
    study: Specification, tmp_path: Path
) -> None:
    write(study, tmp_path)
    found = measured_accuracies(study, tmp_path)
    assert list(found["accuracy"]) == ["coop", "gda", "zero_shot", "maple"], "the best first"
    assert found["accuracy"]["coop"] == {"EuroSAT": 73.1, "Flowers102": 63.1}  # 0.6 + 0.015 + 0.016, and 0.1
    assert found["accuracy"]["zero_shot"] == {"EuroSAT": 31.1, "Flowers102": 21.1}
    assert (found["shots"], found["seeds"], found["settings"]) == (16, [1, 2], {"maple": {"epochs": 1}})
    assert found["not_finished"] == []
    assert found["test_images"] == {"EuroSAT": 8100, "Flowers102": 2463}
    assert set(found) == set(asdict(load_measurements())), "the file that comes with the package has the same keys"


def test_methods_that_are_not_finished_are_left_out(study: Specification, tmp_path: Path) -> None:
    lacking = next(cell for cell in study.cells if cell.experiment.method == "coop" and cell.experiment.shots == 16)
    write(study, tmp_path)
    (tmp_path / lacking.id / "result.json").unlink()
    found = measured_accuracies(study, tmp_path)
    assert list(found["accuracy"]) == ["gda", "zero_shot", "maple"]
    assert found["not_finished"] == ["coop"]


def test_without_any_finished_method_the_missing_cells_are_listed(study: Specification, tmp_path: Path) -> None:
    write(study, tmp_path, without=len(study.cells) - 1)
    with pytest.raises(UserError, match=r"of small not finished .* so no method is complete") as raised:
        measured_accuracies(study, tmp_path)
    assert len(raised.value.details) == 13, "one of the 14 is there"
