"""dca eval: measure a model on labelled images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dca.cli.common import (
    backbone_of_model,
    columns,
    emit,
    json_flag,
    padded,
    pictures_flag,
    pictures_line,
    quiet_flag,
    running,
    say_how_to_draw,
    showing,
)
from dca.core.errors import UserError
from dca.core.text import percent, pluralize

if TYPE_CHECKING:
    from dca.datasets.dataset import Dataset
    from dca.model.classifier import Among
    from dca.training.evaluate import Evaluation


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", type=click.Path())
@click.option(
    "--min-accuracy",
    type=click.FloatRange(0, 1),
    default=None,
    help="Exit with 3 when the accuracy is below this fraction.",
)
@click.option(
    "--plots",
    type=click.Path(path_type=Path),
    default=None,
    metavar="DIR",
    help="Draw the pictures into this folder instead of MODEL/pictures/eval-DATA.",
)
@click.option(
    "--among",
    type=click.Choice(["all", "target"]),
    default=None,
    help="Classes that compete: all of the model, or only those of DATA.  [default: all; target for ImageNet-A and -R]",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Another value for an option of the model's head, such as gamma1; repeatable. The model is not changed.",
)
@pictures_flag
@backbone_of_model
@running
@quiet_flag
@json_flag
def command(
    model: Path,
    data: str,
    min_accuracy: float | None,
    plots: Path | None,
    among: Among | None,
    settings: tuple[str, ...],
    pictures: bool,
    quiet: bool,
    as_json: bool,
    **place: Any,
) -> None:
    """Measure MODEL on the labelled images of DATA.

    DATA has the forms that `dca fit` takes; where it has a test part (or else a validation part),
    only that is used. It need not hold all classes of the model. All of them compete, unless DATA is a shifted
    version of the model's dataset (ImageNet-A, ImageNet-R): these are measured among their own classes.

    \b
    dca eval photos.dca more_photos/
    dca eval photos.dca more_photos/ --min-accuracy 0.9 --json
    dca eval photos.dca more_photos/ --no-pictures
    dca eval photos.dca more_photos/ --set gamma1=100 --set gamma2=50
    """
    from dca.model.classifier import Classifier
    from dca.model.inputs import as_dataset

    if plots is not None:
        require_writable(plots)
    classifier = Classifier.from_pretrained(model, **place)
    if settings:
        classifier = classifier.with_options(*settings)
    dataset = as_dataset(data, None, for_evaluation=True)
    with showing(quiet=quiet) as progress:
        report = classifier.evaluate(dataset, among=among, progress=progress)
    if report.seen_in_training:
        seen = f"{report.seen_in_training:,} of these {report.n:,} images"
        click.echo(f"warning: the model was trained on {seen}; its accuracy on new images may be lower", err=True)
    drawn = draw(report, dataset, model, plots) if plots is not None or pictures else []
    show(report, drawn, known=len(classifier.classes_), named=plots is not None, as_json=as_json)
    if pictures and not as_json:
        say_how_to_draw()
    if min_accuracy is not None and report.accuracy < min_accuracy:
        click.echo(f"below the required {percent(min_accuracy)}", err=True)
        raise click.exceptions.Exit(3)


def show(report: Evaluation, drawn: Sequence[Path], *, known: int, named: bool, as_json: bool) -> None:
    """Print the figures and the pictures. known: classes of the model. named: whether the user named their folder."""
    if as_json:
        names = [str(path) for path in drawn]
        emit({**report.to_dict(), **({"plots" if named else "pictures": names} if drawn else {})})
        return
    click.echo("\n".join(summary(report, known)))
    if named:
        click.echo("\n".join(f"wrote {path}" for path in drawn))
    elif drawn:
        click.echo(pictures_line([str(path) for path in drawn]))


def summary(report: Evaluation, known: int = 0) -> list[str]:
    """The figures for people: the whole, then the classes, the hardest first; known: classes of the model."""
    few = f", among {len(report.labels):,} of {known:,} classes" if len(report.labels) < known else ""
    head = f"accuracy {percent(report.accuracy)} on {pluralize(report.n, 'image')}{few}"
    if percent(report.mean_over_classes) != percent(report.accuracy):
        head += f"; mean over classes {percent(report.mean_over_classes)}"
    head += f"; calibration error {report.ece:.3f}"
    classes = sorted(((str(label), value) for label, value in report.per_class.items()), key=lambda row: row[1])
    width = columns(label for label, _ in classes)
    return [head, *(f"  {padded(label, width)}  {percent(value):>7}" for label, value in classes)]


def require_writable(folder: Path) -> None:
    """Raise before any image is read if the charts cannot be drawn or written."""
    from dca.core.files import explain_write_errors
    from dca.plots.style import need_matplotlib

    need_matplotlib()
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


def draw(report: Evaluation, dataset: Dataset, model: Path, folder: Path | None) -> list[Path]:
    """Write the pictures of an evaluation; returns their paths.

    folder: where to, or None for the folder of the model; if nothing can be written there, that is a warning.
    """
    from dca.model.checkpoint import PICTURES
    from dca.runs.pictures import can_draw, folder_name, judged_test, plot_evaluation

    judged = judged_test(dataset.test or dataset.val or dataset.train, report)
    if folder is not None:
        return plot_evaluation(judged, folder, model.name)
    if not can_draw():
        return []
    try:
        return plot_evaluation(judged, model / PICTURES / f"eval-{folder_name(dataset.name)}", model.name)
    except UserError as error:
        click.echo(f"warning: no pictures: {error.problem}", err=True)
        return []
