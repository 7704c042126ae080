"""Predictions of more images than one machine can take, on an existing Ray cluster: one task per shard.

The working folder, the model, its backbone, the images and the output must be shared by all nodes, and `dca` be
installed on them. Ray starts tasks again whose worker or node has died. A finished shard is a file and is not made
again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from dca.core.errors import UserError
from dca.core.files import exclusive_lock
from dca.core.progress import Progress, silent
from dca.core.ray_cluster import connected, shares
from dca.model.bulk import Done, Tally, Wanted, identity_of, require_rejecting
from dca.model.classifier import Classifier
from dca.model.prediction_tables import require_package_of
from dca.model.shards import PER_SHARD, Shards, open_shards, predict_shard

# Seconds between two reports of progress while no shard ends.
PULSE = 1.0
# How often Ray starts a task again whose worker or node has died.
RETRIES = 3


@dataclass(frozen=True)
class Source:
    """The model of a prediction, as `Classifier.from_pretrained` takes it.

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
    source: Source,
    images: Sequence[str],
    folder: Path,
    wanted: Wanted | None = None,
    *,
    kind: str = ".csv",
    per_shard: int = PER_SHARD,
    overwrite: bool = False,
    progress: Progress = silent,
) -> Done:
    """Predict images on a Ray cluster into a folder of shards; the rows are those of `predict_to_file`, in its order.

    A call with the same arguments continues an interrupted one: shards whose files are there are not made again.
    Images that cannot be read have a row with the reason.

    Args:
        source: The model.
        images: Paths of files; one that is given twice has one row.
        folder: Where part-00000, part-00001, ... are written.
        wanted: What is to be known of every image.
        kind: ".csv", ".jsonl" or ".parquet".
        per_shard: Images per shard.
        overwrite: Drop shards of another call that are in the folder.
        progress: Receives the progress, with the rate.

    Returns:
        How many images were predicted, and which cannot be read.

    Raises:
        UserError: If Ray is not installed, there is no cluster, the folder holds something else or cannot be written,
            the model has no p-values or sets that were asked for, or a task was lost more often than Ray restarts it.
    """
    wanted = wanted or Wanted()
    require_package_of(kind)
    ray = connected()
    try:
        model = source.load("cpu")
        require_rejecting(model, wanted.reject)
        at_once, gpus = shares(ray.cluster_resources(), source.device)
        device = "auto" if gpus else "cpu"
        facts = {**identity_of(model, wanted), "device": device, "precision": source.precision}
        paths = list(dict.fromkeys(str(Path(image)) for image in images))
        with exclusive_lock(folder, "prediction"):
            shards = open_shards(folder, paths, kind, facts, per_shard=per_shard, overwrite=overwrite)
            task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_do)
            place = _Place(source, device, wanted)
            return _predicted(shards, _tallies(ray, task, shards, place, at_once), progress)
    finally:
        ray.shutdown()  # cancels what this call has submitted; the cluster goes on


@dataclass(frozen=True)
class _Place:
    """What a task needs beside its images. device: of the task. folder: working folder. most_pixels: Pillow's limit."""

    source: Source
    device: str
    wanted: Wanted
    folder: str = field(default_factory=os.getcwd)
    most_pixels: int | None = field(default_factory=lambda: Image.MAX_IMAGE_PIXELS)


def _predicted(shards: Shards, tallies: Iterator[Tally | None], progress: Progress) -> Done:
    """Make the shards that are left, and count the rows of all."""
    left = shards.left()
    total = shards.tally(sorted(set(range(len(shards.images))) - set(left)))
    images, now, began = sum(map(len, shards.images)), 0, time.monotonic()
    for tally in tallies:
        if tally is not None:
            now += tally.rows
            total.add(tally)
        progress("images", total.rows, images, f"{now / (time.monotonic() - began):.1f} images/s")
    shards.clean()
    return total.done(now, time.monotonic() - began)


def _tallies(ray: Any, task: Any, shards: Shards, place: _Place, at_once: int) -> Iterator[Tally | None]:
    """The tally of each shard as it is finished, and None when a second has passed without one."""
    left, running = shards.left()[::-1], dict[Any, int]()
    while left or running:
        # A second task per worker waits on its node, so that none is idle between two shards.
        while left and len(running) < 2 * at_once:
            number = left.pop()
            running[task.remote(shards.images[number], str(shards.part(number)), place)] = number
        ended, _ = ray.wait(list(running), timeout=PULSE)
        for reference in ended:
            yield _tally(ray, reference, shards.part(running.pop(reference)))
        if not ended:
            yield None


def _tally(ray: Any, reference: Any, part: Path) -> Tally:
    """What a task returned; its error as it would be on this machine."""
    try:
        found: Tally = ray.get(reference)
        return found
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, UserError) else error from None
    except ray.exceptions.RayError as error:
        problem = f"{part}: the task was lost ({type(error).__name__}: {str(error).strip().splitlines()[0]})"
        raise UserError(problem, hint="give the same command again: finished shards are kept") from None


def _do(images: Sequence[str], output: str, place: _Place) -> Tally:
    """The task: one shard."""
    return predict_shard(_model(place), images, Path(output), place.wanted)


@cache
def _model(place: _Place) -> Classifier:
    """The model of this process. Ray gives a process the GPU of its task and keeps processes for further tasks."""
    os.chdir(place.folder)
    Image.MAX_IMAGE_PIXELS = place.most_pixels
    return place.source.load(place.device)
