"""dca eval: measure a model on labelled images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dca.cli.common import (
    backbone_of_model,
    device_flags,
    emit,
    format_plots,
    json_flag,
    plots_flag,
    print_lines,
    print_warnings,
    quiet_flag,
    say_how_to_plot,
    showing,
)
from dca.cli.tables import format_table
from dca.core.errors import UserError
from dca.core.text import percent, pluralize

if TYPE_CHECKING:
    from dca.datasets.dataset import Dataset
    from dca.model.classifier import CompetingClasses
    from dca.stats.one_against_rest import ClassScores, MeanScores
    from dca.training.evaluate import Evaluation


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", type=click.Path())
@click.option(
    "--min-accuracy",
    type=click.FloatRange(0, 1),
    default=None,
    metavar="SHARE",
    help="Exit with code 3 if the accuracy is below this fraction.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FOLDER",
    help="Draw the plots into this folder.  [MODEL/plots/eval-DATA]",
)
@click.option(
    "--classes",
    type=click.Choice(["all", "target"]),
    default=None,
    help="Predict among all classes of the model, or only those of DATA.  [default: all; target for ImageNet-A and -R]",
)
@click.option(
    "--set",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Measure with another value of an option of the head, such as gamma1; repeatable. MODEL is not changed.",
)
@plots_flag
@backbone_of_model
@device_flags
@quiet_flag
@json_flag
def command(
    model: Path,
    data: str,
    min_accuracy: float | None,
    output: Path | None,
    classes: CompetingClasses | None,
    options: tuple[str, ...],
    plots: bool,
    quiet: bool,
    as_json: bool,
    backbone: str | None,
    device: str,
    precision: str,
) -> None:
    """Measure MODEL on the labelled images of DATA.

    DATA has the forms that `dca fit` takes; where it has a test part (or else a validation part),
    only that is used. It need not have all classes of the model. Predictions are among all of them, unless
    DATA is a shifted version of the model's dataset (ImageNet-A, ImageNet-R) with fewer classes.

    \b
    dca eval photos.dca more_photos/
    dca eval photos.dca more_photos/ --min-accuracy 0.9 --json
    dca eval photos.dca more_photos/ --no-plots
    dca eval photos.dca more_photos/ --set gamma1=100 --set gamma2=50
    """
    from dca.model.classifier import Classifier
    from dca.model.copies import describe_seen
    from dca.model.inputs import as_dataset

    if output is not None:
        prepare_plot_folder(output)
    classifier = Classifier.from_pretrained(model, backbone=backbone, device=device, precision=precision)
    if options:
        classifier = classifier.with_options(*options)
    dataset = as_dataset(data, None, for_evaluation=True)
    with showing(quiet=quiet) as progress:
        evaluation = classifier.evaluate(dataset, classes=classes, progress=progress)
    if evaluation.seen_in_training:
        print_warnings([describe_seen(evaluation.seen_in_training, f"{evaluation.n:,} images")])
    drawn = draw(evaluation, dataset, model, output) if plots or output is not None else []
    print_evaluation(evaluation, drawn, classes=len(classifier.classes_), as_json=as_json)
    if plots and not as_json:
        say_how_to_plot()
    if min_accuracy is not None and evaluation.accuracy < min_accuracy:
        print_lines(f"below the required {percent(min_accuracy)}", err=True)
        raise click.exceptions.Exit(3)


def print_evaluation(evaluation: Evaluation, drawn: Sequence[Path], *, classes: int, as_json: bool) -> None:
    """Print the figures, and the paths of the plots. classes: of the model."""
    if as_json:
        names = [str(path) for path in drawn]
        emit({**evaluation.to_dict(), **({"plots": names} if drawn else {})})
        return
    print_lines(*format_evaluation(evaluation, classes))
    if drawn:
        print_lines(format_plots([str(path) for path in drawn]))


def format_evaluation(evaluation: Evaluation, classes: int = 0) -> list[str]:
    """The figures as lines of text, the hardest class first. classes: number of the model's classes."""
    among = f", among {len(evaluation.labels):,} of {classes:,} classes" if len(evaluation.labels) < classes else ""
    head = f"accuracy {percent(evaluation.accuracy)} on {pluralize(evaluation.n, 'image')}{among}"
    if percent(evaluation.mean_over_classes) != percent(evaluation.accuracy):
        head += f"; mean over classes {percent(evaluation.mean_over_classes)}"
    head += f"; calibration error {evaluation.ece:.3f}"
    tested = sorted((label for label in evaluation.per_class), key=lambda label: evaluation.per_class[label])
    means = evaluation.mean_scores
    rows = [
        ["class", *(f"{word:>9}" for word in ("recall", "precision", "F1", "ROC AUC"))],
        *(_format_scores(str(label), evaluation.scores[label]) for label in tested),
        _format_scores("mean", means),
    ]
    return [head, *format_table(rows, indent=2)]


def _format_scores(name: str, scores: ClassScores | MeanScores) -> list[str]:
    """A row of the table of classes."""
    shares = [scores.recall, scores.precision, scores.f1]
    cells = ["–" if share is None else percent(share) for share in shares]
    cells.append("–" if scores.roc_auc is None else f"{scores.roc_auc:.3f}")
    return [name, *(f"{cell:>9}" for cell in cells)]


def prepare_plot_folder(folder: Path) -> None:
    """Raise, before any image is read, if plots cannot be drawn or written."""
    from dca.core.files import explain_write_errors
    from dca.plots.style import require_matplotlib

    require_matplotlib()
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


def draw(evaluation: Evaluation, dataset: Dataset, model: Path, folder: Path | None) -> list[Path]:
    """Draw the plots of an evaluation; returns their paths.

    folder: of the plots; None for one in the folder of the model, where a write error is only a warning.
    """
    from dca.model.checkpoint import PLOTS
    from dca.plots.style import can_draw
    from dca.runs.plots import folder_name, list_test_predictions, plot_evaluation

    judged = list_test_predictions(dataset.test or dataset.val or dataset.train, evaluation)
    if folder is not None:
        return plot_evaluation(judged, folder, model.name)
    if not can_draw():
        return []
    try:
        return plot_evaluation(judged, model / PLOTS / f"eval-{folder_name(dataset.name)}", model.name)
    except UserError as error:
        print_lines(f"warning: no plots: {error.problem}", err=True)
        return []
