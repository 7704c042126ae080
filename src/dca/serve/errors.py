"""Errors as a client of the API gets them: a code for programs, a message and a hint for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dca.core.errors import UserError
from dca.projects.project import ProjectError

# HTTP status of each code; `Error.code` in openapi.json lists the same codes.
STATUS = {
    "body-empty": 400,
    "body-incomplete": 400,
    "not-json": 400,
    "token-needed": 401,
    "other-site": 403,
    "header-missing": 403,
    "class-unknown": 404,
    "image-unknown": 404,
    "no-project": 404,
    "no-such-page": 404,
    "not-in-tray": 404,
    "photo-unknown": 404,
    "method-not-allowed": 405,
    "body-slow": 408,
    "changed-meanwhile": 409,
    "class-exists": 409,
    "no-corrections": 409,
    "no-model": 409,
    "nothing-to-redo": 409,
    "nothing-to-undo": 409,
    "project-exists": 409,
    "project-in-use": 409,
    "refit-impossible": 409,
    "refit-refused": 409,
    "refused": 409,
    "tray-full": 409,
    "body-large": 413,
    "image-large": 413,
    "content-type": 415,
    "image-format": 415,
    "unknown-host": 421,
    "image-damaged": 422,
    "image-slow": 422,
    "invalid-hash": 422,
    "invalid-label": 422,
    "invalid-revision": 422,
    "bug": 500,
    "busy": 503,
    "no-decoder": 503,
    "corrections-full": 507,
    "not-stored": 507,
    "project-full": 507,
}
# Seconds after which a client may ask again, for status 503.
RETRY_SECONDS = 2


class RequestError(Exception):
    """A request that is answered with an error.

    Args:
        code: What is wrong, for programs; one of `STATUS`.
        message: One sentence.
        hint: What the client can do.
        details: One line per place that has the problem.
        command: A command line that does it where the server runs.
        close: Whether the connection must end, because the request was not read to its end.
    """

    def __init__(
        self,
        code: str,
        message: str,
        hint: str = "",
        *,
        details: Sequence[str] = (),
        command: str = "",
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.hint, self.close = code, message, hint, close
        self.details, self.command = tuple(details), command

    @classmethod
    def from_user_error(cls, error: UserError, code: str, hint: str = "") -> RequestError:
        """The response to a request whose work the library refuses.

        The message of a file that cannot be written has a path of the server, so its client gets the reason alone.

        Args:
            error: The refusal.
            code: What is wrong, unless a file cannot be written or the error has a code of its own.
            hint: What a client can do; the error's own hint may name flags and arguments, which a client does not have.
        """
        if isinstance(error.__cause__, OSError):
            reason = error.__cause__.strerror or "input or output error"
            return cls("not-stored", f"the server cannot store this: {reason}", "free space there, then send it again")
        if isinstance(error, ProjectError):
            return cls(error.code, error.problem, str(error.hint or ""))
        return cls(code, error.problem, hint, details=error.details)

    @property
    def status(self) -> int:
        """HTTP status of the response."""
        return STATUS[self.code]

    def to_dict(self) -> dict[str, Any]:
        """The JSON value of the response."""
        told = {"hint": self.hint, "details": list(self.details), "command": self.command}
        return {"code": self.code, "message": self.message, **{name: value for name, value in told.items() if value}}
