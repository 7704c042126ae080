"""dca eval: measure a model on labelled images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dca.cli.common import (
    backbone_of_model,
    columns,
    emit,
    json_flag,
    padded,
    percent,
    quiet_flag,
    running,
    showing,
)
from dca.core.wording import counted

if TYPE_CHECKING:
    from dca.engine.evaluate import Evaluation
    from dca.model.among import Among

CHARTS = ("confusion.png", "reliability.png", "classes.png")


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
    help=f"Write {', '.join(CHARTS)} into this folder. Needs matplotlib.",
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
@backbone_of_model
@running
@quiet_flag
@json_flag
@click.pass_context
def command(
    ctx: click.Context,
    model: Path,
    data: str,
    min_accuracy: float | None,
    plots: Path | None,
    among: Among | None,
    settings: tuple[str, ...],
    backbone: str | None,
    device: str,
    precision: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Measure MODEL on the labelled images of DATA.

    DATA has the forms that `dca fit` takes; where it has a test part (or else a validation part),
    only that is used. It need not hold all classes of the model. All of them compete, unless DATA is a shifted
    version of the model's dataset (ImageNet-A, ImageNet-R): these are measured among their own classes.

    \b
    dca eval photos.dca more_photos/
    dca eval photos.dca more_photos/ --min-accuracy 0.9 --json
    dca eval photos.dca more_photos/ --plots charts/
    dca eval photos.dca more_photos/ --set gamma1=100 --set gamma2=50
    """
    from dca.model.classifier import Classifier
    from dca.model.edit import change_options

    if plots is not None:
        require_writable(plots)
    classifier = Classifier.from_pretrained(model, backbone=backbone, device=device, precision=precision)
    if settings:
        classifier = change_options(classifier, settings)
    with showing(quiet=quiet) as progress:
        report = classifier.evaluate(data, among=among, progress=progress)
    if report.seen_in_training:
        seen = f"{report.seen_in_training:,} of these {report.n:,} images"
        click.echo(f"warning: the model was trained on {seen}; its accuracy on new images may be lower", err=True)
    drawn = draw(report, plots, Path(model).name) if plots is not None else []
    if as_json:
        emit({**report.to_dict(), **({"plots": [str(path) for path in drawn]} if plots is not None else {})})
    else:
        click.echo("\n".join(summary(report, len(classifier.classes_))))
        for path in drawn:
            click.echo(f"wrote {path}")
    if min_accuracy is not None and report.accuracy < min_accuracy:
        click.echo(f"below the required {percent(min_accuracy)}", err=True)
        ctx.exit(3)


def summary(report: Evaluation, known: int = 0) -> list[str]:
    """The figures for people: the whole, then the classes, the hardest first; known: classes of the model."""
    few = f", among {len(report.labels):,} of {known:,} classes" if len(report.labels) < known else ""
    head = f"accuracy {percent(report.accuracy)} on {counted(report.n, 'image')}{few}"
    head += f"; calibration error {report.ece:.3f}"
    classes = sorted(((str(label), value) for label, value in report.per_class.items()), key=lambda row: row[1])
    width = columns(label for label, _ in classes)
    return [head, *(f"  {padded(label, width)}  {percent(value):>7}" for label, value in classes)]


def require_writable(folder: Path) -> None:
    """Raise before any image is read if the charts cannot be drawn or written."""
    from dca.core.files import writing
    from dca.plots.style import need_matplotlib

    need_matplotlib()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


def draw(report: Evaluation, folder: Path, model: str) -> list[Path]:
    """Write the charts of an evaluation; returns their paths in the order of `CHARTS`."""
    import numpy as np

    from dca import plots

    predicted = report.probabilities.argmax(axis=1)
    names, size = list(map(str, report.labels)), len(report.labels)
    matrix = np.zeros((size, size), dtype=int)
    np.add.at(matrix, (report.truth, predicted), 1)
    confusion, reliability, classes = (folder / name for name in CHARTS)
    return [
        plots.confusion(matrix, names, confusion),
        plots.reliability(report.probabilities.max(axis=1), predicted == report.truth, reliability),
        plots.accuracy_bars(plots.class_results(report.truth, None, predicted, names), classes, label=model),
    ]
