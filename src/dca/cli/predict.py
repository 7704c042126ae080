"""dca predict: the classes of images."""

from __future__ import annotations

import csv
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dca.cli.common import backbone_of_model, columns, emit, json_flag, padded, quiet_flag, running, showing
from dca.core.actions import fit_estimate
from dca.core.errors import UserError
from dca.core.wording import NONE

if TYPE_CHECKING:
    from dca.core.progress import Progress
    from dca.model.uncertain import Answers


# First characters with which a spreadsheet takes a cell for a formula, unless it is a number.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
NUMBER = re.compile(r"[+-]\d+(\.\d+)?")


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("images", nargs=-1, required=True, type=click.Path())
@click.option("--top", type=click.IntRange(min=1), default=1, show_default=True, help="Classes to print per image.")
@click.option("--csv", "as_csv", is_flag=True, help="Print path,label,probability rows, safe to open in a spreadsheet.")
@click.option(
    "--reject",
    type=click.FloatRange(0, 1),
    default=None,
    metavar="P",
    help=f"Answer '{NONE}' for images whose p-value is below P; about a share P of good images is lost.",
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
    find . -name '*.jpg' | dca predict photos.dca - --csv > labels.csv
    dca predict photos.dca holiday/ --reject 0.05 --set-coverage 0.9

    The p-value says how usual an image is among the training images: small for images of none of the
    classes. Sets of the default method contain the right class of new, similar images with probability
    2C - 1 at least (jackknife+), and about C in practice.

    In --csv, a path or label that a spreadsheet would run as a formula (it begins with = + - or @)
    gets an apostrophe in front; --json prints it as it is.
    """
    from dca.model.classifier import Classifier

    if as_csv and as_json:
        raise UserError("--csv and --json cannot go together", hint="choose one of them")
    paths = expand(images, skip_bad=skip_bad)
    classifier = Classifier.from_pretrained(model, backbone=backbone, device=device, precision=precision)
    with showing(quiet=quiet or len(paths) == 1) as progress:
        if skip_bad:
            paths = without_bad(paths, progress)
        answers = classifier.answers(paths, coverage=coverage, progress=progress)
    if reject is not None and answers.p_values is None:
        raise UserError(f"{model} cannot tell images of none of its classes", hint=fit_estimate())
    rows = describe(paths, answers, list(classifier.classes_), top, reject)
    if as_json:
        emit(rows)
    elif as_csv:
        write_csv(rows)
    else:
        click.echo("\n".join(lines(rows)))


def write_csv(rows: Sequence[dict[str, Any]]) -> None:
    """Print one row per image and class."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["path", "label", "probability"])
    for row in rows:
        best_first = [row, *row["top"][1:]]
        path = cell(row["path"])
        writer.writerows([path, cell(best["label"]), f"{best['probability']:.6f}"] for best in best_first)


def expand(images: Sequence[str], *, skip_bad: bool = False) -> list[Path]:
    """Files in the order given, folders and stdin expanded; one error lists all problems of a kind.

    skip_bad: missing files stay in the list, to be reported with the others that cannot be read.
    """
    from dca.model.inputs import as_images

    given = [name for image in images for name in (stdin_lines() if image == "-" else [image])]
    if not given:
        raise UserError("no images given: stdin held no paths", hint="find photos/ -name '*.jpg' | dca predict MODEL -")
    missing = dict.fromkeys(name for name in given if not os.path.exists(name))
    if missing and not skip_bad:
        raise UserError("no such file or folder", details=list(missing), hint="check the paths, or add --skip-bad")
    paths, empty = list[Path](), list[str]()
    for name in given:
        try:
            paths += [Path(name)] if name in missing else [Path(str(image)) for image in as_images(name)]
        except UserError as error:
            empty.append(error.problem)
    if empty:
        raise UserError("nothing to predict in some folders", details=empty, hint="give images, or folders of them")
    return paths


def without_bad(paths: Sequence[Path], progress: Progress) -> list[Path]:
    """The images that can be read; the others are listed on stderr."""
    from dca.model.inputs import split_readable

    good, bad = split_readable(paths, progress)
    for line in bad:
        click.echo(f"skipped {line}", err=True)
    return good


def stdin_lines() -> list[str]:
    """Paths on stdin, one per line; they need not be valid text."""
    return [os.fsdecode(line) for line in sys.stdin.buffer.read().splitlines() if line.strip()]


def describe(
    paths: Sequence[Path], answers: Answers, classes: Sequence[str], top: int, reject: float | None = None
) -> list[dict[str, Any]]:
    """The value that `--json` prints: one object per image."""
    rows = []
    for n, (path, row) in enumerate(zip(paths, answers.probabilities, strict=True)):
        best = [{"label": str(classes[c]), "probability": float(row[c])} for c in (-row).argsort(kind="stable")[:top]]
        found: dict[str, Any] = {"path": str(path), **best[0], "top": best}
        if answers.p_values is not None:
            found["p_value"] = float(answers.p_values[n])
            if reject is not None and found["p_value"] < reject:
                found["label"] = NONE
        if answers.sets is not None:
            found["set"] = [str(label) for label in answers.sets[n]]
        rows.append(found)
    return rows


def cell(text: str) -> str:
    """A text for a CSV cell, with an apostrophe in front if a spreadsheet would run it as a formula.

    >>> cell("=1+1"), cell("-5"), cell("cat")
    ("'=1+1", '-5', 'cat')
    """
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text


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
