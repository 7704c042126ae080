from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Said
from dca.cli import export
from dca.export.folder import ExportResult, Int8Cost, TorchParity


def test_it_writes_and_says_how_exact_it_is(
    fitted: Path, photos: Path, tiny_folder: Path, tmp_path: Path, dca: Callable[..., Said]
) -> None:
    out = tmp_path / "out"
    said = dca("export", fitted, "--onnx", out, "--data", photos, "--backbone", tiny_folder, "-q")
    assert said.code == 0, said.err
    first, second, last = said.out.splitlines()
    assert first.startswith(f"{out / 'model.onnx'} ")
    assert "classes.json, predict.py" in first
    assert second.startswith("max |Δp| vs torch ")
    assert second.endswith(", on 30 images")
    assert last == f"next  python {out / 'predict.py'} photo.jpg"
    again = dca("export", fitted, "--onnx", out)
    assert again.code == 2
    assert again.err.splitlines() == [
        f"error: {out} holds an export",
        "  fix: choose another folder with --onnx DIR, or replace it with --overwrite",
    ]


def done(folder: Path, difference: float = 1e-6, cost: Int8Cost | None = None) -> ExportResult:
    sizes = {
        "app.js": 5,
        "classes.json": 6,
        "index.html": 7,
        "model.onnx": 345_000_000,
        "ort/ort.js": 9,
        "predict.py": 8,
    }
    return ExportResult(folder, sizes, TorchParity(difference, 100, 2e-7, 0), cost)


def test_the_cost_of_8_bits_is_said(tmp_path: Path) -> None:
    measured = done(tmp_path, cost=Int8Cost(200, 197, 0.0712, 0.91, 0.9))
    lines = export.format_result(measured, int8=True, web=True)
    assert lines == [
        f"{tmp_path / 'model.onnx'} 345.0 MB, classes.json, index.html, predict.py",
        "max |Δp| vs torch 1.0e-06, of p-values 2.0e-07, 0 different sets of classes, on 100 images before 8 bits",
        "int8: accuracy 90.0 % instead of 91.0 % (-1.0 points); same answer on 197 of 200 images, max |Δp| 0.071",
        f"next  python -m http.server -d {tmp_path}   then open http://127.0.0.1:8000",
    ]
    unknown = export.format_cost(Int8Cost(100, 99, 0.01, None, None))
    assert unknown == [
        "int8: same answer on 99 of 100 images, max |Δp| 0.01",
        "  the cost in accuracy is not known: give labelled images with --data",
    ]
    assert json.loads(json.dumps(measured.to_dict()))["int8"]["same"] == 197


def test_more_than_rounding_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export.warn_about_difference(done(tmp_path))
    assert capsys.readouterr().err == ""
    export.warn_about_difference(done(tmp_path, difference=0.01))
    assert "warning: max |Δp| vs torch is above 0.0001" in capsys.readouterr().err


def test_a_missing_extra_is_named(
    fitted: Path, tmp_path: Path, dca: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    said = dca("export", fitted, "--onnx", tmp_path / "out")
    assert said.code == 2
    assert said.err.splitlines()[1:] == ["  fix: pip install 'dca-prompt[onnx]'"]


def test_no_model_is_an_error(tmp_path: Path, dca: Callable[..., Said]) -> None:
    said = dca("export", tmp_path / "none", "--onnx", tmp_path / "out")
    assert said.code == 2
    assert "no such model folder" in said.err
    assert list(tmp_path.iterdir()) == []
