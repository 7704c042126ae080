"""dca compare: several models on the same images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dca.cli.common import device_flags, emit, json_flag, print_lines, quiet_flag, showing
from dca.cli.tables import format_table
from dca.core.errors import UserError
from dca.core.text import format_seconds, percent, pluralize

if TYPE_CHECKING:
    from dca.model.comparison import Comparison, Disagreement, ModelResult

# Disagreements that are printed.
MOST = 10


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="MODEL MODEL... DATA")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Also write an HTML page with the images on which the models disagree.",
)
@click.option("--backbone", default=None, help="Where the backbone of all these models is now, if it was moved.")
@device_flags
@quiet_flag
@json_flag
def command(
    paths: tuple[str, ...],
    output: Path | None,
    backbone: str | None,
    device: str,
    precision: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Compare models on the labelled images of DATA: accuracy, difference to the first model, disagreements, cost.

    All models see the same images, so differences are paired: the interval is Tango's score interval, and the
    p-value is that of McNemar's exact test. DATA has the forms that `dca eval` takes.

    \b
    dca compare photos.dca photos_dca.dca more_photos/
    dca compare a.dca b.dca c.dca more_photos/ -o comparison.html
    """
    from dca.model.classifier import Classifier
    from dca.model.comparison import compare
    from dca.model.inputs import as_dataset
    from dca.training.session import Session

    *models, data = paths
    if len(models) < 2:
        raise UserError("two models and labelled images are needed", hint="dca compare MODEL MODEL DATA")
    if output is not None:
        from dca.report.page import require_jinja

        require_jinja()
    dataset = as_dataset(data, None, for_evaluation=True)
    with showing(quiet=quiet) as progress:
        session = Session(device=device, progress=progress)
        shared: dict[str, Any] = {"backbone": backbone, "precision": precision, "session": session}
        loaded = [Classifier.from_pretrained(path, **shared) for path in models]
        comparison = compare(list(zip(distinct_names(models), loaded, strict=True)), dataset, progress=progress)
    if output is not None:
        from dca.report.assemble import make_comparison_page
        from dca.report.page import write_page

        write_page(output, make_comparison_page(comparison))
    if as_json:
        emit({**comparison.to_dict(), **({"page": str(output)} if output is not None else {})})
        return
    print_lines(*format_comparison(comparison))
    if output is not None:
        print_lines(f"wrote {output}")


def distinct_names(models: list[str]) -> list[str]:
    """Folder names of the models; the paths as given where two would be the same."""
    names = [Path(model).resolve().name for model in models]
    return names if len(set(names)) == len(names) else models


def format_comparison(comparison: Comparison) -> list[str]:
    """The comparison as lines of text."""
    first, *others = comparison.models
    images, disagreements = comparison.images, comparison.disagreements
    return [
        f"accuracy on {pluralize(len(images), 'image')} of {comparison.data} (95 % interval)",
        *format_table([[model.name, _accuracy(model), _describe_cost(model)] for model in comparison.models], indent=2),
        f"difference to {first.name} on the same images (95 % interval, Tango; p: McNemar, exact)",
        *format_table([[model.name, _difference(model)] for model in others], indent=2),
        f"different answers for {pluralize(len(disagreements), 'image', of=len(images))}",
        *(f"  {images[row.index]}: {row.truth}; said {_answers(row)}" for row in disagreements[:MOST]),
        *([f"  and {rest:,} more; --json or -o FILE shows them"] if (rest := len(disagreements) - MOST) > 0 else []),
    ]


def _accuracy(model: ModelResult) -> str:
    return f"{percent(model.evaluation.accuracy):>7} ({100 * model.low:.1f} to {100 * model.high:.1f})"


def _describe_cost(model: ModelResult) -> str:
    seconds = model.cost.fit_seconds
    fit = "time of the fit not recorded" if seconds is None else f"fitted in {format_seconds(seconds)}"
    return f"{model.cost.milliseconds:.2f} ms per image, {pluralize(model.cost.parameters, 'trained value')}, {fit}"


def _difference(model: ModelResult) -> str:
    paired = model.difference
    assert paired is not None
    interval = f"{100 * paired.low:+.1f} to {100 * paired.high:+.1f}"
    points = f"{100 * paired.difference:+.1f} points ({interval}), p {paired.p_value:.3g}"
    return f"{points}; {paired.first_only} right only here, {paired.second_only} only there"


def _answers(row: Disagreement) -> str:
    return ", ".join(f"{label} {probability:.2f}" for label, probability, _ in row.answers)
