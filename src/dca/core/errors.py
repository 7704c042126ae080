"""What the user must change, and how we say it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

MOST_DETAILS = 20
# Share of letters that two names must have in common for the one to be a slip of the other.
CLOSE = 0.6


class UserError(Exception):
    """A problem in the user's flags, data or files: exit 2, no traceback.

    problem: one sentence that names what was found and where.
    details: one line per place, all of a kind together.
    hint: the command or change that fixes it.
    """

    def __init__(self, problem: str, *, details: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.details = tuple(details)
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.problem, self.details, self.hint)

    def __str__(self) -> str:
        """The whole message: the problem, its places, the way out."""
        lines = [self.problem]
        lines += [f"  {line}" for line in self.details[:MOST_DETAILS]]
        if len(self.details) > MOST_DETAILS:
            lines.append(f"  ... and {len(self.details) - MOST_DETAILS:,} more")
        if self.hint:
            lines.append(f"  fix: {self.hint}")
        return "\n".join(lines)


def _rebuild(problem: str, details: Sequence[str], hint: str) -> UserError:
    """Make the error again after a trip between processes."""
    return UserError(problem, details=details, hint=hint)


def counted(n: int, noun: str, verb: str = "", *, of: int | None = None) -> str:
    """A number, what it counts and the verb that goes with it, given as for many.

    >>> counted(1, "image"), counted(1200, "image", "are"), counted(1, "class", "have", of=3)
    ('1 image', '1,200 images are', '1 of 3 classes has')
    """
    all_of_them = n if of is None else of
    ending = "" if all_of_them == 1 else "es" if noun.endswith("s") else "s"
    words = [f"{n:,}" if of is None else f"{n:,} of {of:,}", f"{noun}{ending}"]
    if verb:
        words.append({"are": "is", "have": "has"}.get(verb, f"{verb}s") if n == 1 else verb)
    return " ".join(words)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is spelled most like this one; empty if none is close.

    >>> nearest("photoz", ["photos", "oxford_flowers"]), nearest("nofolder", ["photos", "oxford_flowers"])
    ('photos', '')
    """
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=CLOSE)), "")


def unknown_name(kind: str, name: str, known: Iterable[str], *, hint: str = "") -> UserError:
    """Error for a name that does not exist, with the nearest one that does."""
    known = sorted(known)
    close = nearest(name, known)
    guess = f" Did you mean '{close}'?" if close else ""
    return UserError(f"unknown {kind} '{name}'.{guess}", hint=hint or f"one of: {', '.join(known)}")
