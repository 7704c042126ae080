"""Predictions of more images than one machine can take, on an existing Ray cluster, in shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from dca.core.files import atomic_write
from dca.core.progress import Progress, silent
from dca.model.classifier import Classifier
from dca.model.predict import (
    PredictionOptions,
    PredictionSummary,
    Tally,
    choose_columns,
    predict_rows,
    prediction_identity,
)
from dca.model.prediction_files import WRITERS, require_writer_package
from dca.model.rejection import require_rate
from dca.model.shards import PER_SHARD, make_shards_on_ray


@dataclass(frozen=True)
class SharedModel:
    """The model of a prediction, which all nodes can read, as `Classifier.from_pretrained` takes it.

    Attributes:
        model: Folder of the model, or a repository on the hub.
        backbone: Where its backbone is, if it was moved.
        device: "auto" takes the GPUs of the cluster if it has some; "cpu" none.
        precision: "auto", "fp32" or "bf16".
    """

    model: str
    backbone: str | None = None
    device: str = "auto"
    precision: str = "auto"

    def load(self, device: str) -> Classifier:
        """The model on a device."""
        return Classifier.from_pretrained(self.model, backbone=self.backbone, device=device, precision=self.precision)


def predict_on_ray(
    source: SharedModel,
    images: Sequence[str],
    folder: Path,
    options: PredictionOptions | None = None,
    *,
    kind: str = ".csv",
    per_shard: int = PER_SHARD,
    overwrite: bool = False,
    progress: Progress = silent,
) -> PredictionSummary:
    """Predict images on a Ray cluster into a folder of shards; the rows are those of `predict_to_file`, in its order.

    A call with the same arguments continues an interrupted one: shards whose files are there are not made again.
    Images that cannot be read have a row with the reason.

    Args:
        source: The model.
        images: Paths of files; one that is given twice has one row.
        folder: Where part-00000, part-00001, ... are written.
        options: What is to be known of every image.
        kind: ".csv", ".jsonl" or ".parquet".
        per_shard: Images per shard.
        overwrite: Replace shards of another call that are in the folder, when all of the new ones are there.
        progress: Receives the progress, with the rate.

    Returns:
        How many images were predicted, and which cannot be read.

    Raises:
        UserError: If Ray is not installed, there is no cluster, the folder holds something else or cannot be written,
            the model has no p-values or sets that were asked for, or a task was lost more often than Ray restarts it.
    """
    require_writer_package(kind)
    work = _Prediction(source, options or PredictionOptions())
    done = make_shards_on_ray(
        work, images, folder, kind=kind, per_shard=per_shard, overwrite=overwrite, progress=progress
    )
    return done.tally.summarize(done.made, done.seconds)


@dataclass(frozen=True)
class _Prediction:
    """Shards of predictions."""

    source: SharedModel
    options: PredictionOptions

    @property
    def device(self) -> str:
        return self.source.device

    def load(self, device: str) -> Classifier:
        return self.source.load(device)

    def identify(self, loaded: Classifier) -> dict[str, Any]:
        require_rate(self.options.reject, loaded.smallest_p_value)
        return {**prediction_identity(loaded, self.options), "precision": self.source.precision}

    def make(self, loaded: Classifier, images: Sequence[str], output: Path) -> Tally:
        return predict_shard(loaded, images, output, self.options)


def predict_shard(model: Classifier, images: Sequence[str], output: Path, options: PredictionOptions) -> Tally:
    """Predict the images of one shard; its file appears when it is complete.

    Args:
        model: A fitted classifier.
        images: Paths of the images.
        output: The file of the shard.
        options: What is to be known of every image.

    Returns:
        The rows, counted.

    Raises:
        UserError: If the file cannot be written, or the model has no p-values or sets that were asked for.
    """
    tally = Tally()
    rows = chain.from_iterable(predict_rows(model, images, options))
    with atomic_write(output) as unfinished:
        WRITERS[output.suffix](tally.count(rows), choose_columns(model, options), unfinished)
    return tally
