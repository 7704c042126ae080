"""How numbers, sizes, durations and names are written, and when two names count as the same."""

from __future__ import annotations

import re
import unicodedata

# The answer for an image that is of none of the classes.
NONE_OF_THESE = "none of these"

# Categories of characters that a terminal obeys or does not show: control, format, surrogate, line and paragraph ends.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Joiners, which words of some scripts and emoji need.
_JOINERS = "\u200c\u200d"
# Characters of a class name: CLIP reads about 300, and work on megabytes of them would take minutes.
LONGEST_NAME = 500
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_SEPARATORS = re.compile(r"[\s_\-/.,]+")


def pluralize(n: int, noun: str, verb: str = "", *, of: int | None = None) -> str:
    """A number with its noun and, if given, its verb, both in the right number.

    noun: singular. verb: plural ("are", "have", "lie").

    >>> pluralize(1, "image"), pluralize(1200, "image", "are"), pluralize(1, "class", "have", of=3)
    ('1 image', '1,200 images are', '1 of 3 classes has')
    """
    total = n if of is None else of
    ending = "" if total == 1 else "es" if noun.endswith("s") else "s"
    words = [f"{n:,}" if of is None else f"{n:,} of {of:,}", f"{noun}{ending}"]
    if verb:
        words.append({"are": "is", "have": "has"}.get(verb, f"{verb}s") if n == 1 else verb)
    return " ".join(words)


def percent(share: float | None, digits: int = 1, *, space: str = " ") -> str:
    """A fraction in per cent; "-" for None.

    >>> percent(0.9751), percent(1.0, 0), percent(None)
    ('97.5 %', '100 %', '-')
    """
    return "-" if share is None else f"{100 * share:.{digits}f}{space}%"


def to_printable(name: str) -> str:
    """A file name as valid text: bytes that are not UTF-8 are replaced by U+FFFD.

    >>> to_printable("caf" + chr(0xDCE9)) == "caf" + chr(0xFFFD)
    True
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def find_invisible(text: str) -> list[int]:
    r"""Positions of characters that a terminal obeys or does not show: line ends, ESC, changes of direction, ...

    Joiners between characters beyond ASCII are none: words of some scripts and emoji have them.

    >>> find_invisible("big\ncat"), find_invisible("cat\u202egod"), find_invisible("👩\u200d🌾 大熊猫")
    ([3], [3], [])
    """
    if text.isprintable():
        return []
    places = [n for n, character in enumerate(text) if unicodedata.category(character) in _INVISIBLE]
    return [n for n in places if not (text[n] in _JOINERS and _joins(text, n))]


def _joins(text: str, place: int) -> bool:
    """Whether a character has others beyond ASCII on both sides."""
    return 0 < place < len(text) - 1 and text[place - 1] > "\x7f" and text[place + 1] > "\x7f"


def invisible_characters(text: str) -> set[str]:
    """The characters of a text that a terminal obeys or does not show, and joiners."""
    return {character for character in set(text) if unicodedata.category(character) in _INVISIBLE}


def make_visible(text: str) -> str:
    r"""Text for one line of a terminal: what it would obey or not show is written as an escape.

    Names, labels and paths may come from others. Bytes of a file name that are not UTF-8 are replaced by U+FFFD.

    >>> make_visible("a.jpg  cat\nb.jpg  dog") == "a.jpg  cat" + r"\n" + "b.jpg  dog"
    True
    >>> print(make_visible("\x1b[2J"), make_visible("a\u202eb"))
    \x1b[2J a\u202eb
    """
    characters = list(text)
    for place in find_invisible(text):
        known = text[place]
        escaped = "\ufffd" if "\ud800" <= known <= "\udfff" else known.encode("unicode_escape").decode()
        characters[place] = escaped
    return "".join(characters)


def name_fault(name: str) -> str:
    r"""What is wrong with a label or the name of a class; "" if nothing is.

    >>> name_fault("hot air balloon"), name_fault("cat\n"), name_fault("None of these")
    ('', "'cat\\n' is not a readable name", "'None of these' is the answer for images of none of the classes")
    """
    if len(name) > LONGEST_NAME:
        return f"'{make_visible(name[:20])}...' has {len(name):,} characters; at most {LONGEST_NAME}"
    if not name.strip(" _") or find_invisible(name):
        return f"{name!r} is not a readable name"
    if normalize_name(name) == NONE_OF_THESE:
        return f"'{name}' is the answer for images of none of the classes"
    return ""


def format_bytes(count: float) -> str:
    """A size in bytes, kB, MB or GB.

    >>> format_bytes(512), format_bytes(999_940), format_bytes(999_960)
    ('512 bytes', '999.9 kB', '1.0 MB')
    """
    if round(count) < 1000:
        return f"{count:.0f} bytes"
    for unit in ("kB", "MB"):
        count /= 1000
        if round(count, 1) < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} GB"


def format_seconds(seconds: float) -> str:
    """A duration in seconds, or in minutes and seconds from 90 s on.

    >>> format_seconds(89.6), format_seconds(119.7), format_seconds(61.0)
    ('1 min 30 s', '2 min 0 s', '61 s')
    """
    whole = round(seconds)
    return f"{whole} s" if whole < 90 else f"{whole // 60} min {whole % 60} s"


def format_long_duration(seconds: float) -> str:
    """A duration in whole minutes, or in hours from 90 minutes on.

    >>> format_long_duration(61), format_long_duration(100), format_long_duration(420), format_long_duration(3 * 3600)
    ('1 minute', '2 minutes', '7 minutes', '3 hours')
    """
    minutes = round(seconds / 60)
    return pluralize(max(minutes, 1), "minute") if minutes < 90 else pluralize(round(seconds / 3600), "hour")


def normalize_name(name: str) -> str:
    """The form in which names are compared: two names count as the same if they fold to the same text.

    Unicode form and case are ignored, and runs of white space, `_`, `-`, `/`, `.` and `,` count as one
    space. A number keeps its sign and its decimal point, so that labels -1 and 1 stay apart.

    >>> normalize_name(" Sea_or-Lake "), normalize_name("Ram C/V Cargo_Van") == normalize_name("ram c-v cargo van")
    ('sea or lake', True)
    """
    # Normalised again after folding the case, which can leave a sequence that NFKC would compose.
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).strip()
    return folded if _NUMBER.fullmatch(folded) else _SEPARATORS.sub(" ", folded).strip()
