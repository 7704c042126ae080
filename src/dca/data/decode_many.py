"""Many images -> what is wanted of each, in order: in threads, or in processes where there are many files.

Much of the time that Pillow takes for a small file is Python's own, so threads wait for each other: sixteen cores read
no faster than two. Forked processes do not, and begin at once, since nothing is imported or sent to them. Systems that
cannot fork use threads.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from dca.core.actions import check_data, raise_pixel_limit, skip_unreadable
from dca.core.errors import UserError
from dca.core.processes import end_with_parent
from dca.core.wording import counted
from dca.data.dataset import ImageLike
from dca.data.decode import Unreadable, opened

T = TypeVar("T")
# Called with (images done, images in all).
Count = Callable[[int, int], None]
# What to do with an RGB image: one function, or one function per image.
Apply = Callable[[Image.Image], T] | Sequence[Callable[[Image.Image], T]]
_AHEAD = 64
# Files and workers from which on processes are started, and files that one of them reads at a time.
MANY_FILES, MANY_WORKERS, CHUNK = 1000, 4, 32


def decode(
    images: Sequence[ImageLike],
    apply: Apply[T],
    *,
    workers: int | None = None,
    progress: Count | None = None,
    upright: bool = True,
) -> list[T]:
    """Open every image and return `apply` of each RGB image, in order.

    apply: one function, or one function per image. upright: apply EXIF rotations. Raises one UserError that lists
    every unreadable file.
    """
    outcomes = attempt(images, apply, workers=workers, progress=progress, upright=upright)
    if faults := [outcome for outcome in outcomes if isinstance(outcome, Unreadable)]:
        raise unreadable(faults, len(images))
    return [outcome for outcome in outcomes if not isinstance(outcome, Unreadable)]


def attempt(
    images: Sequence[ImageLike],
    apply: Apply[T],
    *,
    workers: int | None = None,
    progress: Count | None = None,
    upright: bool = True,
) -> list[T | Unreadable]:
    """Like `decode`, with an `Unreadable` in the place of each image that cannot be read."""
    outcomes: list[T | Unreadable] = []
    for outcome in in_order(images, apply, workers=workers, ahead=_AHEAD, upright=upright):
        outcomes.append(outcome)
        if progress is not None:
            progress(len(outcomes), len(images))
    return outcomes


def in_order(
    images: Iterable[ImageLike], apply: Apply[T], *, workers: int | None = None, ahead: int, upright: bool = True
) -> Iterator[T | Unreadable]:
    """Open images at most `ahead` of the consumer, and yield the outcomes in order.

    workers: number of threads or processes; by default as many as torch uses threads. upright: apply EXIF rotations.
    """
    count = workers or _workers()
    if isinstance(images, Sequence) and processes_pay(images, count):
        return in_processes(images, apply, workers=count, ahead=ahead, upright=upright)
    return in_threads(images, apply, workers=count, ahead=ahead, upright=upright)


def processes_pay(images: Sequence[ImageLike], workers: int) -> bool:
    """Whether processes read these images sooner than threads, and can."""
    enough = len(images) >= MANY_FILES and workers >= MANY_WORKERS
    able = "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
    # A process that is itself a worker of this kind may not start others.
    return enough and able and not _is_daemon() and all(isinstance(image, Path) for image in images)


def _is_daemon() -> bool:
    return bool(multiprocessing.current_process().daemon)


def _workers() -> int:
    """As many as torch uses threads, so that several processes on one machine share its cores; else one per core."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch is not None else os.cpu_count() or 1


def in_threads(
    images: Iterable[ImageLike], apply: Apply[T], *, workers: int, ahead: int, upright: bool
) -> Iterator[T | Unreadable]:
    """`in_order` by threads."""
    pairs = zip(images, repeat(apply), strict=False) if callable(apply) else zip(images, apply, strict=True)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="dca-decode")
    waiting: deque[Future[T | Unreadable]] = deque()
    try:
        for image, function in pairs:
            waiting.append(pool.submit(opened, image, function, upright=upright))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        for future in waiting:
            yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def in_processes(
    images: Sequence[ImageLike], apply: Apply[T], *, workers: int, ahead: int, upright: bool
) -> Iterator[T | Unreadable]:
    """`in_order` by forked processes, which read some files at a time."""
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(workers, context, _begin, (images, apply, upright))
    waiting: deque[Future[list[T | Unreadable]]] = deque()
    try:
        for first in range(0, len(images), CHUNK):
            with warnings.catch_warnings():
                # The processes only read images, so locks that threads of this one hold are no matter.
                warnings.simplefilter("ignore", DeprecationWarning)
                waiting.append(pool.submit(_read, range(first, min(first + CHUNK, len(images)))))
            if len(waiting) > max(ahead // CHUNK, 2 * workers):
                yield from waiting.popleft().result()
        for future in waiting:
            yield from future.result()
    except BrokenProcessPool as error:
        raise UserError(
            "a process that read images was ended from outside",
            hint="if memory ran out, fewer read at once with OMP_NUM_THREADS=2",
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


# In a process that reads: all images, what to do with them, and whether EXIF rotations are applied.
_task: tuple[Sequence[ImageLike], Apply[Any], bool]


def _begin(images: Sequence[ImageLike], apply: Apply[Any], upright: bool) -> None:
    """The start of a process that reads; a fork shares its arguments, so nothing is copied."""
    global _task
    _task = images, apply, upright
    end_with_parent()
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # threads of the first process do not exist in a fork


def _read(places: range) -> list[Any]:
    """The outcomes of the images at these places."""
    images, apply, upright = _task
    return [opened(images[n], apply if callable(apply) else apply[n], upright=upright) for n in places]


def unreadable(faults: Sequence[Unreadable], total: int) -> UserError:
    """One error for all images that could not be read."""
    larger = [raise_pixel_limit()] if any(fault.too_large for fault in faults) else []
    return UserError(
        f"{counted(len(faults), 'image', of=total)} cannot be read.",
        details=[str(fault) for fault in faults],
        hint=["replace or remove these files", check_data(), skip_unreadable(), *larger],
    )
