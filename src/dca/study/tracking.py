"""Runs in TensorBoard or Weights & Biases: thin adapters over what `metrics.jsonl`, `spec.json` and `result.json` hold.

These files are always written; a tracker only shows them elsewhere, and nothing about a run depends on it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dca.core.errors import UserError, unknown_name
from dca.core.hints import log_in_to_wandb
from dca.runs.result import RunResult
from dca.runs.run import RunCallbacks
from dca.runs.spec import FitSpec
from dca.study.choices import TRACKER_NAMES, TrackerName
from dca.training.resume import EpochMetrics

# Where the event files of TensorBoard are, beside the folders of the runs.
EVENTS = "tensorboard"
# The figures of a result that are shown.
FIGURES = (
    *("accuracy", "zero_shot_accuracy", "harmonic_mean", "ece", "temperature"),
    *("seconds", "evaluation_seconds", "trained_parameters", "checkpoint_bytes"),
)
# Seconds until an epoch is in the event file: curves are looked at while a fit goes on.
FLUSH_EVERY = 5
# The project in Weights & Biases, unless WANDB_PROJECT names another.
PROJECT = "dca"


class Tracker:
    """Shows one run somewhere; this one shows nothing."""

    def log(self, row: EpochMetrics) -> None:
        """Show the metrics of one epoch."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """Show the figures of a finished run."""

    def close(self) -> None:
        """Write what is not written yet; also called for a run that was interrupted."""


class TensorBoard(Tracker):
    """One folder of event files per run, `tensorboard/NAME` beside the folder of the run.

    Args:
        folder: Folder of the run.
        config: Plain values that describe the run.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.config = config
        # A run that continues gives all rows again; those of the interrupted part are hidden.
        self.writer = SummaryWriter(folder.parent / EVENTS / folder.name, purge_step=0, flush_secs=FLUSH_EVERY)
        self.writer.add_text("spec", f"```\n{json.dumps(dict(config), indent=2)}\n```")

    def log(self, row: EpochMetrics) -> None:
        """One scalar per metric."""
        for name, value in row.items():
            if name != "epoch":
                self.writer.add_scalar(f"training/{name}", value, int(row["epoch"]))

    def finish(self, result: Mapping[str, Any]) -> None:
        """One scalar per figure, and a row of the table of all runs ("HParams")."""
        from torch.utils.tensorboard.summary import hparams

        figures = {f"result/{name}": value for name, value in figures_of(result).items()}
        for name, value in figures.items():
            self.writer.add_scalar(name, value, 0)
        values = {
            name: v if isinstance(v, bool | int | float | str) else json.dumps(v)
            for name, v in flatten_config(self.config)
        }
        for summary in hparams(values, figures):  # type: ignore[no-untyped-call]
            self.writer.file_writer.add_summary(summary)  # type: ignore[attr-defined]

    def close(self) -> None:
        """End the event file."""
        self.writer.close()


class WandB(Tracker):
    """One run in Weights & Biases. Its own settings apply: WANDB_PROJECT, WANDB_MODE=offline, WANDB_DIR and so on.

    Args:
        folder: Folder of the run, whose name is the name of the run.
        config: Plain values that describe the run.

    Raises:
        UserError: If the run cannot be opened, for example because nobody is logged in.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT", PROJECT)
        # The terminal belongs to our own progress and results.
        quiet = wandb.Settings(silent=True, console="off")
        try:
            self.run = wandb.init(project=project, name=folder.name, config=dict(config), settings=quiet)
        except wandb.Error as error:
            problem = f"Weights & Biases cannot open a run ({str(error).strip().splitlines()[0]})"
            raise UserError(problem, hint=log_in_to_wandb()) from None
        self._interrupted = True

    def log(self, row: EpochMetrics) -> None:
        """One step per epoch."""
        values = {f"training/{name}": value for name, value in row.items() if name != "epoch"}
        self.run.log(values, step=int(row["epoch"]))

    def finish(self, result: Mapping[str, Any]) -> None:
        """The summary of the run."""
        self.run.summary.update({f"result/{name}": value for name, value in figures_of(result).items()})
        self._interrupted = False

    def close(self) -> None:
        """End the run; one without figures is marked as failed."""
        self.run.finish(exit_code=int(self._interrupted))


# By name: the class, and the module that its extra installs.
TRACKERS: dict[TrackerName, tuple[Callable[[Path, Mapping[str, Any]], Tracker], str]] = {
    "tensorboard": (TensorBoard, "tensorboard"),
    "wandb": (WandB, "wandb"),
}


def require_tracker(name: TrackerName | None) -> None:
    """Raise, before anything is loaded, if there is no such tracker, or its package is not installed."""
    from importlib import import_module

    if name is None:
        return
    if name not in TRACKERS:
        raise unknown_name("tracker", str(name), TRACKER_NAMES)
    try:
        # Not only the module, which may be an empty folder of the same name.
        import_module("tensorboard.compat.proto" if name == "tensorboard" else "wandb.errors")
    except ImportError:
        problem = f"tracking with {name} needs the package {TRACKERS[name][1]}, which is not installed."
        raise UserError(problem, hint=f"pip install 'dca-prompt[{name}]'") from None


def open_tracker(name: TrackerName | None, folder: Path, config: Mapping[str, Any]) -> Tracker:
    """A tracker for one run; to be closed.

    Args:
        name: "tensorboard" or "wandb"; None for one that shows nothing.
        folder: Folder of the run.
        config: Plain values that describe the run, as `Experiment.to_dict` gives them.

    Returns:
        The tracker.

    Raises:
        UserError: If it cannot be opened.
    """
    require_tracker(name)
    return Tracker() if name is None else TRACKERS[name][0](folder, config)


class TrackRun(RunCallbacks):
    """Shows a run in a tracker, which is opened when the run begins.

    Args:
        name: "tensorboard" or "wandb"; None for none.
    """

    def __init__(self, name: TrackerName | None) -> None:
        self._name = name
        self._tracker = Tracker()

    def on_start(self, spec: FitSpec, folder: Path) -> None:
        """Open the tracker."""
        self._tracker = open_tracker(self._name, folder, spec.to_dict())

    def on_epoch(self, metrics: EpochMetrics) -> None:
        """Show the metrics of an epoch."""
        self._tracker.log(metrics)

    def on_success(self, result: RunResult) -> None:
        """Show the figures."""
        self._tracker.finish(result.to_dict())

    def on_exit(self) -> None:
        """Write what is not written yet."""
        self._tracker.close()


def figures_of(result: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a result: its own, those of the estimate, and those of every target where there are several.

    >>> figures_of({"accuracy": 0.5, "seed": 1, "method": "dca", "estimate": {"accuracy": 0.4, "n": 8}})
    {'accuracy': 0.5, 'estimate/accuracy': 0.4}
    """
    rows = [result, {"name": "estimate", **(result.get("estimate") or {})}]
    targets = result.get("targets", [])
    rows += targets if len(targets) > 1 else []
    found: dict[str, float] = {}
    for row in rows:
        before = f"{row['name']}/" if row is not result else ""
        found |= {f"{before}{name}": row[name] for name in FIGURES if row.get(name) is not None}
    return found


def flatten_config(config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Names and values of a description, those of its tables with the name of the table in front.

    >>> flatten_config({"shots": 4, "options": {"epochs": 2}, "targets": []})
    [('shots', 4), ('options.epochs', 2), ('targets', [])]
    """
    found: list[tuple[str, Any]] = []
    for name, value in config.items():
        found += (
            [(f"{name}.{inner}", v) for inner, v in value.items()] if isinstance(value, Mapping) else [(name, value)]
        )
    return found
