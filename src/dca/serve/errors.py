"""The error that becomes a JSON response."""

from __future__ import annotations

from typing import Any

from dca.core.errors import UserError
from dca.core.hints import render_hint


class RequestError(Exception):
    """A request that is answered with an error.

    Args:
        status: HTTP status of the response.
        problem: One sentence.
        hint: What the client can do.
        close: Whether the connection must end, because the request was not read to its end.
        extra: Further values of the response.
    """

    def __init__(self, status: int, problem: str, hint: str = "", *, close: bool = False, **extra: Any) -> None:
        super().__init__(problem)
        self.status, self.problem, self.hint, self.close, self.extra = status, problem, hint, close, extra

    @classmethod
    def from_user_error(cls, error: UserError) -> RequestError:
        """The response to a request whose work the library refuses; hints are in the words of the command line."""
        return cls(409, error.problem, render_hint(error.hint_parts, "cli"), details=list(error.details))

    def to_dict(self) -> dict[str, Any]:
        """The JSON value of the response."""
        hint = {"hint": self.hint} if self.hint else {}
        return {"error": self.problem, **hint, **self.extra}
