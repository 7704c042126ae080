"""The one way from images to what a model says of them: open, crop, stack, encode, in batches on all cores.

On a CPU, every core decodes and encodes batches of its own: threads that share one matrix product wait for each other
at its end, all the longer where other work uses the cores, too, and threads that only decode take turns with those that
encode, which costs both of them their caches. What a batch gives does not depend on the number of cores. On a GPU,
threads or processes decode images ahead of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Generic, TypeVar

import torch
from PIL import Image
from torch import Tensor

from dca.backbones.clip import CLIP
from dca.backbones.clip.config import VisionConfig
from dca.core.parallel import map_in_order
from dca.images.decode import Decodable, Unreadable, decode_image, iter_decode, worker_count

R = TypeVar("R")
T = TypeVar("T")
# Most images per batch on a CPU.
MOST_ON_CPU = 16
# Bytes of the largest activation of a batch on a CPU. Small activations stay in its caches, and blocks of more than
# 32 MB are mapped by the system, page by page, for every layer anew: a tower of the shape of ViT-B/16 takes 375 ms of
# one core per image in batches of 8, and 400 ms in batches of 16.
LARGEST_ACTIVATION = 2**24
# Images per batch on a GPU: the least number, the most, and the pixels of all together. A GPU encodes a small image
# faster than a batch is prepared and its result is fetched, so small images come in large batches.
LEAST_ON_GPU, MOST_ON_GPU, PIXELS_ON_GPU = 128, 1024, 128 * 224**2
# Images that are decoded ahead of a GPU.
AHEAD = 256


@dataclass(frozen=True, slots=True)
class Source:
    """Where the crops of one image come from.

    image: the image. crops: makes its crops from RGB, (3, S, S) or (V, 3, S, S), uint8; or the crops themselves.
    """

    image: Decodable
    crops: Callable[[Image.Image], object] | Tensor


@dataclass(frozen=True, slots=True)
class EncodedBatch(Generic[R]):
    """What became of the images of a batch.

    outcomes: per image its crops (V, 3, S, S), or why it cannot be read. result: of the readable images' crops; None
    if there are none.
    """

    outcomes: list[Tensor | Unreadable]
    result: R | None


def choose_batch_size(clip: CLIP) -> int:
    """Images that pass the image tower at once.

    >>> choose_batch_size(CLIP.from_pretrained("mini"))
    16
    """
    if clip.device.type == "cpu":
        return choose_cpu_batch_size(clip.config.vision)
    return max(LEAST_ON_GPU, min(PIXELS_ON_GPU // clip.preprocess.size**2, MOST_ON_GPU))


def choose_cpu_batch_size(tower: VisionConfig) -> int:
    """Images that pass an image tower at once on a CPU.

    >>> from dca.backbones.clip import VIT_B_16
    >>> choose_cpu_batch_size(VIT_B_16.vision)
    6
    """
    floats_per_image = (1 + tower.patches) * tower.hidden
    return min(MOST_ON_CPU, max(1, LARGEST_ACTIVATION // (4 * floats_per_image)))


def encode_batches(
    sources: Iterable[Source],
    encode: Callable[[Tensor], R],
    clip: CLIP,
    *,
    size: int | None = None,
) -> Iterator[EncodedBatch[R]]:
    """Open images, crop them, and encode them in batches.

    Args:
        sources: Any number of images; a few batches of them are in memory at a time.
        encode: From normalised pixels (B, 3, S, S) on the backbone's device to anything. On a CPU it is called in
            several threads.
        clip: The backbone, whose preprocessing normalises.
        size: Images per batch; by default one that suits the device.

    Yields:
        One result per batch, in order; every image is in one of them.
    """
    size = size or choose_batch_size(clip)

    def finish(outcomes: list[Tensor | Unreadable]) -> EncodedBatch[R]:
        readable = [crops for crops in outcomes if isinstance(crops, Tensor)]
        if not readable:
            return EncodedBatch(outcomes, None)
        with torch.no_grad():
            crops = torch.cat(readable)
            if clip.device.type == "cuda":
                crops = crops.pin_memory()
            return EncodedBatch(outcomes, encode(clip.preprocess.normalize(crops.to(clip.device, non_blocking=True))))

    def decode_and_finish(batch: Sequence[Source]) -> EncodedBatch[R]:
        return finish([decode_source(source) for source in batch])

    if clip.device.type != "cpu":
        yield from map(finish, _split_into_batches(_decode_ahead(sources), size))
        return
    batches = _split_into_batches(sources, size)
    first = list(islice(batches, 2))
    if len(first) < 2:  # all cores share the only batch
        yield from map(decode_and_finish, first)
        return
    threads = torch.get_num_threads()
    # One thread more than cores, for those that wait for a file; one batch ahead for each that has just finished.
    workers = threads + 1
    try:
        yield from map_in_order(
            decode_and_finish,
            chain(first, batches),
            workers=workers,
            ahead=2 * workers,
            name="dca-encode",
            initializer=_use_one_core,
        )
    finally:
        torch.set_num_threads(threads)  # the number of threads that begin later, too


def decode_source(source: Source) -> Tensor | Unreadable:
    """The crops of one image, (V, 3, S, S)."""
    if isinstance(source.crops, Tensor):
        return _to_views(source.crops)
    outcome = decode_image(source.image, source.crops)
    return outcome if isinstance(outcome, Unreadable) else _to_views(torch.as_tensor(outcome))


def _decode_ahead(sources: Iterable[Source]) -> Iterator[Tensor | Unreadable]:
    """The crops of all images, decoded ahead of the consumer; by processes where there are many files."""
    if not isinstance(sources, Sequence):
        yield from map_in_order(decode_source, sources, workers=worker_count(), ahead=AHEAD, name="dca-decode")
        return
    images, functions = list[Decodable](), list[Callable[[Image.Image], object]]()
    for source in sources:
        if not isinstance(source.crops, Tensor):
            images.append(source.image)
            functions.append(source.crops)
    decoded = iter_decode(images, functions, ahead=AHEAD)
    for source in sources:
        outcome = source.crops if isinstance(source.crops, Tensor) else next(decoded)
        yield outcome if isinstance(outcome, Unreadable) else _to_views(torch.as_tensor(outcome))


def _split_into_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`, the last one shorter."""
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch


def _to_views(crops: Tensor) -> Tensor:
    """Crops (3, S, S) or (V, 3, S, S) as (V, 3, S, S)."""
    return crops[None] if crops.dim() == 3 else crops


def _use_one_core() -> None:
    """Make torch compute in the calling thread alone."""
    torch.set_num_threads(1)
