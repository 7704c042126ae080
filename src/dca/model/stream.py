"""Predictions for any number of images, batch after batch, in their order.

On a CPU, every core decodes and encodes batches of its own: threads that share one matrix product wait for each other
at its end, all the longer where other work uses the cores, too, and threads that only decode take turns with those that
encode, which costs both of them their caches. On a GPU, threads decode images ahead of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, tee
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from dca.clip.config import VisionConfig
from dca.core.wording import NONE
from dca.data.dataset import ImageLike
from dca.data.decode import Unreadable, opened
from dca.data.decode_many import in_order
from dca.engine.features import batch_size

if TYPE_CHECKING:
    from dca.model.classifier import Classifier

# An image, and its evaluation crop, uint8 (3, S, S).
Pair = tuple[ImageLike, NDArray[np.uint8] | Unreadable]
Crop = Callable[[Image.Image], NDArray[np.uint8]]
# Images that pass the tower at once.
MOST_ON_CPU = 16
# Bytes of the largest activation of a batch on a CPU. Small activations stay in its caches, and blocks of more than
# 32 MB are mapped by the system, page by page, for every layer anew: a tower of the shape of ViT-B/16 takes 375 ms of
# one core per image in batches of 8, and 400 ms in batches of 16.
LARGEST_ACTIVATION = 2**24
# Images that are decoded ahead of a GPU.
AHEAD = 256


@dataclass(frozen=True)
class Answered:
    """What a model says about one image.

    image: as it was given. probabilities: (C,). p_value, labels: as in `Answers`; None where there is none.
    """

    image: ImageLike
    probabilities: NDArray[np.float64]
    p_value: float | None
    labels: list[Any] | None


def stream_answers(
    model: Classifier, images: Iterable[ImageLike], *, coverage: float | None = None, batch: int | None = None
) -> Iterator[list[Answered | Unreadable]]:
    """Predict images in batches; every image has one outcome, in the order given.

    Args:
        model: A fitted classifier.
        images: Any number of images; a few batches of them are in memory at a time.
        coverage: Of the prediction sets; None for no sets.
        batch: Images per batch; None for a number that suits the device.

    Yields:
        The outcomes of one batch: an answer, or the reason why the image cannot be read.

    Raises:
        UserError: As for `Classifier.answers`, but not for images that cannot be read.
    """
    clip = model.method_.clip
    on_cpu = clip.device.type == "cpu"
    size = batch or (batch_on_cpu(clip.config.vision) if on_cpu else batch_size(clip))
    batches = (_to_decode if on_cpu else _decoded)(images, clip.preprocess.crop, size)
    threads = torch.get_num_threads()
    # One thread more than cores, for those that wait for a file.
    workers = threads + 1 if on_cpu else 1
    pool = ThreadPoolExecutor(workers, "dca-encode", _use_one_core if on_cpu else None)
    waiting: deque[Future[list[Answered | Unreadable]]] = deque()
    try:
        for pairs in batches:
            waiting.append(pool.submit(_answered, model, pairs, coverage))
            if len(waiting) > (2 * workers if on_cpu else 1):  # one for each thread that has just finished another
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)  # the number of threads that begin later, too


def batch_on_cpu(tower: VisionConfig) -> int:
    """Images that pass an image tower at once on a CPU.

    >>> from dca.clip import VIT_B_16
    >>> batch_on_cpu(VIT_B_16.vision)
    6
    """
    floats_per_image = (1 + tower.patches) * tower.hidden
    return min(MOST_ON_CPU, max(1, LARGEST_ACTIVATION // (4 * floats_per_image)))


def _use_one_core() -> None:
    """Make torch compute in the calling thread alone."""
    torch.set_num_threads(1)


def _to_decode(images: Iterable[ImageLike], crop: Crop, batch: int) -> Iterator[Iterable[Pair]]:
    """As `_decoded`, but an image is decoded when its pair is asked for, by the thread that asks."""
    source = iter(images)
    while some := list(islice(source, batch)):
        yield ((image, opened(image, crop)) for image in some)


def _decoded(images: Iterable[ImageLike], crop: Crop, batch: int) -> Iterator[Iterable[Pair]]:
    """Images with their crops, or the reasons why they cannot be read, in groups of at most `batch`."""
    ahead, named = tee(images)
    pairs = zip(named, in_order(ahead, crop, workers=None, ahead=AHEAD), strict=True)
    while some := list(islice(pairs, batch)):
        yield some


def _answered(model: Classifier, pairs: Iterable[Pair], coverage: float | None) -> list[Answered | Unreadable]:
    """The outcomes of images and their crops, uint8 (3, S, S)."""
    pairs = list(pairs)
    crops = [crop for _, crop in pairs if not isinstance(crop, Unreadable)]
    if not crops:
        return [crop for _, crop in pairs if isinstance(crop, Unreadable)]
    found = model.answers_for_crops(torch.from_numpy(np.stack(crops)), coverage=coverage)
    rows = iter(range(len(crops)))
    outcomes: list[Answered | Unreadable] = []
    for image, crop in pairs:
        if isinstance(crop, Unreadable):
            outcomes.append(crop)
            continue
        n = next(rows)
        p_value = None if found.p_values is None else float(found.p_values[n])
        labels = None if found.sets is None else found.sets[n]
        outcomes.append(Answered(image, found.probabilities[n], p_value, labels))
    return outcomes


def row_of(outcome: Answered | Unreadable, classes: Sequence[Any], top: int, reject: float | None) -> dict[str, Any]:
    """The plain values of one image, as `--json` prints them; an unreadable one has `path` and `error`.

    top: number of classes to name, best first. reject: the label is "none of these" below this p-value.
    """
    if isinstance(outcome, Unreadable):
        return {"path": str(outcome.image), "error": outcome.reason}
    p = outcome.probabilities
    best = [{"label": str(classes[c]), "probability": float(p[c])} for c in (-p).argsort(kind="stable")[:top]]
    row: dict[str, Any] = {"path": str(outcome.image), **best[0], "top": best}
    if outcome.p_value is not None:
        row["p_value"] = outcome.p_value
        if reject is not None and outcome.p_value < reject:
            row["label"] = NONE
    if outcome.labels is not None:
        row["set"] = [str(label) for label in outcome.labels]
    return row
