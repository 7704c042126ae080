"""The demonstration: zero-shot CLIP, the default method and DCA on the built-in images, with plots.

dca demo: fit and test on built-in images.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from dca import plots
from dca.cli.common import emit, json_flag, overwrite_flag, quiet_flag, running, showing
from dca.core.choices import DEFAULT_METHOD
from dca.core.files import write_json
from dca.core.progress import Progress, silent
from dca.datasets.dataset import Dataset
from dca.datasets.sample import load_sample
from dca.datasets.task import Task
from dca.images.decode import open_image
from dca.model.checkpoint import RESULT
from dca.model.classifier import Classifier
from dca.plots.style import can_draw
from dca.runs.evaluate import evaluate
from dca.runs.result import MethodResult, RunResult
from dca.runs.run import FittedRun, make_fit_task, run
from dca.runs.spec import FitSpec
from dca.training.evaluate import Evaluation
from dca.training.resume import read_metrics
from dca.training.session import Session

SHOTS = 16
# Enough epochs to show the gain, in about a minute on two cores.
QUICK = {"epochs": 12, "warmup_epochs": 1}
COMPARISON, CURVES, GRID = "comparison.png", "training.png", "predictions.png"


def demo(
    folder: Path,
    *,
    backbone: str = "mini",
    seed: int = 1,
    device: str = "auto",
    precision: str = "auto",
    overwrite: bool = False,
    progress: Progress = silent,
) -> FittedRun:
    """Fit the default method and DCA on the sample and plot the results; returns the outcome of DCA's run.

    Its result has a "comparison" with zero-shot CLIP and the default method, whose model is not kept. A finished
    demonstration is not fitted again; only missing plots are drawn. Without matplotlib there are none.
    """
    spec = FitSpec(
        data="sample", method="dca", shots=SHOTS, seed=seed, backbone=backbone, precision=precision, options=QUICK
    )
    dataset, session = load_sample(), Session(device=device, progress=progress)
    task = make_fit_task(spec, [dataset])
    # First, so that its time includes the features of the images.
    default = fit_default(spec, task, session) if overwrite or not (folder / RESULT).is_file() else None
    outcome = run(spec, folder, dataset=dataset, session=session, overwrite=overwrite, progress=progress)
    rows = outcome.result.comparison
    drawable = can_draw()
    if rows and (not drawable or all((folder / name).is_file() for name in (COMPARISON, CURVES, GRID))):
        return outcome
    default = default or fit_default(spec, task, session)
    model, measured = outcome.classifier, outcome.evaluations
    if model is None:
        model = Classifier.from_pretrained(folder, backbone=backbone, precision=precision, session=session)
        measured = evaluate(model.method_, task.targets, session)
    (target,) = measured
    if not rows:
        rows = comparison(outcome.result, default)
        outcome = dataclasses.replace(outcome, result=dataclasses.replace(outcome.result, comparison=rows))
        write_json(folder / RESULT, outcome.result.to_dict())
    if not drawable:
        return outcome
    seconds = [row.seconds for row in rows[1:]]
    plot(folder, dataset, target.zero_shot, default[0], target.adapted, seconds, model.method_.term_titles)
    return outcome


def fit_default(spec: FitSpec, task: Task, session: Session) -> tuple[Evaluation, float]:
    """Fit the default method on the same images; returns its evaluation and the seconds of the fit."""
    model = Classifier(DEFAULT_METHOD, seed=spec.seed, backbone=spec.backbone, precision=spec.precision)
    session.load_backbone(spec.backbone, spec.precision)  # loading it does not count
    began = time.monotonic()
    model.learn(task.source, session)
    seconds = time.monotonic() - began
    (target,) = evaluate(model.method_, task.targets, session)
    return target.adapted, seconds


def comparison(result: RunResult, default: tuple[Evaluation, float]) -> tuple[MethodResult, ...]:
    """Accuracy on the test images and seconds of the fit: zero-shot CLIP, the default method, the run's method."""
    figures = [
        ("zero_shot", result.zero_shot_accuracy or 0.0, 0.0),
        (DEFAULT_METHOD, default[0].accuracy, round(default[1], 2)),
        (result.method, result.accuracy or 0.0, result.seconds),
    ]
    return tuple(
        MethodResult(method=method, accuracy=accuracy, test_images=result.test_images, seconds=seconds)
        for method, accuracy, seconds in figures
    )


def plot(
    folder: Path,
    dataset: Dataset,
    zero_shot: Evaluation,
    default: Evaluation,
    adapted: Evaluation,
    seconds: Sequence[float],
    term_titles: Mapping[str, str],
) -> None:
    """Write the plots of a finished run.

    seconds: of the fits of the default method and of the run. term_titles: readable names of the run's loss terms.
    """
    truth = adapted.truth
    plain, middle, answer = (found.probabilities.argmax(axis=1) for found in (zero_shot, default, adapted))
    rows = plots.count_by_class(truth, plain, answer, dataset.names, middle)
    images = [open_image(item.image) for item in dataset.test]
    truths, answers = _names(truth, dataset.names), _names(answer, dataset.names)
    sure = adapted.probabilities.max(axis=1).tolist()
    labels = (f"{DEFAULT_METHOD} (default)", "DCA")
    plots.plot_demo(
        rows, images, truths, answers, sure, folder / COMPARISON, labels=labels, seconds=seconds, shots=SHOTS
    )
    plots.plot_predictions(images, truths, answers, sure, folder / GRID)
    plots.plot_training(read_metrics(folder), folder / CURVES, term_titles=term_titles)


def _names(labels: NDArray[np.int64], names: Sequence[str]) -> list[str]:
    return [names[int(label)] for label in labels]


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("dca-demo"),
    show_default=True,
    help="Folder to write.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Decides the draw and the initial values."
)
@click.option("--backbone", default="mini", show_default=True, help="As for dca fit.")
@overwrite_flag
@running
@quiet_flag
@json_flag
def command(
    output: Path,
    seed: int,
    backbone: str,
    overwrite: bool,
    device: str,
    precision: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Fit the default method and DCA on the sample of drawn images, with the CLIP inside this package.

    Ten classes with 16 training and 20 test images each. Writes a folder with the model of DCA, its
    metrics, a comparison with zero-shot CLIP and the default, and a grid of predictions. A finished
    demonstration is shown again, an interrupted one continues.

    \b
    dca demo
    dca demo -o elsewhere/ --seed 2 --backbone vit-b-16
    """
    from dca.cli.fit import print_result, resumable
    from dca.plots.style import missing_matplotlib

    with resumable(output), showing(quiet=quiet) as progress:
        outcome = demo(
            output, backbone=backbone, seed=seed, device=device, precision=precision, overwrite=overwrite,
            progress=progress,
        )  # fmt: skip
    if as_json:
        emit(outcome.result.to_dict())
        return
    print_result(outcome)
    if (output / COMPARISON).is_file():
        click.echo(f"look  {output / COMPARISON}   {output / GRID}   {output / CURVES}")
    else:
        missing = missing_matplotlib()
        click.echo(f"no pictures: {missing.problem} {missing.hint}")
    click.echo("then  dca fit YOUR_PHOTOS/    one sub-folder per class")
