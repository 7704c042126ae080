"""dca fit: from a folder of photos to a model."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dca.cli.common import (
    bytes_text,
    emit,
    json_flag,
    overwrite_flag,
    percent,
    quiet_flag,
    running,
    seconds_text,
    showing,
)
from dca.core.errors import counted

if TYPE_CHECKING:
    from dca.experiment.run import Outcome, Spec


@click.command(epilog="Options of a method: dca methods show NAME.")
@click.argument("data")
@click.option("--method", default="dca", show_default=True, help="How to learn; see: dca methods.")
@click.option("--shots", type=click.IntRange(min=1), default=None, help="Images a class to draw; all if not given.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Decides the draw and the start."
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
    type=click.Choice(["strict", "paper"]),
    default="strict",
    show_default=True,
    help="Validation images a method may select on: at most 4 a class, or those its authors took.",
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
    shots: int | None,
    seed: int,
    hold_out: float,
    draw: str | None,
    backbone: str,
    protocol: str,
    output: Path | None,
    settings: tuple[str, ...],
    overwrite: bool,
    device: str,
    precision: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Learn a classifier from DATA.

    DATA is a folder with one sub-folder a class (photos/cat/*.jpg), or with train/ and test/ of
    those, or a CSV with the columns path,label. With test images the model is compared with
    zero-shot CLIP. An interrupted fit continues when the same command is given again.

    \b
    dca fit photos/
    dca fit photos/ --shots 16 --seed 2 --backbone vit-b-16
    dca fit photos/ --hold-out 0.2
    dca fit labels.csv -o birds.dca --set epochs=50 --set alpha=1
    """
    from dca.experiment.run import run

    spec = specify(
        method, settings, data=data, shots=shots, seed=seed, hold_out=hold_out, draw=draw, backbone=backbone,
        protocol=protocol, precision=precision,
    )  # fmt: skip
    target = output or default_output(data)
    with resumable(target), showing(quiet=quiet) as progress:
        outcome = run(spec, target, device=device, overwrite=overwrite, progress=progress)
    if as_json:
        emit(outcome.result)
    else:
        report(outcome)


def report(outcome: Outcome) -> None:
    """What came of a run, for people."""
    if outcome.classifier is None:
        click.echo(f"{outcome.folder} is finished already; --overwrite fits it again", err=True)
    click.echo("\n".join(summary(outcome.result)))


@contextmanager
def resumable(target: Path) -> Iterator[None]:
    """Make an interrupt exit with 130 and say how to go on."""
    from dca.experiment.run import partial_of

    try:
        yield
    except KeyboardInterrupt:
        partial = partial_of(target)
        way_on = f"; the same command continues from {partial}" if partial.exists() else ""
        click.echo(f"interrupted{way_on}", err=True)
        raise click.exceptions.Exit(130) from None


def specify(method: str, settings: tuple[str, ...], **rest: Any) -> Spec:
    """The specification that the arguments ask for, with the options that differ from their defaults."""
    from dca.experiment.run import Spec
    from dca.methods.registry import get_method

    kind = get_method(method)
    given, default = kind.choose(settings), kind.Options()
    changed = {k: v for k, v in dataclasses.asdict(given).items() if v != getattr(default, k)}
    return Spec(method=kind.name, options=changed, **rest)


def default_output(data: str) -> Path:
    """`photos/` and `photos.csv` -> photos.dca in the working folder; for `.`, beside that folder."""
    path = Path(data).expanduser()
    name = path.resolve().name or "images"
    place = Path("..") if path.is_dir() and path.resolve() == Path.cwd() else Path()
    return place / f"{Path(name).stem if path.is_file() else name}.dca"


def summary(result: dict[str, Any]) -> list[str]:
    """What a person wants to know after a fit."""
    shots = f"{result['shots']} a class" if result["shots"] else "all of them"
    if result.get("draw"):  # which runs of the first versions do not name
        shots = f"those of {result['draw']}"
    lines = [
        f"{result['dataset']}: {result['classes']} classes, {counted(result['images'], 'training image')} ({shots})"
    ]
    if result["accuracy"] is not None:
        gain = 100 * (result["accuracy"] - result["zero_shot_accuracy"])
        lines += [
            f"accuracy on {counted(result['test_images'], 'test image')}",
            f"  zero-shot CLIP  {percent(result['zero_shot_accuracy']):>7}",
            f"  {result['method']:<14}  {percent(result['accuracy']):>7}   ({gain:+.1f} points)",
        ]
    else:
        lines.append("accuracy not measured: no test images (put some into DATA/test/<class>/, or use --hold-out 0.2)")
    size = bytes_text(result["checkpoint_bytes"])
    lines += [
        f"trained {counted(result['trained_parameters'], 'parameter')} in {seconds_text(result['seconds'])}; "
        f"model {result['model']} ({size})",
        f"next  dca predict {shlex.quote(result['model'])} IMAGE...",
        f"      dca eval {shlex.quote(result['model'])} FOLDER",
    ]
    return lines
