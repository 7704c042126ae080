"""benchmarks/method_accuracy.py: the table of all methods on real datasets, here on a few drawn pictures."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

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


@pytest.fixture
def few(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "SHOTS", 2)
    monkeypatch.setattr(script, "TRIALS", {"coop": [{"learning_rate": 0.02}]})


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["method_accuracy.py", *map(str, words)])
    script.main()


@pytest.mark.usefixtures("few")
def test_every_method_and_dataset_has_its_cells(
    script: ModuleType,
    photos: Path,
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = ("--method", "zero_shot", "--method", "coop", "--set", "epochs=1", "--set", "warmup_epochs=0")
    words = (photos, "--backbone", tiny_folder, "--device", "cpu", "--out", tmp_path / "runs", *chosen)
    run(script, monkeypatch, *words, "--seed", 1, "--seed", 2)
    first = capsys.readouterr()
    rows = [line.split(" | ") for line in first.out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["| `coop` epochs=1 warmup_epochs=0", "| `zero_shot` epochs=1 warmup_epochs=0"]
    assert [row[2] for row in rows] == ["384", "0"]
    assert len(first.err.splitlines()) == 4
    began = {path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/model.safetensors")}
    run(script, monkeypatch, *words, "--seed", 1, "--seed", 2)
    assert capsys.readouterr().out == first.out
    assert {path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/model.safetensors")} == began


@pytest.mark.usefixtures("few")
def test_trials_open_no_test_image(
    script: ModuleType,
    photos: Path,
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "photos"
    shutil.copytree(photos, data)
    shutil.copytree(photos / "test", data / "val")
    for path in (data / "test").rglob("*.png"):
        path.write_bytes(b"not a picture")
    words = (data, "--backbone", tiny_folder, "--device", "cpu", "--out", tmp_path / "runs", "--method", "coop")
    run(script, monkeypatch, *words, "--set", "epochs=1", "--trials")
    said = capsys.readouterr()
    assert [line.split(" |")[0] for line in said.out.splitlines()[2:]] == [
        "| `coop` epochs=1",
        "| `coop` learning_rate=0.02 epochs=1",
    ]
    run(script, monkeypatch, *words, "--set", "epochs=1")
    assert "images cannot be read" in capsys.readouterr().err
