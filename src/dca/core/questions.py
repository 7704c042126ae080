"""Questions that only the user can answer: a program with a terminal says how to ask, elsewhere the answer is no."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ask: Callable[[str], bool] | None = None


@contextmanager
def asking(ask: Callable[[str], bool]) -> Iterator[None]:
    """Within the block, questions of this process go to `ask`, which returns whether the answer is yes."""
    global _ask
    before, _ask = _ask, ask
    try:
        yield
    finally:
        _ask = before


def ask_user(question: str) -> bool:
    """Whether the user answers yes; False where nobody can be asked.

    >>> ask_user("fetch it?")
    False
    >>> with asking(lambda question: question == "fetch it?"):
    ...     ask_user("fetch it?")
    True
    """
    return _ask is not None and _ask(question)
