"""The screen at the end of `dca fit`.

dca fit: from a folder of photos to a model.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dca.cli.common import (
    emit,
    json_flag,
    overwrite_flag,
    pictures_flag,
    pictures_line,
    quiet_flag,
    running,
    say_how_to_draw,
    showing,
    track_option,
)
from dca.cli.completion import complete_method
from dca.core.choices import DEFAULT_METHOD, PROTOCOLS, RULES
from dca.core.errors import UserError
from dca.core.text import format_bytes, format_seconds, percent, pluralize

if TYPE_CHECKING:
    from dca.runs.run import FittedRun
    from dca.runs.spec import Spec

Result = dict[str, Any]
MOST_LABELS = 5
# Below this size a backbone sees too little for real photos.
REAL_WORK = 200


def summary(result: Result, model: str, data: str = "DATA") -> list[str]:
    """The result of a run as lines of text. model: folder of the model. data: where the images are, as it was given."""
    found = f"{result['classes']} classes, {pluralize(result['images'], 'training image')} ({_taken(result)})"
    corrected = result.get("corrections", 0)  # absent in runs of earlier versions
    public = f"recognised as {result['public']} ({result['split']}): settings published for it apply"
    trained = result["trained_parameters"]
    did = f"trained {pluralize(trained, 'parameter')}" if trained else "fitted"
    seconds, size = format_seconds(result["seconds"]), format_bytes(result["checkpoint_bytes"])
    return [
        _backbone(result),
        f"{result['dataset']}: {found}{f', {corrected:,} of them corrected in dca serve' if corrected else ''}",
        *([public] if result["public"] else []),
        *_accuracies(result),
        *_findings(result["findings"], data),
        f"{did} with {result['method']} in {seconds}; model {model} ({size})",
        *([pictures_line([f"{model}/{name}" for name in drawn])] if (drawn := result.get("pictures")) else []),
        f"next  dca predict {shlex.quote(model)} IMAGE...",
        f"      dca eval {shlex.quote(model)} FOLDER",
    ]


def _backbone(result: Result) -> str:
    """The backbone and its size, and a better one if it is small."""
    line = f"{result['backbone']}, {result['image_size']} px"
    if result["image_size"] >= REAL_WORK:
        return line
    return f"{line}: for trying things out; for real work: --backbone vit-b-16"


def _taken(result: Result) -> str:
    """Which of the training images were taken."""
    if result["shots"]:
        return f"{result['shots']} per class"
    if result["protocol"] == "base-to-new":
        return "those of the base classes"
    if result["draw"]:
        return f"those of {result['draw']}"
    return f"all but the {result['test_images']:,} held out" if result["held_out"] else "all of them"


def _accuracies(result: Result) -> list[str]:
    """The estimated accuracy, and the accuracy on each target; zero-shot CLIP beside both."""
    if "comparison" in result:
        return _compared(result["comparison"])
    lines = _estimated(result)
    if not result["targets"] and not lines:
        ways = "put some into DATA/test/<class>/, or use --estimate or --hold-out 0.2"
        return [f"accuracy not measured: no test images ({ways})"]
    for row in result["targets"]:
        where = f" of {row['name']}" if result["protocol"] != "few-shot" else ""
        gain = 100 * (row["accuracy"] - row["zero_shot_accuracy"])
        lines += [
            f"accuracy on {pluralize(row['test_images'], 'test image')}{where}",
            f"  zero-shot CLIP  {percent(row['zero_shot_accuracy']):>7}",
            f"  {result['method']:<14}  {percent(row['accuracy']):>7}   ({gain:+.1f} points)",
        ]
        if gain < 0:
            lines.append("  zero-shot CLIP was better here: try more photos per class, or another --backbone")
    if "harmonic_mean" in result:
        lines.append(f"harmonic mean of base and new  {percent(result['harmonic_mean'])}")
    return lines


def _compared(rows: list[Result]) -> list[str]:
    """Zero-shot CLIP and the methods of a comparison on the same test images, with the time of each fit."""
    lines = [f"accuracy on {pluralize(rows[0]['test_images'], 'test image')}"]
    for row in rows:
        name = {"zero_shot": "zero-shot CLIP", DEFAULT_METHOD: f"{DEFAULT_METHOD} (default)"}.get(row["method"])
        line = f"  {name or row['method']:<21}  {percent(row['accuracy']):>7}"
        if row is not rows[0]:
            gain = f"({100 * (row['accuracy'] - rows[0]['accuracy']):+.1f} points)"
            line += f"   {gain:<14}   {format_seconds(row['seconds'])}"
        lines.append(line)
    return lines


def _estimated(result: Result) -> list[str]:
    """The accuracy that was estimated on the training images, if it was."""
    found = result.get("estimate")
    if not found:
        return []
    ends = f"{100 * found['low']:.1f} to {100 * found['high']:.1f}"
    known = found["zero_shot_accuracy"]
    how = f"{found['how']} on {pluralize(found['n'], 'training image')}"
    lines = [f"estimated accuracy on new images, mean over classes ({how})"]
    if known is not None:
        lines.append(f"  zero-shot CLIP  {percent(known):>7}")
    return [*lines, f"  {result['method']:<14}  {percent(found['accuracy']):>7}   (95 % interval: {ends})"]


def _findings(found: Result, data: str) -> list[str]:
    """What the fit found out about the photos at `data`."""
    lines = [f"note: {note}" for note in found["notes"]]
    more = found["more_images"]
    if more and 100 * more["gain"] >= 0.5:
        lines.append(f"more photos: {more['shots']} per class would bring about {_points(more['gain'])}")
    if found["confused"]:
        pairs = [f"{' and '.join(row['labels'])} ({pluralize(row['images'], 'image')})" for row in found["confused"]]
        lines.append(f"often confused: {', '.join(pairs)}")
    doubtful = found["doubtful_labels"]
    if doubtful:
        command = f"dca check-labels {shlex.quote(data)}"
        lines.append(f"labels to check: {pluralize(len(doubtful), 'image')}; all of them: {command}")
        lines += [
            f"  {row['image']}: is it {row['suggested']}? (probability {row['probability']:.2f}; "
            f"{row['label']} {row['own']:.2f})"
            for row in doubtful[:MOST_LABELS]
        ]
    return lines


def _points(fraction: float) -> str:
    """A change of the accuracy in whole points.

    >>> _points(0.013), _points(0.04)
    ('+1 point', '+4 points')
    """
    whole = round(100 * fraction)
    return f"{whole:+d} point{'' if abs(whole) == 1 else 's'}"


def require_pages(ctx: click.Context, parameter: click.Parameter, value: bool) -> bool:
    """Raise before the fit if a page is asked for and cannot be made."""
    if value:
        from dca.report.page import require_jinja

        require_jinja()
    return value


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
    "--rules",
    type=click.Choice(RULES),
    default="strict",
    show_default=True,
    help="strict: settings are selected on at most 4 validation images per class; paper: on those the authors used, "
    "with their settings for the protocol, and public images without their EXIF rotation.",
)
@click.option(
    "--corrections",
    default=None,
    metavar="MODEL",
    help="Also learn from the images that were corrected in `dca serve MODEL`; none leaves them out. [of the output]",
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
@click.option(
    "--classes-per-step",
    type=click.IntRange(min=1),
    default=None,
    help="Of very many classes, let only so many compete in a step of DCA: less memory, approximate.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="An option of the method; repeatable.")
@click.option("--skip-bad", is_flag=True, help="Leave out images that cannot be read, and list them on stderr.")
@pictures_flag
@click.option(
    "--open",
    "open_it",
    is_flag=True,
    callback=require_pages,
    help="Also write report.html into the model folder and open it; see: dca report.",
)
@overwrite_flag
@track_option
@running
@quiet_flag
@json_flag
def command(
    data: str, output: Path | None, open_it: bool, device: str, quiet: bool, as_json: bool, **given: Any
) -> None:
    """Learn a classifier from DATA.

    DATA is a folder with one sub-folder per class (photos/cat/*.jpg), or with train/ and test/ of
    those, or a CSV with the columns path,label. With test images the model is compared with
    zero-shot CLIP. An interrupted fit continues when the same command is given again.

    \b
    dca fit photos/
    dca fit photos/ --shots 16 --seed 2 --backbone vit-b-16
    dca fit photos/ --hold-out 0.2 -o measured.dca
    dca fit photos/ --with dca --open -o both.dca
    dca fit photos/ --method dca --track tensorboard -o dca.dca
    dca fit photos/ --method gda --estimate -o gda.dca
    dca fit photos/ --overwrite              after corrections in: dca serve photos.dca
    dca fit labels.csv -o birds.dca --set epochs=50 --set alpha=1
    dca fit eurosat/ --shots 16 --protocol base-to-new
    dca fit imagenet/ --shots 16 --protocol domain-shift --target imagenet-sketch/
    """
    from dca.runs.run import run

    target = output or default_output(data)
    written = {name: given.pop(name) for name in ("overwrite", "gallery", "skip_bad", "pictures", "track")}
    spec = spec_of(data, target, **given)
    with resumable(target), showing(quiet=quiet) as progress:
        outcome = run(spec, target, device=device, progress=progress, **written)
    for line in outcome.result.get("skipped", []):
        click.echo(f"skipped {line}", err=True)
    if as_json:
        emit({"model": str(outcome.folder), **outcome.result})
    else:
        report(outcome, data, written["pictures"])
    if open_it:
        open_report(outcome.folder, spec, device=device, quiet=quiet)


def spec_of(
    data: str,
    target: Path,
    *,
    method: str,
    trained: str | None,
    settings: tuple[str, ...],
    classes_per_step: int | None,
    corrections: str | None,
    **arguments: Any,
) -> Spec:
    """The experiment that the arguments describe."""
    from dca.runs.spec import Spec

    if classes_per_step is not None:
        settings = (*settings, f"classes_per_step={classes_per_step}")
    if trained is not None:
        method, settings = blended(method, trained, settings)
    if arguments["draw"] is None or corrections is not None:
        arguments["corrections"] = corrections_of(corrections, target)
    return Spec(data=data, method=method, options=options_of(method, settings), **arguments)


def corrections_of(given: str | None, target: Path) -> str | None:
    """The model whose corrections are learned from: the given one, else the output if it has any."""
    from dca.datasets.corrections import read_corrections

    if given is not None:
        return None if given == "none" else given
    return str(target) if read_corrections(target) else None


def open_report(model: Path, spec: Spec, *, device: str, quiet: bool) -> None:
    """Write the page of a finished run, with its test images if there are any, and open it."""
    import dataclasses

    from dca.cli.report import show, write_report
    from dca.runs.run import task_of

    task, dataset = task_of(spec), None
    if spec.protocol == "few-shot" and task.targets:
        dataset = dataclasses.replace(task.source, train=(), val=(), test=task.targets[0].test)
    with showing(quiet=quiet) as progress:
        page = write_report(model, dataset, data=spec.data, device=device, backbone=spec.backbone, progress=progress)
    click.echo(f"wrote {page}", err=True)
    show(page)


def blended(method: str, trained: str, settings: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Method and settings for `--with`: the settings are those of the trained method, except the blend's own."""
    from dca.core.text import normalize_name
    from dca.methods.blend import Blend
    from dca.methods.registry import get_method

    if normalize_name(method) not in (normalize_name(DEFAULT_METHOD), Blend.name):
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
    values, default = asdict(kind.parse_options(settings)), asdict(kind.Options())
    named = {text.partition("=")[0].strip().replace("-", "_") for text in settings}
    return {name: value for name, value in values.items() if name in named or value != default[name]}


def report(outcome: FittedRun, data: str = "DATA", pictures: bool = False) -> None:
    """Print the result of a run on `data` as text; pictures: whether they were asked for."""
    if outcome.classifier is None:
        click.echo(f"{outcome.folder} is finished already; --overwrite fits it again", err=True)
    for warning in outcome.result["warnings"]:
        click.echo(f"warning: {warning}", err=True)
    click.echo("\n".join(summary(outcome.result, str(outcome.folder), data)))
    if pictures:
        say_how_to_draw()


@contextmanager
def resumable(target: Path) -> Iterator[None]:
    """Make an interrupt exit with 130 and say how to continue."""
    from dca.runs.folder import partial_of

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
