"""dca predict: the classes of images."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dca.cli.common import (
    backbone_of_model,
    columns,
    emit,
    json_flag,
    only_results_on_stdout,
    padded,
    quiet_flag,
    running,
    showing,
)
from dca.core.errors import UserError
from dca.core.text import NONE_OF_THESE, format_seconds, pluralize

if TYPE_CHECKING:
    from dca.core.progress import Progress
    from dca.model.predict import PredictionOptions, PredictionSummary


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("images", nargs=-1, required=True, type=click.Path())
@click.option("--top", type=click.IntRange(min=1), default=1, show_default=True, help="Classes to name per image.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Write one row per image to this .csv, .jsonl or .parquet file, or with --engine ray to files in this folder; "
    "a killed command can be given again.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where images are predicted: on this machine, or on an existing Ray cluster.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["csv", "jsonl", "parquet"]),
    default=None,
    help="Files that --engine ray writes. [csv]",
)
@click.option(
    "--per-shard",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="Images per file that --engine ray writes; what a lost worker repeats at most. [1024]",
)
@click.option(
    "--copy-to",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    metavar="DIR",
    help="Copy the images into one folder per predicted class; needs -o.",
)
@click.option("--overwrite", is_flag=True, help="Replace the file of -o, and drop unfinished rows of another command.")
@click.option("--csv", "as_csv", is_flag=True, help="Print path,label,probability rows, safe to open in a spreadsheet.")
@click.option(
    "--reject",
    type=click.FloatRange(0, 1),
    default=None,
    metavar="P",
    help=f"Answer '{NONE_OF_THESE}' for images whose p-value is below P; about a share P of good images is lost.",
)
@click.option(
    "--set-coverage",
    "coverage",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=None,
    metavar="C",
    help="Also print the set of classes that contains the right one with probability C or so; see below.",
)
@click.option("--skip-bad", is_flag=True, help="List images that cannot be read on stderr and predict the others.")
@backbone_of_model
@running
@quiet_flag
@json_flag
def command(
    model: Path,
    images: tuple[str, ...],
    top: int,
    output: Path | None,
    engine: str,
    reject: float | None,
    coverage: float | None,
    skip_bad: bool,
    quiet: bool,
    as_csv: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Predict the classes of IMAGES: files, folders (with all images below them), or - for paths on stdin.

    \b
    dca predict photos.dca new.jpg
    dca predict photos.dca holiday/ --top 3
    dca predict photos.dca holiday/ -o holiday.csv --copy-to sorted/
    dca predict photos.dca archive/ --engine ray -o labels/
    find . -name '*.jpg' | dca predict photos.dca - --csv > labels.csv
    dca predict photos.dca holiday/ --reject 0.05 --set-coverage 0.9

    With -o, any number of images is predicted with little memory. If the command is killed, give it
    again: images that have a row are not opened twice, and the file appears when it is complete.
    Images that cannot be read have a row with the reason; without --skip-bad the exit code is then 2.

    The p-value says how usual an image is among the training images: small for images of none of the
    classes. Sets of the default method contain the right class of new, similar images with probability
    2C - 1 at least (jackknife+), and about C in practice.

    In CSV, a path or label that a spreadsheet would run as a formula (it begins with = + - or @)
    gets an apostrophe in front; --json prints it as it is.
    """
    from dca.model.predict import PredictionOptions

    asked = {name: given[name] for name in ("copy_to", "kind", "per_shard")}
    check_options(images, output, engine, as_csv=as_csv, as_json=as_json, **asked)
    paths, wanted = expand(images, skip_bad=skip_bad or output is not None), PredictionOptions(top, reject, coverage)
    with showing(quiet=quiet or len(paths) == 1) as progress:
        if output is not None:
            done = write(model, paths, output, wanted, engine, progress=progress, **given)
        else:
            place = {name: given[name] for name in ("backbone", "device", "precision")}
            rows = predict_all(model, paths, wanted, progress, skip_bad=skip_bad, **place)
    if output is not None:
        raise click.exceptions.Exit(report(done, output, skip_bad=skip_bad, quiet=quiet, as_json=as_json))
    show(rows, as_csv=as_csv, as_json=as_json)


def show(rows: Sequence[dict[str, Any]], *, as_csv: bool, as_json: bool) -> None:
    """Print the rows in one of three forms."""
    if as_json:
        emit(rows)
    elif as_csv:
        write_csv(rows)
    else:
        click.echo("\n".join(lines(rows)))


def check_options(
    images: Sequence[str],
    output: Path | None,
    engine: str,
    *,
    copy_to: Path | None,
    kind: str | None,
    per_shard: int | None,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Raise, before anything is loaded, for options that do not go together."""
    from dca.model.prediction_files import require_outside, require_writable_kind

    if as_csv and as_json:
        raise UserError("--csv and --json cannot go together", hint="choose one of them")
    if engine == "ray":
        check_cluster_options(output, copy_to, as_csv=as_csv)
        return
    if kind is not None or per_shard is not None:
        option = "--format" if kind is not None else "--per-shard"
        raise UserError(f"{option} is for --engine ray", hint=[f"leave out {option}", "add --engine ray"])
    if copy_to is not None and output is None:
        raise UserError("--copy-to needs -o, which remembers what was copied", hint="add -o labels.csv")
    if copy_to is not None:
        require_outside(copy_to, images)
    if output is not None and require_writable_kind(output) != ".csv" and as_csv:
        raise UserError(f"--csv and -o {output} cannot go together", hint="leave out --csv")


def check_cluster_options(output: Path | None, copy_to: Path | None, *, as_csv: bool) -> None:
    """Raise for options that do not go together with `--engine ray`."""
    if output is None:
        raise UserError("--engine ray needs a folder to write to", hint="add -o labels/")
    if output.is_file() or output.suffix in (".csv", ".jsonl", ".parquet"):
        problem = f"--engine ray writes several files, and -o {output} names one"
        raise UserError(
            problem, hint=f"give a folder, such as -o {output.with_suffix('')}/, and --format csv or parquet"
        )
    if copy_to is not None or as_csv:
        option = "--csv" if as_csv else "--copy-to"
        raise UserError(f"{option} and --engine ray cannot go together", hint=f"leave out {option}")


def write(
    model: Path, paths: Sequence[str], output: Path, wanted: PredictionOptions, engine: str, **given: Any
) -> PredictionSummary:
    """Predict into a file or, on a cluster, into files of a folder; an interrupt says how to continue."""
    try:
        return (write_shards if engine == "ray" else write_file)(model, paths, output, wanted, **given)
    except KeyboardInterrupt:
        where = output if engine == "ray" else f"{output}.partial"
        click.echo(f"interrupted; the same command continues from {where}", err=True)
        raise click.exceptions.Exit(130) from None


def write_file(
    model: Path,
    paths: Sequence[str],
    output: Path,
    wanted: PredictionOptions,
    *,
    copy_to: Path | None,
    overwrite: bool,
    kind: None,
    per_shard: None,
    progress: Progress,
    **place: Any,
) -> PredictionSummary:
    """Predict into one file on this machine."""
    from dca.core.device import keep_freed_memory
    from dca.model.classifier import Classifier
    from dca.model.predict import predict_to_file

    keep_freed_memory()
    classifier = Classifier.from_pretrained(model, **place)
    return predict_to_file(classifier, paths, output, wanted, copy_to=copy_to, overwrite=overwrite, progress=progress)


def write_shards(
    model: Path,
    paths: Sequence[str],
    output: Path,
    wanted: PredictionOptions,
    *,
    copy_to: None,
    overwrite: bool,
    kind: str | None,
    per_shard: int | None,
    progress: Progress,
    **place: Any,
) -> PredictionSummary:
    """Predict into the files of a folder on a Ray cluster."""
    from dca.model.predict_ray import PER_SHARD, Source, predict_on_ray

    asked: dict[str, Any] = {"kind": f".{kind or 'csv'}", "per_shard": per_shard or PER_SHARD, "overwrite": overwrite}
    with only_results_on_stdout():
        return predict_on_ray(Source(str(model), **place), paths, output, wanted, progress=progress, **asked)


def report(done: PredictionSummary, output: Path, *, skip_bad: bool, quiet: bool, as_json: bool) -> int:
    """Say what was written; returns the exit code."""
    for line in done.listed:
        click.echo(f"{'skipped' if skip_bad else 'cannot read'} {line}", err=True)
    if done.unreadable > len(done.listed):
        click.echo(f"... and {done.unreadable - len(done.listed):,} more; see the error column of {output}", err=True)
    failed = (bool(done.unreadable) and not skip_bad) or done.unreadable == done.images
    if as_json:
        facts = {"images": done.images, "predicted_now": done.predicted, "unreadable": done.unreadable}
        emit({"output": str(output), **facts, "seconds": round(done.seconds, 2)})
    elif not quiet:
        click.echo("\n".join(ending(done, output)))
    return 2 if failed else 0


def ending(done: PredictionSummary, output: Path) -> list[str]:
    """What a finished file holds, for people."""
    rate = f" ({done.predicted / done.seconds:.1f} images/s)" if done.predicted and done.seconds else ""
    before = f", {done.images - done.predicted:,} of them before" if done.predicted < done.images else ""
    lines = [f"{pluralize(done.images, 'image')} in {output}{before}; {format_seconds(done.seconds)}{rate}"]
    if done.unreadable:
        lines.append(f"{pluralize(done.unreadable, 'image')} cannot be read: the column error says why")
    return lines


def predict_all(
    model: Path, paths: Sequence[str], wanted: PredictionOptions, progress: Progress, *, skip_bad: bool, **place: Any
) -> list[dict[str, Any]]:
    """One row per image that can be read; the others are listed on stderr, or an error without `skip_bad`."""
    from dca.images.decode import Unreadable, unreadable_error
    from dca.model.classifier import Classifier
    from dca.model.predict import predict_stream, prediction_row, require_rejecting

    classifier = Classifier.from_pretrained(model, **place)
    require_rejecting(classifier, wanted.reject)
    faults, rows, classes = list[Unreadable](), list[dict[str, Any]](), list(classifier.classes_)
    for outcomes in predict_stream(classifier, map(Path, paths), coverage=wanted.coverage):
        faults += [outcome for outcome in outcomes if isinstance(outcome, Unreadable)]
        good = [outcome for outcome in outcomes if not isinstance(outcome, Unreadable)]
        rows += [prediction_row(outcome, classes, wanted.top, wanted.reject) for outcome in good]
        progress("images", len(rows) + len(faults), len(paths), "")
    if faults and (not skip_bad or not rows):
        raise unreadable_error(faults, len(paths))
    for fault in faults:
        click.echo(f"skipped {fault}", err=True)
    return rows


def write_csv(rows: Sequence[dict[str, Any]]) -> None:
    """Print one row per image and class."""
    from dca.model.prediction_files import cell

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["path", "label", "probability"])
    for row in rows:
        best_first = [row, *row["top"][1:]]
        path = cell(row["path"])
        writer.writerows([path, cell(best["label"]), f"{best['probability']:.6f}"] for best in best_first)


def expand(images: Sequence[str], *, skip_bad: bool = False) -> list[str]:
    """Files in the order given, folders and stdin expanded; one error lists all problems of a kind.

    skip_bad: missing files stay in the list, to be reported with the others that cannot be read.
    """
    from dca.images.convert import refuse_url
    from dca.model.inputs import as_images

    given = [name for image in images for name in (stdin_lines() if image == "-" else [image])]
    if not given:
        raise UserError("no images given: stdin held no paths", hint="find photos/ -name '*.jpg' | dca predict MODEL -")
    for name in given:
        refuse_url(name)
    missing = dict.fromkeys(name for name in given if not os.path.exists(name))
    if missing and not skip_bad:
        raise UserError("no such file or folder", details=list(missing), hint="check the paths, or add --skip-bad")
    paths, empty = list[str](), list[str]()
    for name in given:
        try:
            paths += [str(Path(name))] if not os.path.isdir(name) else [str(image) for image in as_images(name)]
        except UserError as error:
            empty.append(error.problem)
    if empty:
        raise UserError("nothing to predict in some folders", details=empty, hint="give images, or folders of them")
    return paths


def stdin_lines() -> list[str]:
    """Paths on stdin, one per line; they need not be valid text."""
    return [os.fsdecode(line) for line in sys.stdin.buffer.read().splitlines() if line.strip()]


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One line per image, in columns: the best classes, the p-value, and the set of classes."""
    wide = columns(row["path"] for row in rows)
    shown = [
        [(row["label"], row["probability"]), *((b["label"], b["probability"]) for b in row["top"][1:])] for row in rows
    ]
    label = columns(text for row in shown for text, _ in row)
    texts = []
    for row, best in zip(rows, shown, strict=True):
        parts = [f"{padded(text, label)} {probability:.2f}" for text, probability in best]
        if "p_value" in row:
            parts.append(f"p {row['p_value']:.2f}")
        if "set" in row:
            parts.append("{" + ", ".join(row["set"]) + "}")
        texts.append(f"{padded(row['path'], wide)}  {'   '.join(parts)}")
    return texts
