"""dca fit: from a folder of photos to a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dca.cli.common import emit, json_flag, overwrite_flag, quiet_flag, running, showing
from dca.cli.completion import complete_method
from dca.cli.fit_report import summary
from dca.core.choices import DEFAULT_METHOD, PROTOCOLS, SELECTIONS
from dca.core.errors import UserError

if TYPE_CHECKING:
    from dca.experiment.run import Outcome


@click.command(epilog="Options of a method: dca methods show NAME.")
@click.argument("data", type=click.Path())
@click.option(
    "--method",
    default=DEFAULT_METHOD,
    show_default=True,
    shell_complete=complete_method,
    help="Name of the method; see: dca methods.",
)
@click.option(
    "--with",
    "trained",
    default=None,
    metavar="METHOD",
    shell_complete=complete_method,
    help="Also train this method, such as dca, and take it in where it helps; --set then sets its options.",
)
@click.option("--shots", type=click.IntRange(min=1), default=None, help="Images per class to draw; all if not given.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Decides the draw and the initial values."
)
@click.option(
    "--hold-out",
    type=click.FloatRange(0, 0.9),
    default=0.0,
    metavar="SHARE",
    help="Test on this share of each class's images, where DATA has no test part.",
)
@click.option(
    "--draw", default=None, metavar="FILE", help="Take exactly the images of this file; see: dca datasets draw."
)
@click.option(
    "--backbone",
    default="mini",
    show_default=True,
    help="mini (inside this package), vit-b-16, vit-b-32, vit-l-14, laion-vit-b-16, ..., a hub id, or a path.",
)
@click.option(
    "--protocol",
    type=click.Choice(PROTOCOLS),
    default="few-shot",
    show_default=True,
    help="What is tested: the same classes, unseen classes, other datasets, or shifted versions of DATA.",
)
@click.option(
    "--target", "targets", multiple=True, metavar="DATA", help="Another dataset to test on; repeatable. See --protocol."
)
@click.option(
    "--selection",
    type=click.Choice(SELECTIONS),
    default="strict",
    show_default=True,
    help="strict: settings are selected on at most 4 validation images per class; paper: on those the authors used, "
    "with their settings for the protocol, and public images without their EXIF rotation.",
)
@click.option("--estimate", is_flag=True, help="Estimate the accuracy on the training images, without a test part.")
@click.option(
    "--calibrate/--no-calibrate", default=True, help="Fit a temperature on estimated predictions, or leave it out. [on]"
)
@click.option(
    "--gallery/--no-gallery",
    default=True,
    help="Keep a thumbnail of each training image in the model, to show the nearest ones, or leave them out. [on]",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), default=None, help="Model folder. [DATA.dca]")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="An option of the method; repeatable.")
@overwrite_flag
@running
@quiet_flag
@json_flag
def command(
    data: str,
    method: str,
    trained: str | None,
    output: Path | None,
    settings: tuple[str, ...],
    overwrite: bool,
    gallery: bool,
    device: str,
    quiet: bool,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Learn a classifier from DATA.

    DATA is a folder with one sub-folder per class (photos/cat/*.jpg), or with train/ and test/ of
    those, or a CSV with the columns path,label. With test images the model is compared with
    zero-shot CLIP. An interrupted fit continues when the same command is given again.

    \b
    dca fit photos/
    dca fit photos/ --shots 16 --seed 2 --backbone vit-b-16
    dca fit photos/ --hold-out 0.2
    dca fit photos/ --with dca
    dca fit photos/ --method gda --estimate
    dca fit labels.csv -o birds.dca --set epochs=50 --set alpha=1
    dca fit eurosat/ --shots 16 --protocol base-to-new
    dca fit imagenet/ --shots 16 --protocol domain-shift --target imagenet-sketch/
    """
    from dca.experiment.run import run
    from dca.experiment.spec import Spec

    if trained is not None:
        method, settings = blended(method, trained, settings)
    spec = Spec(data=data, method=method, options=options_of(method, settings), **arguments)
    target = output or default_output(data)
    with resumable(target), showing(quiet=quiet) as progress:
        outcome = run(spec, target, device=device, overwrite=overwrite, gallery=gallery, progress=progress)
    if as_json:
        emit({"model": str(outcome.folder), **outcome.result})
    else:
        report(outcome)


def blended(method: str, trained: str, settings: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Method and settings for `--with`: the settings are those of the trained method, except the blend's own."""
    from dca.core.wording import fold
    from dca.methods.blend import Blend
    from dca.methods.registry import get_method

    if fold(method) not in (fold(DEFAULT_METHOD), Blend.name):
        raise UserError(
            f"--with takes a method in beside {DEFAULT_METHOD}, not beside {method}", hint="leave out --method"
        )
    own = [pair for pair in settings if pair.partition("=")[0].strip() == "folds"]
    inner = json.dumps([pair for pair in settings if pair not in own])
    return Blend.name, (f"trained={get_method(trained).name}", f"trained_options={inner}", *own)


def options_of(method: str, settings: tuple[str, ...]) -> dict[str, Any]:
    """The options that `--set` gives, as values; also those that it sets to their defaults."""
    from dataclasses import asdict

    from dca.methods.registry import get_method

    kind = get_method(method)
    values, default = asdict(kind.choose(settings)), asdict(kind.Options())
    named = {text.partition("=")[0].strip().replace("-", "_") for text in settings}
    return {name: value for name, value in values.items() if name in named or value != default[name]}


def report(outcome: Outcome) -> None:
    """Print the result of a run as text."""
    if outcome.classifier is None:
        click.echo(f"{outcome.folder} is finished already; --overwrite fits it again", err=True)
    for warning in outcome.result["warnings"]:
        click.echo(f"warning: {warning}", err=True)
    click.echo("\n".join(summary(outcome.result, str(outcome.folder))))


@contextmanager
def resumable(target: Path) -> Iterator[None]:
    """Make an interrupt exit with 130 and say how to continue."""
    from dca.experiment.run_folder import partial_of

    try:
        yield
    except KeyboardInterrupt:
        partial = partial_of(target)
        way_on = f"; the same command continues from {partial}" if partial.exists() else ""
        click.echo(f"interrupted{way_on}", err=True)
        raise click.exceptions.Exit(130) from None


def default_output(data: str) -> Path:
    """`photos/` and `photos.csv` -> photos.dca in the working folder; for `.`, beside that folder."""
    path = Path(data).expanduser()
    name = path.resolve().name or "images"
    place = Path("..") if path.is_dir() and path.resolve() == Path.cwd() else Path()
    return place / f"{Path(name).stem if path.is_file() else name}.dca"
