"""Predictions of any number of images into one file; a killed process continues where it was."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dca.core.actions import allow_overwrite, fit_estimate
from dca.core.errors import UserError
from dca.core.files import digest_of, exclusive_lock, replacing
from dca.core.progress import Progress, silent
from dca.core.wording import NONE
from dca.model.checkpoint import weights_of
from dca.model.classifier import Classifier
from dca.model.image_folders import ImageFolders
from dca.model.journal import Journal
from dca.model.prediction_tables import WRITERS, Columns, require_writable_kind
from dca.model.stream import Answered, row_of, stream_answers

# Unreadable images that are kept in memory, to be listed at the end; all of them are in the file.
MOST_LISTED = 20


@dataclass(frozen=True)
class Wanted:
    """What is to be known of every image.

    top: number of classes. reject: "none of these" below this p-value. coverage: of sets of classes.
    """

    top: int = 1
    reject: float | None = None
    coverage: float | None = None


@dataclass(frozen=True)
class Done:
    """What was written.

    images: rows of the file. predicted: images of them predicted by this call. seconds: of this call's predictions.
    unreadable: number of images that cannot be read. listed: "path: reason" of the first of them.
    """

    images: int
    predicted: int
    seconds: float
    unreadable: int
    listed: tuple[str, ...]


def predict_to_file(
    model: Classifier,
    images: Sequence[str],
    output: Path,
    wanted: Wanted | None = None,
    *,
    copy_to: Path | None = None,
    overwrite: bool = False,
    progress: Progress = silent,
) -> Done:
    """Predict images and write one row per image; the file appears when it is complete.

    Until then the rows are in `output` + ".partial". A call with the same arguments continues a killed one: images
    that have a row are not opened again. Images that cannot be read have a row with the reason.

    Args:
        model: A fitted classifier.
        images: Paths of files; one that is given twice has one row.
        output: A .csv, .jsonl or .parquet file.
        wanted: What is to be known of every image.
        copy_to: Folder where images are copied into one folder per predicted class.
        overwrite: Replace an existing file, and drop unfinished predictions of another call.
        progress: Receives the progress, with the rate.

    Returns:
        How many images were predicted, and which cannot be read.

    Raises:
        UserError: If the file cannot be written, or the model has no p-values or sets that were asked for.
    """
    wanted = wanted or Wanted()
    kind = _require_place(output, overwrite)
    require_rejecting(model, wanted.reject)
    paths = list(dict.fromkeys(str(Path(image)) for image in images))  # "./a.jpg" and "a.jpg" are one
    identity = identity_of(model, wanted, copy_to)
    with exclusive_lock(output, "prediction"), Journal(output, identity, fresh=overwrite) as journal:
        folders = None if copy_to is None else _folders(copy_to, model, journal)
        before, now, began = len(journal.paths.intersection(paths)), 0, time.monotonic()
        for rows in new_rows(model, paths, wanted, journal.paths, folders):
            journal.append(rows)
            now += len(rows)
            progress("images", before + now, len(paths), f"{now / (time.monotonic() - began):.1f} images/s")
        seconds = time.monotonic() - began
        found = _finish(journal, set(paths), output, kind, columns_of(model, wanted, copies=copy_to is not None))
    return found.done(found.rows - before, seconds)


def _require_place(output: Path, overwrite: bool) -> str:
    """The suffix of the output; raises if it cannot be written."""
    kind = require_writable_kind(output)
    if output.exists() and not overwrite:
        raise UserError(f"{output} exists", hint=[allow_overwrite(), "choose another file"])
    return kind


def columns_of(model: Classifier, wanted: Wanted, *, copies: bool = False) -> Columns:
    """The columns of a table with what is wanted."""
    return Columns(min(wanted.top, len(model.classes_)), model.has_p_values, wanted.coverage is not None, copies)


def require_rejecting(model: Classifier, reject: float | None) -> None:
    """Raise if images are to be rejected by a model that cannot tell them."""
    if reject is not None and not model.has_p_values:
        raise UserError("the model cannot tell images of none of its classes", hint=fit_estimate())


def identity_of(model: Classifier, wanted: Wanted, copy_to: Path | None = None) -> dict[str, Any]:
    """Plain values that decide the rows."""
    method = model.method_
    weights, labels = hashlib.sha256(weights_of(method)).hexdigest(), list(map(str, model.classes_.tolist()))
    facts = [weights, labels, method.temperature, str(method.options), method.clip.digest, str(method.clip.dtype)]
    return {
        "model": digest_of(facts)[:16],
        "top": wanted.top,
        "reject": wanted.reject,
        "set_coverage": wanted.coverage,
        "copy_to": None if copy_to is None else os.path.abspath(copy_to),
    }


def _folders(copy_to: Path, model: Classifier, journal: Journal) -> ImageFolders:
    labels = [*map(str, model.classes_.tolist()), NONE]
    return ImageFolders(copy_to, labels, (row["copied_to"] for row in journal.rows() if "copied_to" in row))


def new_rows(
    model: Classifier,
    paths: Sequence[str],
    wanted: Wanted,
    known: Collection[str] = (),
    folders: ImageFolders | None = None,
) -> Iterator[list[dict[str, Any]]]:
    """Rows of the images that are not known, batch after batch; copies are made before their rows are given."""
    classes = model.classes_.tolist()
    # A list of its own: `known` grows while the images are predicted.
    new = [path for path in paths if path not in known]
    for outcomes in stream_answers(model, map(Path, new), coverage=wanted.coverage):
        rows = [row_of(outcome, classes, wanted.top, wanted.reject) for outcome in outcomes]
        for row, outcome in zip(rows, outcomes, strict=True):
            if folders is not None and isinstance(outcome, Answered):
                row["copied_to"] = folders.copy(Path(str(outcome.image)), row["label"])
        yield rows


class Tally:
    """Rows as they are read, counted.

    Attributes:
        rows: Number of rows so far.
        unreadable: How many of them are images that cannot be read.
        listed: "path: reason" of the first of these.
    """

    def __init__(self) -> None:
        self.rows, self.unreadable, self.listed = 0, 0, list[str]()

    def counting(self, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The rows as they are."""
        for row in rows:
            self.rows += 1
            if row.get("error"):
                self.unreadable += 1
                if len(self.listed) < MOST_LISTED:
                    self.listed.append(f"{row['path']}: {row['error']}")
            yield row

    def add(self, other: Tally) -> None:
        """Count the rows of another one, too."""
        self.rows, self.unreadable = self.rows + other.rows, self.unreadable + other.unreadable
        self.listed = (self.listed + other.listed)[:MOST_LISTED]

    def done(self, predicted: int, seconds: float) -> Done:
        """What was written, all rows counted."""
        return Done(self.rows, predicted, seconds, self.unreadable, tuple(self.listed))


def _finish(journal: Journal, wanted: set[str], output: Path, kind: str, columns: Columns) -> Tally:
    """Write the rows of the wanted images to the output, in one rename, and remove the journal."""
    tally = Tally()
    rows = (row for row in journal.rows() if row["path"] in wanted)
    with replacing(output) as unfinished:
        WRITERS[kind](tally.counting(rows), columns, unfinished)
    journal.remove()
    return tally
