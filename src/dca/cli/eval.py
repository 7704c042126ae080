"""dca eval: how good is a model."""

from __future__ import annotations

from pathlib import Path

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
from dca.core.errors import counted


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data")
@click.option(
    "--min-accuracy",
    type=click.FloatRange(0, 1),
    default=None,
    help="Exit with 3 when the accuracy is below this fraction.",
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
    backbone: str | None,
    device: str,
    precision: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Measure MODEL on the labelled images of DATA.

    DATA has the forms that `dca fit` takes; where it has a test part (or else a validation part),
    only that is used. It need not hold all classes of the model.

    \b
    dca eval photos.dca more_photos/
    dca eval photos.dca more_photos/ --min-accuracy 0.9 --json
    """
    from dca.model.classifier import Classifier

    classifier = Classifier.from_pretrained(model, backbone=backbone, device=device, precision=precision)
    with showing(quiet=quiet) as progress:
        report = classifier.evaluate(data, progress=progress)
    if report.trained_on:
        seen = f"{report.trained_on:,} of these images ({report.n:,} in all)"
        click.echo(f"warning: the model was trained on {seen}; accuracy on new ones may be lower", err=True)
    if as_json:
        emit(report.to_dict())
    else:
        click.echo(
            f"accuracy {percent(report.accuracy)} on {counted(report.n, 'image')}; calibration error {report.ece:.3f}"
        )
        width = columns(report.per_class)
        for name, accuracy in sorted(report.per_class.items(), key=lambda row: row[1]):
            click.echo(f"  {padded(name, width)}  {percent(accuracy):>7}")
    if min_accuracy is not None and report.accuracy < min_accuracy:
        click.echo(f"below the required {percent(min_accuracy)}", err=True)
        ctx.exit(3)
