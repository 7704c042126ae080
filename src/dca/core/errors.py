"""The error for problems that the user can solve, and the wording of its messages."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Sequence

from dca.core.hints import Action, Audience, Hint, render_hint, split_hint
from dca.core.text import make_visible

MOST_DETAILS = 20
# Similarity (0 to 1, difflib) from which one name counts as a misspelling of another.
CLOSE = 0.6


class UserError(Exception):
    """A problem with the user's arguments, data or files; the command line exits with 2 and shows no traceback.

    Args:
        problem: One sentence that says what was found and where.
        details: One line per place that has the problem.
        hint: How to solve it: plain text where that is the same for everyone, an `Action` of
            `dca.core.hints` where the command line and Python need different words, or several of
            these, which are joined with "or".

    Attributes:
        problem: As given.
        details: As given, as a tuple.
        hint_parts: The parts of the hint.

    Example:
        >>> from dca.core.hints import set_shots
        >>> error = UserError("class 'cat' has 2 images", hint=["add images", set_shots(2)])
        >>> error.hint
        'add images, or use shots=2'
        >>> print(error.render("cli"))
        class 'cat' has 2 images
          fix: add images, or use --shots 2
    """

    def __init__(self, problem: str, *, details: Sequence[str] = (), hint: Hint = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.details = tuple(details)
        self.hint_parts = split_hint(hint)

    @property
    def hint(self) -> str:
        """How to solve the problem, in the words of Python."""
        return render_hint(self.hint_parts, "python")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.problem, self.details, self.hint_parts)

    def __str__(self) -> str:
        return self.render("python")

    def render(self, audience: Audience) -> str:
        """The whole message: the problem, at most 20 details, and the hint.

        Args:
            audience: "cli" words the hint with flags and commands, "python" with arguments and calls.

        Returns:
            The message, one line per detail; what a terminal would obey in a name is written as an escape.
        """
        lines = [self.problem]
        lines += [f"  {line}" for line in self.details[:MOST_DETAILS]]
        if len(self.details) > MOST_DETAILS:
            lines.append(f"  ... and {len(self.details) - MOST_DETAILS:,} more")
        if self.hint_parts:
            lines.append(f"  fix: {render_hint(self.hint_parts, audience)}")
        return "\n".join(map(make_visible, lines))


class MissingPackageError(UserError, ImportError):
    """A module of this package needs an optional package that is not installed."""


class NotFittedError(UserError, ValueError, AttributeError):
    """A model is used before it is fitted; where scikit-learn is imported, also its error of this name.

    Args:
        problem: As for `UserError`.
        details: As for `UserError`.
        hint: As for `UserError`.

    Attributes:
        problem: As for `UserError`.
        details: As for `UserError`.
        hint_parts: As for `UserError`.

    Example:
        >>> from dca import Classifier, NotFittedError
        >>> try:
        ...     Classifier().predict("new.jpg")
        ... except NotFittedError as error:
        ...     print(error.problem)
        this classifier is not fitted yet
    """


def not_fitted_error(problem: str, *, hint: Hint = "") -> NotFittedError:
    """The error for a model that is used before it is fitted."""
    exceptions = sys.modules.get("sklearn.exceptions")  # nobody can catch its error without having imported it
    if exceptions is None:
        return NotFittedError(problem, hint=hint)
    both = type("NotFittedError", (NotFittedError, exceptions.NotFittedError), {"__module__": __name__})
    error: NotFittedError = both(problem, hint=hint)
    return error


def _rebuild(problem: str, details: Sequence[str], hint: Sequence[str | Action]) -> UserError:
    """The error again, after pickling (exceptions with keyword arguments do not pickle by themselves)."""
    return UserError(problem, details=details, hint=hint)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is spelled most like this one; empty if none is close.

    >>> nearest("photoz", ["photos", "oxford_flowers"]), nearest("nofolder", ["photos", "oxford_flowers"])
    ('photos', '')
    """
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=CLOSE)), "")


def unknown_name(kind: str, name: str, known: Iterable[str], *, hint: Hint = "") -> UserError:
    """The error for a name of this kind that is not among the known ones; it suggests the most similar one."""
    known = sorted(known)
    close = nearest(name, known)
    guess = f" Did you mean '{close}'?" if close else ""
    return UserError(f"unknown {kind} '{name}'.{guess}", hint=hint or f"one of: {', '.join(known)}")
