from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dca.core.errors import UserError
from dca.study import tracking
from dca.study.experiment import Experiment
from dca.study.run import run_experiment
from dca.study.tracking import TRACKERS, Tracker, figures_of
from dca.training.loop import Trainer

RESULT = {
    **{"method": "dca", "seed": 1, "accuracy": 0.75, "zero_shot_accuracy": 0.5, "seconds": 2.5, "harmonic_mean": None},
    "estimate": {"accuracy": 0.7, "low": 0.6, "zero_shot_accuracy": 0.4},
    "targets": [{"name": "photos", "accuracy": 0.75, "zero_shot_accuracy": 0.5, "ece": 0.1, "classes": 3}],
}
ROWS = [{"epoch": n, "loss": 2.0 - n, "accuracy": 0.5, "seconds": 0.1} for n in (1, 2)]
CONFIG = {"method": "dca", "shots": 2, "draw": None, "targets": [], "options": {"epochs": 2}}


class Recorder(Tracker):
    """Remembers everything."""

    made: list[Recorder]

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder, self.config, self.rows, self.result, self.closed = folder, config, [], None, 0
        Recorder.made.append(self)

    def log(self, row: dict[str, float]) -> None:
        self.rows.append(row)

    def finish(self, result: Any) -> None:
        self.result = dict(result)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """The trackers that are opened, recorders in place of TensorBoard."""
    Recorder.made = []
    monkeypatch.setattr(tracking, "require_tracker", lambda name: None)
    monkeypatch.setattr("dca.study.run.require_tracker", lambda name: None)
    monkeypatch.setitem(TRACKERS, "tensorboard", (Recorder, "json"))
    return Recorder.made


@pytest.fixture
def spec(photos: Path, tiny_folder: Path) -> Experiment:
    return Experiment(data=str(photos), method="coop", shots=1, backbone=str(tiny_folder), options={"epochs": 3})


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_tracker_gets_the_spec_every_epoch_and_the_result(
    spec: Experiment, recorders: list[Recorder], tmp_path: Path
):
    outcome = run_experiment(spec, tmp_path / "m.dca", device="cpu", track="tensorboard")
    (tracker,) = recorders
    assert (tracker.folder, tracker.config) == (tmp_path / "m.dca", spec.to_dict())
    assert tracker.rows == metrics(outcome.folder)
    assert len(tracker.rows) == 3
    assert tracker.result == outcome.result.to_dict()
    assert tracker.closed == 1
    run_experiment(spec, tmp_path / "m.dca", device="cpu", track="tensorboard")  # it is finished
    assert len(recorders) == 1


def test_tracking_changes_nothing_of_a_run(spec: Experiment, recorders: list[Recorder], tmp_path: Path):
    plain = run_experiment(spec, tmp_path / "plain", device="cpu").folder
    tracked = run_experiment(spec, tmp_path / "tracked", device="cpu", track="tensorboard").folder
    assert {path.name for path in plain.iterdir()} == {path.name for path in tracked.iterdir()}
    for name in ("spec.json", "model.safetensors"):
        assert (plain / name).read_bytes() == (tracked / name).read_bytes()
    assert [row["loss"] for row in metrics(plain)] == [row["loss"] for row in metrics(tracked)]


def test_a_fit_that_continues_gives_all_epochs_again(spec: Experiment, recorders: list[Recorder], tmp_path: Path):
    def interrupting(stage: str, done: int, total: int, note: str) -> None:
        if stage == "training" and note.startswith("epoch 3"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(spec, tmp_path / "m.dca", device="cpu", track="tensorboard", progress=interrupting)
    run_experiment(spec, tmp_path / "m.dca", device="cpu", track="tensorboard")
    first, second = recorders
    assert (len(first.rows), first.result, first.closed) == (2, None, 1)
    assert second.rows == metrics(tmp_path / "m.dca")
    assert second.rows[:2] == first.rows


def test_of_candidates_only_the_best_one_is_shown(
    recorders: list[Recorder], spec: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fits: list[object] = []
    monkeypatch.setattr(Trainer, "run", lambda self, *given, real=Trainer.run: fits.append(self) or real(self, *given))
    several = dataclasses.replace(spec, method="cross_modal", shots=2, options={"search": "grid", "epochs": 2})
    outcome = run_experiment(several, tmp_path / "m.dca", device="cpu", track="tensorboard")
    (tracker,) = recorders
    assert len(fits) > 1
    assert [row["epoch"] for row in tracker.rows] == [1, 2]
    assert tracker.rows == metrics(outcome.folder)


def test_the_figures_of_a_result_are_its_numbers():
    assert figures_of(RESULT) == {
        **{"accuracy": 0.75, "zero_shot_accuracy": 0.5, "seconds": 2.5},
        **{"estimate/accuracy": 0.7, "estimate/zero_shot_accuracy": 0.4},
    }
    two = {**RESULT, "estimate": None, "targets": [{"name": "base", "accuracy": 1.0}, {"name": "new", "accuracy": 0.5}]}
    assert figures_of(two)["new/accuracy"] == 0.5


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_named_before_anything_is_loaded(
    name: Any, spec: Experiment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for module in (name, "tensorboard.compat", "tensorboard.compat.proto", "wandb.errors"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=f"needs the package {name}") as raised:
        run_experiment(spec, tmp_path / "m.dca", track=name)
    assert raised.value.hint == f"pip install 'dca-prompt[{name}]'"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))  # as of an empty folder of this name
    with pytest.raises(UserError, match=f"needs the package {name}"):
        run_experiment(spec, tmp_path / "m.dca", track=name)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_tracker_is_answered_with_the_known_ones(spec: Experiment, tmp_path: Path):
    with pytest.raises(UserError, match=r"unknown tracker 'tensorbord'\. Did you mean 'tensorboard'"):
        run_experiment(spec, tmp_path / "m.dca", track="tensorbord")  # type: ignore[arg-type]


def test_the_command_line_names_the_extra(dca: Callable[..., Any], photos: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.delitem(sys.modules, "wandb.errors", raising=False)
    said = dca("study", "run", photos, "--track", "wandb")
    assert (said.code, said.out) == (2, "")
    assert said.err.splitlines()[1] == "  fix: pip install 'dca-prompt[wandb]'"


class WandBStandIn(ModuleType):
    """The parts of wandb that the tracker uses."""

    class Error(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("wandb")
        self.given: dict[str, Any] = {}
        self.logged: list[Any] = []
        self.summary: dict[str, Any] = {}
        self.Settings = lambda **values: values
        self.problem = ""

    def init(self, **given: Any) -> Any:
        if self.problem:
            raise self.Error(self.problem)
        self.given = given
        return SimpleNamespace(log=self.log, summary=self.summary, finish=self.finish)

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, values))

    def finish(self, exit_code: int) -> None:
        self.logged.append(exit_code)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> WandBStandIn:
    module = WandBStandIn()
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return module


def track(name: Any, folder: Path, *, finished: bool = True) -> None:
    tracker = TRACKERS[name][0](folder, CONFIG)
    for row in ROWS:
        tracker.log(row)
    if finished:
        tracker.finish(RESULT)
    tracker.close()


def test_weights_and_biases_gets_steps_and_a_summary(wandb: WandBStandIn, tmp_path: Path):
    track("wandb", tmp_path / "m.dca")
    assert (wandb.given["project"], wandb.given["name"], wandb.given["config"]) == ("dca", "m.dca", CONFIG)
    step = {"training/loss": 1.0, "training/accuracy": 0.5, "training/seconds": 0.1}
    assert wandb.logged == [(1, step), (2, {**step, "training/loss": 0.0}), 0]
    assert wandb.summary == {f"result/{name}": value for name, value in figures_of(RESULT).items()}


def test_an_interrupted_run_is_marked_as_failed(wandb: WandBStandIn, tmp_path: Path):
    track("wandb", tmp_path / "m.dca", finished=False)
    assert wandb.logged[-1] == 1
    assert wandb.summary == {}


def test_a_run_that_cannot_be_opened_says_how_to_log_in(wandb: WandBStandIn, tmp_path: Path):
    wandb.problem = "api_key not configured\nmore"
    with pytest.raises(UserError, match=r"cannot open a run \(api_key not configured\)") as raised:
        track("wandb", tmp_path / "m.dca")
    assert "wandb login" in raised.value.hint


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_weights_and_biases_offline(spec: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    outcome = run_experiment(spec, tmp_path / "m.dca", device="cpu", track="wandb")
    import wandb

    wandb.teardown()  # waits until its own process has written everything
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    written = file.read_bytes()
    for text in ("training/loss", "result/accuracy", "coop", "m.dca"):
        assert text.encode() in written
    assert len(metrics(outcome.folder)) == 3


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_event_files_hold_the_epochs_and_the_result(spec: Experiment, tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    place = tmp_path / "tensorboard" / "m.dca"
    track("tensorboard", tmp_path / "m.dca", finished=False)  # an interrupted part
    outcome = run_experiment(spec, tmp_path / "m.dca", device="cpu", track="tensorboard")
    events = EventAccumulator(str(place)).Reload()
    for name in ("loss", "accuracy", "learning_rate"):
        found = [(event.step, event.value) for event in events.Scalars(f"training/{name}")]
        assert found == [(row["epoch"], pytest.approx(row[name])) for row in metrics(outcome.folder)]
    (accuracy,) = events.Scalars("result/accuracy")
    assert accuracy.value == pytest.approx(outcome.result.accuracy)
    text = events.Tensors("spec/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert json.loads(text.strip("`")) == spec.to_dict()
    assert "_hparams_/session_start_info" in events.summary_metadata
