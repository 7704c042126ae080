"""benchmarks/method_accuracy.py: the table of all methods on real datasets, here on a few drawn images."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from _pytest.capture import CaptureResult

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "method_accuracy.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("method_accuracy", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["method_accuracy"] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


Said = Callable[..., CaptureResult[str]]


@pytest.fixture
def said(
    script: ModuleType,
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Said:
    """Run the script on a tiny backbone, two shots and one trial; what it said."""
    monkeypatch.setattr(script, "SHOTS", 2)
    monkeypatch.setattr(script, "TRIALS", {"coop": [{"learning_rate": 0.02}]})

    def run(data: Path, *words: object, status: int = 0) -> CaptureResult[str]:
        place = ("--backbone", tiny_folder, "--device", "cpu", "--out", tmp_path / "runs")
        monkeypatch.setattr(sys, "argv", ["method_accuracy.py", *map(str, (data, *place, *words))])
        assert script.main() == status
        return capsys.readouterr()

    return run


def test_every_method_and_dataset_has_its_cells(said: Said, photos: Path, tmp_path: Path) -> None:
    chosen = ("--method", "zero_shot", "--method", "coop", "--set", "epochs=1", "--set", "warmup_epochs=0")
    seeds = ("--seed", 1, "--seed", 2)
    first = said(photos, *chosen, *seeds)
    rows = [line.split(" | ") for line in first.out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["| `coop` shots=2 epochs=1 warmup_epochs=0", "| `zero_shot` shots=2"]
    assert [row[2] for row in rows] == ["384", "0"]
    assert len(first.err.splitlines()) == 4
    began = {path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/model.safetensors")}
    assert said(photos, *chosen, *seeds).out == first.out
    assert {path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/model.safetensors")} == began


def test_trials_open_no_test_image(said: Said, photos: Path, tmp_path: Path) -> None:
    data = tmp_path / "photos"
    shutil.copytree(photos, data)
    shutil.copytree(photos / "test", data / "val")
    for path in (data / "test").rglob("*.png"):
        path.write_bytes(b"not a picture")
    trials = said(data, "--method", "coop", "--set", "epochs=1", "--trials")
    assert [line.split(" |")[0] for line in trials.out.splitlines()[2:]] == [
        "| `coop` shots=2 epochs=1",
        "| `coop` shots=2 epochs=1 learning_rate=0.02",
    ]
    assert "images cannot be read" in said(data, "--method", "coop", "--set", "epochs=1", status=2).err


def test_a_wrong_place_is_named_and_ends_with_2(said: Said, tmp_path: Path) -> None:
    told = said(tmp_path / "nowhere", "--method", "coop", status=2)
    assert "nowhere" in told.err
    assert told.out == ""
