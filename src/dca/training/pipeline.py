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

from dca.backbones.encoder import Encoder
from dca.core.parallel import map_in_order
from dca.images.decode import Decodable, Unreadable, decode_image, iter_decode, worker_count

R = TypeVar("R")
T = TypeVar("T")
# Images per batch on a GPU: the least number, the most, and the pixels of all together. A GPU encodes a small image
# faster than a batch is prepared and its result is fetched, so small images come in large batches.
LEAST_ON_GPU, MOST_ON_GPU, PIXELS_ON_GPU = 128, 1024, 128 * 224**2
# Images that are decoded ahead of a GPU.
AHEAD = 256


@dataclass(frozen=True, slots=True)
class Source:
    """Where the crops of one image come from.

    image: the image. crops: makes its crops from RGB, uint8 (3, S, S) or (V, 3, S, S), for a pool (values,) or
    (V, values); or the crops themselves.
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


def choose_batch_size(encoder: Encoder) -> int:
    """Images that pass the encoder at once."""
    if encoder.device.type == "cpu":
        return encoder.batch_size_on_cpu
    return max(LEAST_ON_GPU, min(PIXELS_ON_GPU // encoder.preprocess.size**2, MOST_ON_GPU))


def encode_batches(
    sources: Iterable[Source],
    encode: Callable[[Tensor], R],
    encoder: Encoder,
    *,
    size: int | None = None,
) -> Iterator[EncodedBatch[R]]:
    """Open images, crop them, and encode them in batches.

    Args:
        sources: Any number of images; a few batches of them are in memory at a time.
        encode: From normalised pixels (B, 3, S, S) on the backbone's device to anything. On a CPU it is called in
            several threads.
        encoder: The backbone, whose preprocessing normalises.
        size: Images per batch; by default one that suits the device.

    Yields:
        One result per batch, in order; every image is in one of them.
    """
    size = size or choose_batch_size(encoder)

    def finish(outcomes: list[Tensor | Unreadable]) -> EncodedBatch[R]:
        readable = [crops for crops in outcomes if isinstance(crops, Tensor)]
        if not readable:
            return EncodedBatch(outcomes, None)
        with torch.no_grad():
            crops = torch.cat(readable)
            if encoder.device.type == "cuda":
                crops = crops.pin_memory()
            return EncodedBatch(
                outcomes, encode(encoder.preprocess.normalize(crops.to(encoder.device, non_blocking=True)))
            )

    def decode_and_finish(batch: Sequence[Source]) -> EncodedBatch[R]:
        return finish([decode_source(source) for source in batch])

    if encoder.device.type != "cpu":
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
    """Crops of one view, (3, S, S) or (values,), or of V views, with an axis for the views."""
    return crops[None] if crops.dim() in (1, 3) else crops


def _use_one_core() -> None:
    """Make torch compute in the calling thread alone."""
    torch.set_num_threads(1)
