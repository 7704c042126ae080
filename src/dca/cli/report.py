"""dca report: one page about a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dca.cli.common import backbone_of_model, device_flags, print_lines, quiet_flag, showing
from dca.core.progress import Progress, silent
from dca.core.text import format_bytes

if TYPE_CHECKING:
    from dca.datasets.dataset import Dataset


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Where the page goes.  [report.html in MODEL]",
)
@click.option("--open", "open_it", is_flag=True, help="Open the page in the browser.")
@backbone_of_model
@device_flags
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
    what the fit knows: predictions for training images by models that have not seen them.

    \b
    dca report photos.dca
    dca report photos.dca more_photos/ --open
    dca report photos.dca more_photos/ -o test-report.html
    """
    from dca.model.inputs import as_dataset
    from dca.report.page import require_jinja

    require_jinja()
    _require_model(model)
    with showing(quiet=quiet) as progress:
        page = write_report(
            model,
            None if data is None else as_dataset(data, None, for_evaluation=True),
            data=data or "",
            output=output,
            backbone=backbone,
            device=device,
            precision=precision,
            progress=progress,
        )
    print_lines(f"wrote {page} ({format_bytes(page.stat().st_size)})")
    if open_it:
        open_page(page)


def _require_model(path: Path) -> None:
    """Raise if there is nothing that could be a model, finished or not."""
    from dca.core.errors import UserError
    from dca.core.hints import fit_first, report_runs
    from dca.model.checkpoint import CONFIG, SPEC

    if not any((path / name).exists() for name in (CONFIG, SPEC)):
        problem = "holds no model" if path.is_dir() else "is no folder of a model"
        raise UserError(f"{path} {problem}", hint=[fit_first(), report_runs()])


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
    from dca.model.checkpoint import REPORT
    from dca.model.classifier import Classifier
    from dca.report.assemble import make_model_page
    from dca.report.page import write_page
    from dca.training.session import Session

    session = Session(device=device, progress=progress)
    classifier = Classifier.from_pretrained(
        model, backbone=backbone, device=device, precision=precision, session=session
    )
    name = model.resolve().name
    html = make_model_page(classifier, name, session, folder=model, dataset=dataset, data=data, progress=progress)
    return write_page(output or model / REPORT, html)


def open_page(page: Path) -> None:
    """Open a page in the browser; say where it is if there is none."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        print_lines(f"no browser found; open {page.resolve()}", err=True)
