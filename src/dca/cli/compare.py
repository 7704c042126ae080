"""dca compare: several models on the same images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dca.cli.common import columns, emit, json_flag, padded, quiet_flag, running, showing
from dca.core.errors import UserError
from dca.core.text import format_seconds, percent, pluralize, to_printable

if TYPE_CHECKING:
    from dca.model.comparison import Comparison, ModelResult

MOST = 10


@click.command()
@click.argument("places", nargs=-1, required=True, metavar="MODEL MODEL... DATA")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Also write an HTML page with the images on which the models disagree.",
)
@click.option("--backbone", default=None, help="Where the backbone of all these models is now, if it was moved.")
@running
@quiet_flag
@json_flag
def command(
    places: tuple[str, ...],
    output: Path | None,
    backbone: str | None,
    device: str,
    precision: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Compare models on the labelled images of DATA: paired differences to the first, disagreements, cost.

    The interval of a difference is Tango's score interval for paired shares, the p-value that of McNemar's exact
    test: both count only images that one of two models gets right. DATA has the forms that `dca eval` takes.

    \b
    dca compare photos.dca photos_dca.dca more_photos/
    dca compare a.dca b.dca c.dca more_photos/ -o comparison.html
    """
    from dca.model.classifier import Classifier
    from dca.model.comparison import compare
    from dca.model.inputs import as_dataset
    from dca.training.session import Session

    *models, data = places
    if len(models) < 2:
        raise UserError("two models and labelled images are needed", hint="dca compare MODEL MODEL DATA")
    if output is not None:
        from dca.report.page import need_jinja

        need_jinja()
    dataset = as_dataset(data, None, for_evaluation=True)
    with showing(quiet=quiet) as progress:
        session = Session(device=device, progress=progress)
        shared: dict[str, Any] = {"backbone": backbone, "precision": precision, "session": session}
        loaded = [Classifier.from_pretrained(place, **shared) for place in models]
        found = compare(list(zip(names_of(models), loaded, strict=True)), dataset, progress=progress)
    if output is not None:
        write_page(found, output)
    if as_json:
        emit({**found.to_dict(), **({"page": str(output)} if output is not None else {})})
        return
    click.echo("\n".join(lines(found)))
    if output is not None:
        click.echo(f"wrote {output}")


def names_of(models: list[str]) -> list[str]:
    """Folder names of the models; the paths as given where two would be the same."""
    names = [Path(model).resolve().name for model in models]
    return names if len(set(names)) == len(names) else models


def write_page(found: Comparison, output: Path) -> None:
    """Write the HTML page."""
    from dca.report.page import write_page
    from dca.report.pages import comparison_page

    write_page(output, comparison_page(found))


def lines(found: Comparison) -> list[str]:
    """The comparison as text."""
    first, *others = found.models
    width = columns(model.name for model in found.models)
    text = [f"accuracy on {pluralize(len(found.images), 'image')} of {to_printable(found.data)} (95 % interval)"]
    text += [f"  {padded(model.name, width)}  {_accuracy(model)}  {_cost(model)}" for model in found.models]
    text.append(f"difference to {first.name} on the same images (95 % interval, Tango; p: McNemar, exact)")
    text += [f"  {padded(model.name, width)}  {_difference(model)}" for model in others]
    text.append(f"different answers for {pluralize(len(found.disagreements), 'image', of=len(found.images))}")
    for row in found.disagreements[:MOST]:
        said = ", ".join(f"{label} {probability:.2f}" for label, probability, _ in row.answers)
        text.append(f"  {to_printable(str(found.images[row.number]))}: {row.truth}; said {said}")
    if len(found.disagreements) > MOST:
        text.append(f"  and {len(found.disagreements) - MOST:,} more; --json or -o FILE shows them")
    return text


def _accuracy(model: ModelResult) -> str:
    return f"{percent(model.evaluation.accuracy):>7} ({100 * model.low:.1f} to {100 * model.high:.1f})"


def _cost(model: ModelResult) -> str:
    seconds = model.cost.fit_seconds
    fit = "fit not recorded" if seconds is None else f"fitted in {format_seconds(seconds)}"
    return f"{model.cost.milliseconds:.2f} ms per image, {pluralize(model.cost.parameters, 'trained value')}, {fit}"


def _difference(model: ModelResult) -> str:
    one = model.difference
    assert one is not None
    points = f"{100 * one.difference:+.1f} points ({100 * one.low:+.1f} to {100 * one.high:+.1f}), p {one.p_value:.3g}"
    return f"{points}; {one.first_only} right only here, {one.second_only} only there"
