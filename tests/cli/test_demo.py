from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dca.data.dataset import Dataset

PICTURES = ("comparison.png", "training.png", "predictions.png")


@pytest.fixture
def line(sample: Dataset, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """The command, on few images and for few epochs."""
    monkeypatch.setattr("dca.demo.load_sample", lambda: sample)
    monkeypatch.setattr("dca.demo.SHOTS", 1)
    monkeypatch.setattr("dca.demo.QUICK", {"epochs": 2, "warmup_epochs": 1})
    return ("demo", "-o", tmp_path / "demo", "--backbone", tiny_folder)


def test_a_finished_demonstration_is_shown_again_and_not_fitted_again(
    dca: Any, line: tuple[object, ...], tmp_path: Path
):
    first = dca(*line)
    assert first.code == 0, first.err
    folder = tmp_path / "demo"
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {folder / name for name in PICTURES} <= set(before)
    again = dca(*line)
    assert again.code == 0
    assert again.out == first.out
    assert "is finished already; --overwrite" in again.err
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_pictures_of_a_finished_demonstration_that_are_missing_are_drawn(
    dca: Any, line: tuple[object, ...], tmp_path: Path
):
    dca(*line)
    drawn = (tmp_path / "demo" / PICTURES[0]).read_bytes()
    (tmp_path / "demo" / PICTURES[0]).unlink()
    assert dca(*line).code == 0
    assert (tmp_path / "demo" / PICTURES[0]).read_bytes() == drawn


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
        patched.setattr("dca.experiment.run.evaluate", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        said = dca(*line)
    assert said.code == 130
    assert f"the same command continues from {tmp_path / 'demo.partial'}" in said.err
    assert dca(*line).code == 0
