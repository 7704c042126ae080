"""What is used of Ray, in this process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__("a long text\nof several lines")
        self.cause = cause


class StandIn:
    """The parts of Ray that are used; a task is done when it is waited for. lost: numbers of tasks that are lost."""

    def __init__(self, lost: tuple[int, ...] = ()) -> None:
        self.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
        self.given: list[dict[str, Any]] = []
        self.lost, self.done, self.most, self.ended = lost, 0, 0, 0

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1.0}

    def remote(self, **given: Any) -> Callable[[Any], Any]:
        self.given.append(given)
        return lambda function: SimpleNamespace(remote=lambda *arguments: partial(function, *arguments))

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        self.most = max(self.most, len(references))
        return references[-1:], references[:-1]  # not in their order

    def get(self, reference: Any) -> Any:
        self.done += 1
        if self.done in self.lost:
            raise RayError("the node died\nmore")
        try:
            return reference()
        except Exception as error:
            raise RayTaskError(error) from None

    def shutdown(self) -> None:
        self.ended += 1
