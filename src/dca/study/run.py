"""One experiment: its task by the protocol, and its run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dca.core.errors import UserError
from dca.core.progress import Progress, silent
from dca.datasets.dataset import Dataset
from dca.datasets.draws import hold_out, import_draw
from dca.datasets.task import Task, make_target
from dca.methods.base import Method
from dca.methods.registry import all_methods
from dca.model.inputs import as_dataset, require_learnable, require_shots
from dca.runs.run import (
    FittedRun,
    RunOutputs,
    draw_task,
    hold_out_test_part,
    load_data,
    prepare_folder,
    run_task,
)
from dca.study.choices import TrackerName
from dca.study.experiment import Experiment, ExperimentResult
from dca.study.protocols import make_task, use_validation_as_test
from dca.study.tracking import TrackRun, require_tracker
from dca.training.session import Session


def run_experiment(
    experiment: Experiment,
    folder: str | Path,
    *,
    dataset: Dataset | None = None,
    targets: Sequence[Dataset] | None = None,
    session: Session | None = None,
    device: str = "auto",
    overwrite: bool = False,
    skip_bad: bool = False,
    plots: bool = False,
    gallery: bool = False,
    track: TrackerName | None = None,
    progress: Progress = silent,
) -> FittedRun:
    """Run one experiment and leave a finished model with its figures at `folder`.

    A finished run of the same experiment, images and backbone is returned as it is; an interrupted one continues.

    Args:
        experiment: What to run.
        folder: Where the finished run goes; until then it is in `folder` + ".partial".
        dataset: What `experiment.data` names, if it is loaded already.
        targets: Likewise for `experiment.targets`.
        session: Backbones, images and features shared with other runs; its device is used.
        device: "auto", "cpu", "cuda", ...
        overwrite: Replace a finished run that is there.
        skip_bad: Leave out images that cannot be read before the draw; `result.skipped` names them.
        plots: Plot how the model did into its folder, if matplotlib is installed; `result.plots` names the files.
        gallery: Also write thumbnails and features of the training images.
        track: "tensorboard" or "wandb" also show the metrics there.
        progress: Receives the progress of the run.

    Returns:
        The finished run; its result is an `ExperimentResult`.

    Raises:
        UserError: If data, experiment or folder cannot be used, or another run's model is there.

    Example:
        >>> import tempfile
        >>> from dca.datasets.sample import load_sample
        >>> from dca.study import Experiment, run_experiment
        >>> experiment = Experiment(data="sample", method="zero_shot", protocol="base-to-new")
        >>> sample = load_sample(per_class_train=1, per_class_test=2)
        >>> fitted = run_experiment(experiment, tempfile.mkdtemp() + "/model", dataset=sample, device="cpu")
        >>> [target.test_images for target in fitted.result.targets]
        [10, 10]
    """
    require_tracker(track)
    run_folder = prepare_folder(experiment, folder, device)
    session = (session or Session(device=device)).with_progress(progress)
    return run_task(
        experiment,
        partial(_make_task, experiment),
        _load_all(experiment, dataset, targets),
        run_folder,
        session,
        outputs=RunOutputs(plots, gallery),
        callbacks=TrackRun(track),
        overwrite=overwrite,
        skip_bad=skip_bad,
        complete=lambda result: ExperimentResult.complete(result, experiment),
    )


def make_experiment_task(
    experiment: Experiment, dataset: Dataset | None = None, targets: Sequence[Dataset] | None = None
) -> Task:
    """The task of an experiment: what is trained on, and what is tested.

    Args:
        experiment: What is to be run.
        dataset: What `experiment.data` names, if it is loaded already.
        targets: Likewise for `experiment.targets`.

    Returns:
        The task.

    Raises:
        UserError: If the data cannot be used under the protocol, or with the method.
    """
    return _make_task(experiment, _load_all(experiment, dataset, targets))


def _load_all(experiment: Experiment, dataset: Dataset | None, targets: Sequence[Dataset] | None) -> list[Dataset]:
    """The data of an experiment, what is trained on first; what is given is loaded already."""
    if targets is None:
        targets = [as_dataset(target, None, for_evaluation=True) for target in experiment.targets]
    return [load_data(experiment, dataset), *targets]


def _make_task(experiment: Experiment, data: Sequence[Dataset]) -> Task:
    """The task of loaded data."""
    dataset, *targets = data
    require_learnable(dataset)
    if experiment.draw is not None:
        return _make_task_of_draw(experiment, experiment.draw, dataset)
    if experiment.measured_on == "validation":
        dataset = use_validation_as_test(dataset, experiment.shots, experiment.seed)
    else:
        dataset = hold_out_test_part(experiment, dataset)
    if experiment.protocol == "few-shot" and not targets:  # nothing is held out unless asked for
        return draw_task(experiment, dataset)
    if experiment.protocol == "base-to-new":
        dataset = hold_out(dataset)
    require_shots(dataset, experiment.shots)
    validation = experiment.kind.validation_for(experiment.options)
    task = make_task(
        experiment.protocol, dataset, targets, experiment.shots, experiment.seed,
        rules=experiment.rules, validation=validation,
    )  # fmt: skip
    _require_transferable(experiment, task)
    return task


def _make_task_of_draw(experiment: Experiment, file: str, dataset: Dataset) -> Task:
    """The few-shot task of the images that a file lists."""
    source = import_draw(file, dataset)
    selected_on = f"{experiment.rules}: the validation images of {Path(file).name}"
    targets = (make_target(source, source),) if dataset.test else ()
    return Task(experiment.rules, selected_on, None, experiment.seed, dataclasses.replace(source, test=()), targets)


def _require_transferable(experiment: Experiment, task: Task) -> None:
    """Raise, before training, where a target has other classes and the method can only classify its own."""
    own = tuple(range(len(task.source.names)))
    same = all(target.from_source == own for target in task.targets)
    if same or experiment.kind.retarget is not Method.retarget:
        return
    able = [name for name, kind in all_methods().items() if kind.retarget is not Method.retarget]
    raise UserError(
        f"a {experiment.method} model knows only the classes it was trained on, and {experiment.protocol} tests on "
        "others",
        hint=f"methods that can be used for other classes: {', '.join(able)}",
    )
