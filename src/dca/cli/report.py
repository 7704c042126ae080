"""dca report: one page about a model, or a report about a folder of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dca.cli.common import backbone_of_model, quiet_flag, running, showing
from dca.core.progress import Progress, silent
from dca.core.text import format_bytes

if TYPE_CHECKING:
    from dca.datasets.dataset import Dataset


@click.command()
@click.argument("model", metavar="MODEL|RUNS", type=click.Path(path_type=Path))
@click.argument("data", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE|DIR",
    help="Where the page goes, for RUNS the folder.  [report.html in MODEL, or report/ in RUNS]",
)
@click.option("--open", "open_it", is_flag=True, help="Open the page in the browser.")
@click.option(
    "--spec",
    "specifications",
    multiple=True,
    metavar="SPEC",
    help="RUNS: name rows as the grids of this specification and list its missing cells; may be given several times.",
)
@click.option(
    "--selection",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="RUNS: show the sha256 of this file, which holds the options that were selected.",
)
@backbone_of_model
@running
@quiet_flag
def command(
    model: Path,
    data: str | None,
    output: Path | None,
    open_it: bool,
    specifications: tuple[str, ...],
    selection: Path | None,
    backbone: str | None,
    device: str,
    precision: str,
    quiet: bool,
) -> None:
    """Write one HTML page about MODEL, which needs no network and no other file; or a report about a folder of RUNS.

    With DATA, the model is measured on its images (the test part, where there is one). Without, the page shows
    what the fit knows: predictions for training images that were left out.

    RUNS is what `dca sweep` leaves. The report is a folder with index.html, report.md, tables (LaTeX, CSV) and
    figures (SVG): accuracies, paired differences, ablations, costs, and which claims of the DCA paper hold.

    \b
    dca report photos.dca
    dca report photos.dca more_photos/ --open
    dca report photos.dca more_photos/ -o test-report.html
    dca report runs/ -o report/ --spec my.toml
    """
    from dca.report.page import require_jinja
    from dca.study.index import is_results_file, is_runs_folder

    require_jinja()
    if is_results_file(model) or is_runs_folder(model):
        _refuse({"DATA": data, "--backbone": backbone}, f"{model} is a folder of runs")
        page = write_runs(model, output, specifications, selection)
    else:
        _require_model(model)
        _refuse({"--spec": specifications, "--selection": selection}, f"{model} is no folder of runs")
        with showing(quiet=quiet) as progress:
            page = write_report(
                model,
                _dataset(data),
                data=data or "",
                output=output,
                backbone=backbone,
                device=device,
                precision=precision,
                progress=progress,
            )
    click.echo(f"wrote {page} ({format_bytes(page.stat().st_size)})")
    if open_it:
        show(page)


def _require_model(place: Path) -> None:
    """Raise if there is nothing that could be a model, finished or not."""
    from dca.core.errors import UserError
    from dca.core.hints import fit_first, run_sweep
    from dca.model.checkpoint import CONFIG, SPEC

    if not any((place / name).exists() for name in (CONFIG, SPEC)):
        problem = "holds neither a model nor finished runs" if place.is_dir() else "is no folder of a model or of runs"
        raise UserError(f"{place} {problem}", hint=[fit_first(), run_sweep()])


def _refuse(arguments: dict[str, object], why: str) -> None:
    """Raise if an argument is given that the other kind of report has."""
    from dca.core.errors import UserError

    if given := " and ".join(name for name, value in arguments.items() if value):
        raise UserError(f"{given} cannot be used here: {why}.", hint=f"leave out {given}")


def _dataset(data: str | None) -> Dataset | None:
    from dca.model.inputs import as_dataset

    return None if data is None else as_dataset(data, None, for_evaluation=True)


def write_runs(runs: Path, output: Path | None, specifications: tuple[str, ...], selection: Path | None) -> Path:
    """Write the report about a folder of runs; returns its page."""
    from dca.study.report.folder import write_runs_report
    from dca.study.report.subject import subject_of

    subject = subject_of(runs, specifications=specifications, selection=selection)
    return write_runs_report(subject, output or runs / "report")


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


def show(page: Path) -> None:
    """Open a page in the browser; say where it is if there is none."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        click.echo(f"no browser found; open {page.resolve()}", err=True)
