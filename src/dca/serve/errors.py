"""The error that becomes a JSON answer."""

from __future__ import annotations

from typing import Any


class RequestError(Exception):
    """A request that cannot be done.

    Args:
        status: HTTP status of the answer.
        problem: One sentence.
        hint: What the client can do.
        close: Whether the connection must end, because the request was not read to its end.
        facts: Further values of the answer.
    """

    def __init__(self, status: int, problem: str, hint: str = "", *, close: bool = False, **facts: Any) -> None:
        super().__init__(problem)
        self.status, self.problem, self.hint, self.close, self.facts = status, problem, hint, close, facts

    def to_dict(self) -> dict[str, Any]:
        """The JSON value of the answer."""
        hint = {"hint": self.hint} if self.hint else {}
        return {"error": self.problem, **hint, **self.facts}
