from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dca.datasets.dataset import Dataset
from dca.model.checkpoint import write_manifest

PLOTS = ("comparison.png", "training.png", "predictions.png")


@pytest.fixture
def line(sample: Dataset, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """The command, on few images and for few epochs."""
    monkeypatch.setattr("dca.runs.demo.load_sample", lambda: sample)
    monkeypatch.setattr("dca.runs.demo.SHOTS", 1)
    monkeypatch.setattr("dca.runs.demo.QUICK", {"epochs": 2, "warmup_epochs": 1})
    return ("demo", "-o", tmp_path / "demo", "--backbone", tiny_folder)


def test_a_finished_demonstration_is_shown_again_and_not_fitted_again(
    dca: Any, line: tuple[object, ...], tmp_path: Path
):
    first = dca(*line)
    assert first.code == 0, first.err
    folder = tmp_path / "demo"
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {folder / name for name in PLOTS} <= set(before)
    again = dca(*line)
    assert again.code == 0
    assert again.out == first.out
    assert "is finished already; --overwrite" in again.err
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_three_models_are_compared_in_text_and_json(dca: Any, line: tuple[object, ...], tmp_path: Path):
    first = dca(*line, "--json")
    assert first.code == 0, first.err
    result = json.loads(first.out)
    rows = result["comparison"]
    assert [row["method"] for row in rows] == ["zero_shot", "closed_form", "dca"]
    assert [row["accuracy"] for row in rows[::2]] == [result["zero_shot_accuracy"], result["accuracy"]]
    assert {row["test_images"] for row in rows} == {30}
    assert rows[2]["seconds"] == result["seconds"]
    assert json.loads((tmp_path / "demo" / "result.json").read_text()) == result
    assert json.loads((tmp_path / "demo" / "config.json").read_text())["method"] == "dca"
    words = [text.split() for text in dca(*line).out.splitlines()]
    at = words.index("accuracy on 30 test images".split())
    assert [row[0] for row in words[at + 1 : at + 4]] == ["zero-shot", "closed_form", "dca"]
    assert words[at + 2][1] == "(default)"


def test_the_default_is_fitted_again_only_where_its_figures_are_missing(
    dca: Any, line: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dca(*line)
    path = tmp_path / "demo" / "result.json"
    result = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in result.items() if name != "comparison"}))
    write_manifest(path.parent)
    assert dca(*line).code == 0
    again = json.loads(path.read_text())["comparison"]
    assert [row["accuracy"] for row in again] == [row["accuracy"] for row in result["comparison"]]
    monkeypatch.setattr("dca.runs.demo.fit_default", lambda *_: pytest.fail("nothing is missing"))
    assert dca(*line).code == 0


def test_plots_of_a_finished_demonstration_that_are_missing_are_drawn(
    dca: Any, line: tuple[object, ...], tmp_path: Path
):
    dca(*line)
    drawn = (tmp_path / "demo" / PLOTS[0]).read_bytes()
    (tmp_path / "demo" / PLOTS[0]).unlink()
    assert dca(*line).code == 0
    assert (tmp_path / "demo" / PLOTS[0]).read_bytes() == drawn


def test_a_demonstration_of_other_settings_is_replaced_only_when_asked(
    dca: Any, line: tuple[object, ...], tmp_path: Path
):
    dca(*line)
    said = dca(*line, "--seed", 2)
    assert said.code == 2
    assert "--overwrite" in said.err
    assert dca(*line, "--seed", 2, "--overwrite").code == 0
    assert dca(*line, "--seed", 2).code == 0


def test_an_interrupted_demonstration_says_how_to_continue(
    dca: Any, line: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patched:
        patched.setattr("dca.runs.run.evaluate", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        said = dca(*line)
    assert said.code == 130
    assert f"the same command continues from {tmp_path / 'demo.partial'}" in said.err
    assert dca(*line).code == 0


def test_without_matplotlib_there_are_figures_and_no_plots(
    dca: Any, line: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        for _ in range(2):
            found = dca(*line)
            assert found.code == 0, found.err
            assert "accuracy on 30 test images" in found.out
            assert "pip install 'dca-prompt[report]'" in found.out
            assert "comparison.png" not in found.out
    assert not [path for path in (tmp_path / "demo").iterdir() if path.suffix == ".png"]
    assert "comparison.png" in dca(*line).out
    assert {path.name for path in (tmp_path / "demo").iterdir()} >= {*PLOTS}
