"""dca report: one page about a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dca.cli.common import backbone_of_model, quiet_flag, running, showing
from dca.core.progress import Progress, silent
from dca.core.wording import bytes_text

if TYPE_CHECKING:
    from dca.data.dataset import Dataset


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Where the page goes.  [report.html in the model folder]",
)
@click.option("--open", "open_it", is_flag=True, help="Open the page in the browser.")
@backbone_of_model
@running
@quiet_flag
def command(
    model: Path,
    data: str | None,
    output: Path | None,
    open_it: bool,
    backbone: str | None,
    device: str,
    precision: str,
    quiet: bool,
) -> None:
    """Write one HTML page about MODEL, which needs no network and no other file.

    With DATA, the model is measured on its images (the test part, where there is one). Without, the page shows
    what the fit knows: predictions for training images that were left out.

    \b
    dca report photos.dca
    dca report photos.dca more_photos/ --open
    dca report photos.dca more_photos/ -o test-report.html
    """
    from dca.model.inputs import as_dataset
    from dca.report.page import need_jinja

    need_jinja()
    dataset = None if data is None else as_dataset(data, None, measuring=True)
    with showing(quiet=quiet) as progress:
        page = write_report(
            model,
            dataset,
            data=data or "",
            output=output,
            backbone=backbone,
            device=device,
            precision=precision,
            progress=progress,
        )
    click.echo(f"wrote {page} ({bytes_text(page.stat().st_size)})")
    if open_it:
        show(page)


def write_report(
    model: Path,
    dataset: Dataset | None,
    *,
    data: str,
    output: Path | None = None,
    backbone: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    progress: Progress = silent,
) -> Path:
    """Write the page of a model folder; returns its path."""
    from dca.engine.session import Session
    from dca.model.checkpoint import REPORT
    from dca.model.classifier import Classifier
    from dca.report.model_page import model_page
    from dca.report.page import write

    session = Session(device=device, progress=progress)
    classifier = Classifier.from_pretrained(
        model, backbone=backbone, device=device, precision=precision, session=session
    )
    name = model.resolve().name
    html = model_page(classifier, name, session, folder=model, dataset=dataset, data=data, progress=progress)
    return write(output or model / REPORT, html)


def show(page: Path) -> None:
    """Open a page in the browser; say where it is if there is none."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        click.echo(f"no browser found; open {page.resolve()}", err=True)
