"""How numbers, sizes, durations and names are written, and when two names count as the same."""

from __future__ import annotations

import re
import unicodedata

# The answer for an image that is of none of the classes.
NONE = "none of these"

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_SEPARATORS = re.compile(r"[\s_\-/.,]+")


def counted(n: int, noun: str, verb: str = "", *, of: int | None = None) -> str:
    """A number with its noun and, if given, its verb, both in the right number.

    noun: singular. verb: plural ("are", "have", "lie").

    >>> counted(1, "image"), counted(1200, "image", "are"), counted(1, "class", "have", of=3)
    ('1 image', '1,200 images are', '1 of 3 classes has')
    """
    total = n if of is None else of
    ending = "" if total == 1 else "es" if noun.endswith("s") else "s"
    words = [f"{n:,}" if of is None else f"{n:,} of {of:,}", f"{noun}{ending}"]
    if verb:
        words.append({"are": "is", "have": "has"}.get(verb, f"{verb}s") if n == 1 else verb)
    return " ".join(words)


def printable(name: str) -> str:
    """A file name as valid text: bytes that are not UTF-8 are replaced by U+FFFD.

    >>> printable("caf" + chr(0xDCE9)) == "caf" + chr(0xFFFD)
    True
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def bytes_text(count: float) -> str:
    """A size in bytes, kB, MB or GB.

    >>> bytes_text(512), bytes_text(999_940), bytes_text(999_960)
    ('512 bytes', '999.9 kB', '1.0 MB')
    """
    if round(count) < 1000:
        return f"{count:.0f} bytes"
    for unit in ("kB", "MB"):
        count /= 1000
        if round(count, 1) < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} GB"


def seconds_text(seconds: float) -> str:
    """A duration in seconds, or in minutes and seconds from 90 s on.

    >>> seconds_text(89.6), seconds_text(119.7), seconds_text(61.0)
    ('1 min 30 s', '2 min 0 s', '61 s')
    """
    whole = round(seconds)
    return f"{whole} s" if whole < 90 else f"{whole // 60} min {whole % 60} s"


def about_text(seconds: float) -> str:
    """A duration in whole minutes, or in hours from 90 minutes on.

    >>> about_text(61), about_text(100), about_text(420), about_text(3 * 3600)
    ('1 minute', '2 minutes', '7 minutes', '3 hours')
    """
    minutes = round(seconds / 60)
    return counted(max(minutes, 1), "minute") if minutes < 90 else counted(round(seconds / 3600), "hour")


def fold(name: str) -> str:
    """The form in which names are compared: two names count as the same if they fold to the same text.

    Unicode form and case are ignored, and runs of white space, `_`, `-`, `/`, `.` and `,` count as one
    space. A number keeps its sign and its decimal point, so that labels -1 and 1 stay apart.

    >>> fold(" Sea_or-Lake "), fold("Ram C/V Cargo_Van") == fold("ram c-v cargo van")
    ('sea or lake', True)
    """
    # Normalised again after folding the case, which can leave a sequence that NFKC would compose.
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).strip()
    return folded if _NUMBER.fullmatch(folded) else _SEPARATORS.sub(" ", folded).strip()
