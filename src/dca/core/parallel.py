"""Work in threads whose results come in the order of the items."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def map_in_order(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    workers: int,
    ahead: int,
    name: str = "dca-worker",
    initializer: Callable[[], None] | None = None,
) -> Iterator[R]:
    """Yield `function` of every item, in order, while threads work at most `ahead` items beyond the consumer.

    Items are taken from their iterable only as far ahead, so there may be any number of them.

    Args:
        function: Called in the threads.
        items: Its arguments.
        workers: Number of threads.
        ahead: Items that are worked on, or done, before they are asked for.
        name: Prefix of the threads' names.
        initializer: Called once in every thread.

    Yields:
        One result per item. What the function raises is raised here; the threads end with the generator.

    Example:
        >>> list(map_in_order(abs, [-1, 2, -3], workers=2, ahead=2))
        [1, 2, 3]
    """
    pool = ThreadPoolExecutor(workers, name, initializer)
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
