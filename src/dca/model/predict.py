"""Predictions for any number of images, batch after batch, in their order, and into one file.

A killed process continues where it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dca.core.errors import UserError
from dca.core.files import atomic_write, exclusive_lock, json_digest
from dca.core.hints import allow_overwrite
from dca.core.progress import Progress, silent
from dca.core.text import NONE_OF_THESE
from dca.images.decode import ImageLike, Unreadable
from dca.model.checkpoint import hash_weights
from dca.model.classifier import Classifier, Predictions
from dca.model.prediction_files import (
    WRITERS,
    Columns,
    ImageFolders,
    Journal,
    Row,
    drop_finished_journal,
    require_writable_kind,
)
from dca.model.rejection import require_rate
from dca.training.pipeline import Source, encode_batches

if TYPE_CHECKING:
    from dca.model.classifier import Classifier


@dataclass(frozen=True)
class ImagePrediction:
    """What a model says about one image.

    image: as it was given. probabilities: (C,). p_value, labels: as in `Predictions`; None where there is none.
    """

    image: ImageLike
    probabilities: NDArray[np.float64]
    p_value: float | None
    labels: list[Any] | None


def predict_stream(
    model: Classifier, images: Iterable[ImageLike], *, coverage: float | None = None, batch: int | None = None
) -> Iterator[list[ImagePrediction | Unreadable]]:
    """Predict images in batches; every image has one outcome, in the order given.

    Args:
        model: A fitted classifier.
        images: Any number of images; a few batches of them are in memory at a time.
        coverage: Of the prediction sets; None for no sets.
        batch: Images per batch; None for a number that suits the device.

    Yields:
        The outcomes of one batch: an answer, or the reason why the image cannot be read.

    Raises:
        UserError: As for `Classifier.predict_details`, but not for images that cannot be read.
    """
    method = model.method_
    listed, sources = tee(images)
    batches = encode_batches(
        (Source(image, method.encoder.preprocess.crop) for image in sources),
        lambda pixels: model.predict_features(method.encode(pixels), coverage=coverage),
        method.encoder,
        size=batch,
    )
    for done in batches:
        rows = iter(() if done.result is None else _split_predictions(done.result))
        yield [
            outcome if isinstance(outcome, Unreadable) else ImagePrediction(image, *next(rows))
            for image, outcome in zip(islice(listed, len(done.outcomes)), done.outcomes, strict=True)
        ]


# Probabilities, p-value and set of one image.
_ImageParts = tuple[NDArray[np.float64], float | None, list[Any] | None]


def _split_predictions(predictions: Predictions) -> Iterator[_ImageParts]:
    """Probabilities, p-value and set of each image."""
    n = len(predictions.probabilities)
    p_values: list[float | None] = [None] * n if predictions.p_values is None else predictions.p_values.tolist()
    sets: list[list[Any] | None] = [None] * n if predictions.sets is None else list(predictions.sets)
    return zip(predictions.probabilities, p_values, sets, strict=True)


def prediction_row(
    outcome: ImagePrediction | Unreadable, classes: Sequence[Any], top: int, reject: float | None
) -> dict[str, Any]:
    """The plain values of one image, as `--json` prints them; an unreadable one has `path` and `error`.

    top: number of classes to name, best first. reject: the label is "none of these" for p-values up to this.
    """
    if isinstance(outcome, Unreadable):
        return {"path": str(outcome.image), "error": outcome.reason}
    p = outcome.probabilities
    best = [{"label": str(classes[c]), "probability": float(p[c])} for c in (-p).argsort(kind="stable")[:top]]
    row: dict[str, Any] = {"path": str(outcome.image), **best[0], "top": best}
    if outcome.p_value is not None:
        row["p_value"] = outcome.p_value
        if reject is not None and outcome.p_value <= reject:
            row["label"] = NONE_OF_THESE
    if outcome.labels is not None:
        row["set"] = [str(label) for label in outcome.labels]
    return row


# Unreadable images that are kept in memory, to be listed at the end; all of them are in the file.
MOST_LISTED = 20


@dataclass(frozen=True)
class PredictionOptions:
    """What is to be known of every image.

    top: number of classes. reject: "none of these" for p-values up to this. coverage: of sets of classes.
    """

    top: int = 1
    reject: float | None = None
    coverage: float | None = None


@dataclass(frozen=True)
class PredictionSummary:
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
    options: PredictionOptions | None = None,
    *,
    copy_to: Path | None = None,
    overwrite: bool = False,
    progress: Progress = silent,
) -> PredictionSummary:
    """Predict images and write one row per image; the file appears when it is complete.

    Until then the rows are in `output` + ".partial". A call with the same arguments continues a killed one: images
    that have a row are not opened again. Images that cannot be read have a row with the reason.

    Args:
        model: A fitted classifier.
        images: Paths of files; one that is given twice has one row.
        output: A .csv, .jsonl or .parquet file.
        options: What is to be known of every image.
        copy_to: Folder where images are copied into one folder per predicted class.
        overwrite: Replace an existing file, and drop unfinished predictions of another call.
        progress: Receives the progress, with the rate.

    Returns:
        How many images were predicted, and which cannot be read.

    Raises:
        UserError: If the file cannot be written, or the model cannot give the p-values or sets that were asked for.
    """
    options = options or PredictionOptions()
    kind = require_writable_kind(output)
    refuse_finished(output, overwrite=overwrite)
    require_rate(options.reject, model.smallest_p_value)
    paths = list(dict.fromkeys(str(Path(image)) for image in images))  # "./a.jpg" and "a.jpg" are one
    columns = choose_columns(model, options, copies=copy_to is not None)
    identity = prediction_identity(model, options, copy_to)
    with exclusive_lock(output, "command"), Journal(output, identity, fresh=overwrite) as journal:
        folders = None if copy_to is None else _open_image_folders(copy_to, model, journal)
        batches = predict_rows(model, paths, options, journal.paths, folders)
        before, seconds = journal.extend(batches, paths, progress)
        tally = write_output(journal, paths, output, lambda rows, path: WRITERS[kind](rows, columns, path))
    return tally.summarize(tally.rows - before, seconds)


def choose_columns(model: Classifier, options: PredictionOptions, *, copies: bool = False) -> Columns:
    """The columns of a table with these options."""
    return Columns(min(options.top, len(model.classes_)), model.has_p_values, options.coverage is not None, copies)


def prediction_identity(model: Classifier, options: PredictionOptions, copy_to: Path | None = None) -> dict[str, Any]:
    """Plain values that decide the rows."""
    method = model.method_
    weights, labels = hash_weights(method), list(map(str, model.classes_.tolist()))
    encoder = method.encoder
    facts = [weights, labels, method.temperature, str(method.options), encoder.digest, encoder.precision]
    return {
        "model": json_digest(facts)[:16],
        "top": options.top,
        "reject": options.reject,
        "set_coverage": options.coverage,
        "copy_to": None if copy_to is None else os.path.abspath(copy_to),
    }


def _open_image_folders(copy_to: Path, model: Classifier, journal: Journal) -> ImageFolders:
    labels = [*map(str, model.classes_.tolist()), NONE_OF_THESE]
    return ImageFolders(copy_to, labels, (row["copied_to"] for row in journal.rows() if "copied_to" in row))


def predict_rows(
    model: Classifier,
    paths: Sequence[str],
    options: PredictionOptions,
    known: Collection[str] = (),
    folders: ImageFolders | None = None,
) -> Iterator[list[dict[str, Any]]]:
    """Rows of the images that are not known, batch after batch; copies are made before their rows are given."""
    classes = model.classes_.tolist()
    # A list of its own: `known` grows while the images are predicted.
    new = [path for path in paths if path not in known]
    for outcomes in predict_stream(model, map(Path, new), coverage=options.coverage):
        rows = [prediction_row(outcome, classes, options.top, options.reject) for outcome in outcomes]
        for row, outcome in zip(rows, outcomes, strict=True):
            if folders is not None and isinstance(outcome, ImagePrediction):
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

    def count(self, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Pass rows on and count them."""
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

    def summarize(self, predicted: int, seconds: float) -> PredictionSummary:
        """What was written, all rows counted."""
        return PredictionSummary(self.rows, predicted, seconds, self.unreadable, tuple(self.listed))


def refuse_finished(output: Path, *, overwrite: bool) -> None:
    """Raise if the output is there and must not be replaced."""
    if output.exists() and not overwrite:
        with exclusive_lock(output, "command"):
            drop_finished_journal(output)
        raise UserError(f"{output} exists", hint=[allow_overwrite(), "choose another file"])


def write_output(
    journal: Journal, wanted: Iterable[str], output: Path, write: Callable[[Iterable[Row], Path], None]
) -> Tally:
    """Write the rows of the wanted images to the output, in one rename, and remove the journal."""
    tally, kept = Tally(), set(wanted)
    rows = (row for row in journal.rows() if row["path"] in kept)
    with atomic_write(output) as unfinished:
        write(tally.count(rows), unfinished)
    journal.remove()
    return tally
