"""`dca fit --with METHOD`: the closed form and a trained method."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dca.methods import blend
from dca.methods.blend import BlendWeights
from dca.training.resume import FOLDS, STATE

QUICK = ("--set", "epochs=1", "--set", "warmup_epochs=0", "--set", "folds=2")


@pytest.fixture
def worth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every trained method is worth something: on random features none would be."""
    monkeypatch.setattr(blend, "fit_blend_weights", lambda *_: BlendWeights(0.8, 0.4, 0.02, 0.1))


def test_it_says_what_the_trained_method_brought(dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path):
    line = ("fit", photos, "--shots", 2, "--backbone", tiny_folder)
    said = dca(*line, "--with", "coop", *QUICK, "-o", tmp_path / "m.dca")
    assert said.code == 0, said.err
    assert "note: coop brought nothing here: its weight is zero" in said.out
    assert "(2-fold cross-validation on 20 training images" in said.out
    assert "fitted with blend in" in said.out
    plain = dca(*line, "-o", tmp_path / "closed.dca", "--json")
    found = dca("eval", tmp_path / "m.dca", photos, "--json")
    assert json.loads(found.out)["accuracy"] == json.loads(plain.out)["accuracy"]


@pytest.mark.usefixtures("worth")
def test_the_trained_part_is_stored_and_its_curve_kept(dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path):
    target = tmp_path / "m.dca"
    line = ("fit", photos, "--shots", 2, "--backbone", tiny_folder, "--with", "DCA", *QUICK, "-o", target)
    said = dca(*line, "--json")
    assert said.code == 0, said.err
    result = json.loads(said.out)
    assert result["trained_parameters"] > 0
    assert result["estimate"]["how"] == "2-fold cross-validation"
    assert "dca brought +2.0 points" in result["findings"]["notes"][-1]
    config = json.loads((target / "config.json").read_text())
    assert config["options"]["trained"] == "dca"
    assert config["options"]["trained_options"]["epochs"] == 1
    assert config["fit_arguments"]["options"]["trained_options"] == {"epochs": 1, "warmup_epochs": 0}
    assert len((target / "metrics.jsonl").read_text().splitlines()) == 1
    assert not (target / FOLDS).exists()
    assert not (target / STATE).exists()
    assert "finished already" in dca(*line).err
    measured = dca("eval", target, photos, "--json")
    assert json.loads(measured.out)["accuracy"] == result["accuracy"]


@pytest.mark.usefixtures("worth")
@pytest.mark.parametrize("part", ["fold 2/2", "dca  epoch"])
def test_an_interrupted_run_continues_to_the_same_file(
    part: str, dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    line = ("fit", photos, "--shots", 2, "--backbone", tiny_folder, "--with", "dca", *QUICK)
    assert dca(*line, "-o", tmp_path / "straight.dca").code == 0
    import dca.training.held_out as nested

    def stopping(progress: Any, name: str) -> Any:
        def report(stage: str, done: int, total: int, note: str) -> None:
            if f"{name}  {note}".startswith(part if "epoch" in part else f"{name}  {part}"):
                raise KeyboardInterrupt

        return report

    with monkeypatch.context() as patch:
        patch.setattr(nested, "prefix_progress", stopping)
        stopped = dca(*line, "-o", tmp_path / "m.dca")
    assert stopped.code == 130
    assert "the same command continues" in stopped.err
    assert dca(*line, "-o", tmp_path / "m.dca").code == 0
    one, other = (tmp_path / name / "model.safetensors" for name in ("straight.dca", "m.dca"))
    assert one.read_bytes() == other.read_bytes()


def test_what_cannot_be_combined_is_said(dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path):
    line = ("fit", photos, "--backbone", tiny_folder, "-o", tmp_path / "m.dca")
    for more, problem, hint in (
        (
            ("--method", "gda", "--with", "dca"),
            "--with combines a method with closed_form, not with gda",
            "--method",
        ),
        (("--with", "dac"), "dac", "dca"),
        (("--with", "closed_form"), "closed_form cannot be blended", "dca methods"),
        (("--with", "gda", "--set", "epochs=3"), "gda is not trained in steps", "dca methods show gda"),
        (("--with", "coop", "--epochs", "3"), "epochs is an option of the method coop", "--set epochs=3"),
    ):
        said = dca(*line, *more)
        assert said.code == 2, said.out
        assert problem in said.err
        assert hint in said.err
