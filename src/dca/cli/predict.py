"""dca predict: the classes of images."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from dca.cli.common import (
    backbone_of_model,
    device_flags,
    emit,
    json_flag,
    only_results_on_stdout,
    print_lines,
    quiet_flag,
    showing,
)
from dca.cli.tables import format_table
from dca.core.errors import UserError
from dca.core.text import NONE_OF_THESE, format_seconds, make_visible, pluralize

if TYPE_CHECKING:
    from dca.core.progress import Progress
    from dca.model.classifier import Classifier
    from dca.model.predict import PredictionOptions, PredictionSummary


Backend = Literal["local", "ray"]


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """The model of the command line: its folder, and how it is loaded."""

    folder: Path
    backbone: str | None
    device: str
    precision: str

    def load(self) -> Classifier:
        """Load the model."""
        from dca.model.classifier import Classifier

        return Classifier.from_pretrained(
            self.folder, backbone=self.backbone, device=self.device, precision=self.precision
        )


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where predictions are written: to a file, or with the backend "ray" to files in a folder.

    kind, per_shard: format and number of images of the files of the backend "ray"; None for the defaults.
    """

    path: Path
    backend: Backend
    kind: str | None
    per_shard: int | None
    copy_to: Path | None
    overwrite: bool


# Said below answers with p-values.
EXPLANATION = (
    "p-value: how usual an image is among the training images. If it is of one of the classes, it is at most 0.05 in "
    "about 5 of 100 cases; --reject 0.05 then says 'none of these'"
)


backend_flag = click.option(
    "--backend",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where to compute: on this machine, or on an existing Ray cluster.",
)
per_shard_flag = click.option(
    "--per-shard",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="Images per file that --backend ray writes; at most these are repeated if a worker is lost.  [default: 1024]",
)


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("images", nargs=-1, required=True, type=click.Path())
@click.option(
    "--top", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Classes to print per image."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Write one row per image to this .csv, .jsonl or .parquet file. If interrupted, the same command continues. "
    "With --backend ray: a folder of such files.",
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
    help=f"Predict '{NONE_OF_THESE}' for images whose p-value is at most P; this loses about a share P of good images.",
)
@click.option(
    "--set-coverage",
    "coverage",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=None,
    metavar="C",
    help="Also print the set of classes that contains the right one with probability about C; see above.",
)
@click.option("--skip-bad", is_flag=True, help="List images that cannot be read on stderr and predict the others.")
@backend_flag
@click.option(
    "--format",
    "kind",
    type=click.Choice(["csv", "jsonl", "parquet"]),
    default=None,
    help="Format of the files that --backend ray writes.  [default: csv]",
)
@per_shard_flag
@backbone_of_model
@device_flags
@quiet_flag
@json_flag
def command(
    model: Path,
    images: tuple[str, ...],
    top: int,
    output: Path | None,
    backend: Backend,
    kind: str | None,
    per_shard: int | None,
    copy_to: Path | None,
    overwrite: bool,
    as_csv: bool,
    reject: float | None,
    coverage: float | None,
    skip_bad: bool,
    backbone: str | None,
    device: str,
    precision: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Predict the classes of IMAGES: files, folders (with all images below them), or - for paths on stdin.

    \b
    dca predict photos.dca new.jpg
    dca predict photos.dca holiday/ --top 3
    dca predict photos.dca holiday/ -o holiday.csv --copy-to sorted/
    dca predict photos.dca archive/ --backend ray -o labels/
    find . -name '*.jpg' | dca predict photos.dca - --csv > labels.csv
    dca predict photos.dca holiday/ --reject 0.05 --set-coverage 0.9

    -o takes any number of images and little memory. If the command is interrupted, give it again:
    images that have a row are not opened twice, and the file appears when it is complete. Images that
    cannot be read have a row with the reason; without --skip-bad the exit code is then 2.

    The p-value says how similar an image is to the training images: it is small for images of none of
    the classes. With n training images that can be left out, as many of each class, it is at least
    1/(n + 1), so that --reject 0.05 needs 19; what a model cannot do is refused. Sets of the default method contain
    the right class of new, similar images with probability 2C - 1 at least (jackknife+), and about C in
    practice.

    In CSV, a path or label that a spreadsheet would run as a formula (it begins with = + - or @)
    gets an apostrophe in front; --json prints it as it is.
    """
    from dca.model.predict import PredictionOptions

    if as_csv and as_json:
        raise UserError("--csv and --json cannot go together", hint="choose one of them")
    source = ModelSource(folder=model, backbone=backbone, device=device, precision=precision)
    target = None
    if output is not None:
        target = OutputOptions(
            path=output, backend=backend, kind=kind, per_shard=per_shard, copy_to=copy_to, overwrite=overwrite
        )
        check_output(target, images, as_csv=as_csv)
    elif backend == "ray":
        raise UserError("--backend ray needs a folder to write to", hint="add -o labels/")
    elif copy_to is not None:
        raise UserError("--copy-to needs -o, which remembers what was copied", hint="add -o labels.csv")
    else:
        check_shard_options(kind, per_shard)
    paths = list_images(images, allow_missing=skip_bad or output is not None)
    options = PredictionOptions(top, reject, coverage)
    with showing(quiet=quiet or len(paths) == 1) as progress:
        if target is not None:
            summary = write_predictions(source, paths, target, options, progress)
        else:
            rows = predict_rows(source, paths, options, progress, skip_bad=skip_bad)
    if target is not None:
        print_summary(summary, target.path, skip_bad=skip_bad, quiet=quiet, as_json=as_json)
        if summary.unreadable and (not skip_bad or summary.unreadable == summary.images):
            raise click.exceptions.Exit(2)
    elif as_json:
        emit(rows)
    elif as_csv:
        print_csv(rows)
    else:
        print_lines(*format_rows(rows))
        if not quiet and any("p_value" in row for row in rows):
            print_lines(EXPLANATION, err=True)


def check_output(target: OutputOptions, images: Sequence[str], *, as_csv: bool) -> None:
    """Raise, before anything is loaded, for options that do not go together with -o."""
    from dca.model.prediction_files import require_outside, require_writable_kind

    if target.backend == "ray":
        check_cluster_output(target, as_csv=as_csv)
        return
    check_shard_options(target.kind, target.per_shard)
    if target.copy_to is not None:
        require_outside(target.copy_to, images)
    if require_writable_kind(target.path) != ".csv" and as_csv:
        raise UserError(f"--csv and -o {target.path} cannot go together", hint="leave out --csv")


def check_shard_options(kind: str | None, per_shard: int | None) -> None:
    """Raise for options of the backend "ray" without it."""
    if kind is not None or per_shard is not None:
        option = "--format" if kind is not None else "--per-shard"
        raise UserError(f"{option} is for --backend ray", hint=[f"leave out {option}", "add --backend ray"])


def check_cluster_output(target: OutputOptions, *, as_csv: bool) -> None:
    """Raise for options that do not go together with `--backend ray`."""
    require_folder(target.path)
    if target.copy_to is not None or as_csv:
        option = "--csv" if as_csv else "--copy-to"
        raise UserError(f"{option} and --backend ray cannot go together", hint=f"leave out {option}")


def require_folder(path: Path) -> None:
    """Raise if -o names a file, where `--backend ray` writes a folder of files."""
    if path.is_file() or path.suffix in (".csv", ".jsonl", ".parquet"):
        problem = f"--backend ray writes several files, and -o {path} names one"
        raise UserError(problem, hint=f"give a folder, such as -o {path.with_suffix('')}/")


def list_images(images: Sequence[str], *, allow_missing: bool = False) -> list[str]:
    """List files in the order given, with folders and stdin expanded; one error lists all problems of a kind.

    allow_missing: missing files stay in the list, to be reported with the others that cannot be read.
    """
    from dca.images.convert import reject_url
    from dca.model.inputs import as_images

    names = [name for image in images for name in (read_stdin_paths() if image == "-" else [image])]
    if not names:
        raise UserError("no images given: stdin held no paths", hint="find photos/ -name '*.jpg' | dca predict MODEL -")
    for name in names:
        reject_url(name)
    missing = dict.fromkeys(name for name in names if not os.path.exists(name))
    if missing and not allow_missing:
        raise UserError("no such file or folder", details=list(missing), hint="check the paths, or add --skip-bad")
    paths, empty = list[str](), list[str]()
    for name in names:
        try:
            paths += [str(Path(name))] if not os.path.isdir(name) else [str(image) for image in as_images(name)]
        except UserError as error:
            empty.append(error.problem)
    if empty:
        raise UserError("nothing to predict in some folders", details=empty, hint="give images, or folders of them")
    return paths


def read_stdin_paths() -> list[str]:
    """Read paths from stdin, one per line; they need not be valid text."""
    return [os.fsdecode(line) for line in sys.stdin.buffer.read().splitlines() if line.strip()]


def load_model(source: ModelSource, options: PredictionOptions) -> Classifier:
    """Load the model; raises if it cannot reject at the rate of the options, and says which rates it can keep."""
    from dca.model.rejection import require_rate

    model = source.load()
    smallest = model.smallest_p_value
    require_rate(options.reject, smallest)
    if options.reject and smallest is not None:
        print_lines(f"the smallest p-value of this model is {smallest:.3f}: --reject takes no less", err=True)
    return model


def predict_rows(
    source: ModelSource, paths: Sequence[str], options: PredictionOptions, progress: Progress, *, skip_bad: bool
) -> list[dict[str, Any]]:
    """One row per image that can be read; the others are listed on stderr, or an error without `skip_bad`."""
    from dca.images.decode import Unreadable, unreadable_error
    from dca.model.predict import predict_stream, prediction_row

    classifier = load_model(source, options)
    unreadable, rows, classes = list[Unreadable](), list[dict[str, Any]](), list(classifier.classes_)
    for batch in predict_stream(classifier, map(Path, paths), coverage=options.coverage):
        for outcome in batch:
            if isinstance(outcome, Unreadable):
                unreadable.append(outcome)
            else:
                rows.append(prediction_row(outcome, classes, options.top, options.reject))
        progress("images", len(rows) + len(unreadable), len(paths), "")
    if unreadable and (not skip_bad or not rows):
        raise unreadable_error(unreadable, len(paths))
    for image in unreadable:
        print_lines(f"skipped {image}", err=True)
    return rows


def write_predictions(
    source: ModelSource, paths: Sequence[str], target: OutputOptions, options: PredictionOptions, progress: Progress
) -> PredictionSummary:
    """Predict into a file or, on a cluster, into files of a folder; an interrupt says how to continue."""
    with explaining_interrupts(target.path, target.backend):
        write = write_shards if target.backend == "ray" else write_file
        return write(source, paths, target, options, progress)


@contextmanager
def explaining_interrupts(output: Path, backend: Backend) -> Iterator[None]:
    """Say, if the work is interrupted, how it is continued."""
    from dca.core.files import PARTIAL, partial_folder

    try:
        yield
    except KeyboardInterrupt:
        where = output.with_name(f"{output.name}{PARTIAL}")
        if backend == "ray":  # beside a folder that is to be replaced, else in the folder itself
            where = beside if (beside := partial_folder(output)).exists() else output
        print_lines(f"interrupted; the same command continues from {where}", err=True)
        raise click.exceptions.Exit(130) from None


def write_file(
    source: ModelSource, paths: Sequence[str], target: OutputOptions, options: PredictionOptions, progress: Progress
) -> PredictionSummary:
    """Predict into one file on this machine."""
    from dca.core.device import keep_freed_memory
    from dca.model.predict import predict_to_file

    keep_freed_memory()
    return predict_to_file(
        load_model(source, options),
        paths,
        target.path,
        options,
        copy_to=target.copy_to,
        overwrite=target.overwrite,
        progress=progress,
    )


def write_shards(
    source: ModelSource, paths: Sequence[str], target: OutputOptions, options: PredictionOptions, progress: Progress
) -> PredictionSummary:
    """Predict into the files of a folder on a Ray cluster."""
    from dca.model.predict_ray import SharedModel, predict_on_ray
    from dca.model.shards import PER_SHARD

    remote = SharedModel(str(source.folder), source.backbone, source.device, source.precision)
    with only_results_on_stdout():
        return predict_on_ray(
            remote,
            paths,
            target.path,
            options,
            kind=f".{target.kind or 'csv'}",
            per_shard=target.per_shard or PER_SHARD,
            overwrite=target.overwrite,
            progress=progress,
        )


def print_summary(summary: PredictionSummary, path: Path, *, skip_bad: bool, quiet: bool, as_json: bool) -> None:
    """Print what was written; images that cannot be read are listed on stderr."""
    for line in summary.listed:
        print_lines(f"{'skipped' if skip_bad else 'cannot read'} {line}", err=True)
    if summary.unreadable > len(summary.listed):
        print_lines(
            f"... and {summary.unreadable - len(summary.listed):,} more; see the error column of {path}", err=True
        )
    if as_json:
        counts = {"images": summary.images, "predicted_now": summary.predicted, "unreadable": summary.unreadable}
        emit({"output": str(path), **counts, "seconds": round(summary.seconds, 2)})
    elif not quiet:
        print_lines(*format_summary(summary, path))


def format_summary(summary: PredictionSummary, path: Path) -> list[str]:
    """What a finished file holds, as lines of text."""
    images, predicted, seconds = summary.images, summary.predicted, summary.seconds
    rate = f" ({predicted / seconds:.1f} images/s)" if predicted and seconds else ""
    before = f", {images - predicted:,} of them before" if predicted < images else ""
    lines = [f"{pluralize(images, 'image')} in {path}{before}; {format_seconds(seconds)}{rate}"]
    if summary.unreadable:
        lines.append(f"{pluralize(summary.unreadable, 'image')} cannot be read: the column error says why")
    return lines


def print_csv(rows: Sequence[dict[str, Any]]) -> None:
    """Print one CSV row per image and class."""
    from dca.model.prediction_files import escape_cell, format_csv_row

    shown = make_visible if sys.stdout.isatty() else str  # a program that reads it gets names as they are
    sys.stdout.write(format_csv_row(["path", "label", "probability"]))
    for row in rows:
        path = escape_cell(shown(row["path"]))
        sys.stdout.writelines(
            format_csv_row([path, escape_cell(shown(best["label"])), f"{best['probability']:.6f}"])
            for best in _best_first(row)
        )


def format_rows(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One line per image, in columns: the best classes, the p-value, and the set of classes."""
    best = [_best_first(row) for row in rows]
    names = iter(format_table([[guess["label"]] for guesses in best for guess in guesses], pad_last=True))
    cells = []
    for row, guesses in zip(rows, best, strict=True):
        parts = [f"{next(names)} {guess['probability']:.2f}" for guess in guesses]
        if "p_value" in row:
            parts.append(f"p-value {row['p_value']:.2f}")
        if "set" in row:
            parts.append("{" + ", ".join(row["set"]) + "}")
        cells.append([row["path"], "   ".join(parts)])
    return format_table(cells)


def _best_first(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The classes of a row with their probabilities; the first has the label that is predicted."""
    return [row, *row["top"][1:]]
