"""The common style of all charts: colours, fonts, boxes in inches, safe text, atomic saving."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dca.core.errors import UserError
from dca.core.files import explain_write_errors, write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The colours of Okabe and Ito, which can be told apart with any colour vision.
BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
SERIES = (BLUE, ORANGE, GREEN, "#cc79a7", "#56b4e9", RED, "#8a6d00")
TEXT, MUTED, RULE, PALE = "#20242c", "#68707d", "#e3e6ea", "#b9c0ca"
# Sizes in points of titles, of text, and of the labels of axes.
TITLE, BODY, TICK = 13, 9, 8.5
# Width in inches of the longest name of a class beside a chart, and of the gap after a column of names.
LONGEST_NAME, LABEL_GAP = 1.65, 0.15

_SUFFIXES = (".png", ".svg")
# Tried in this order for letters that DejaVu lacks; only those installed are used.
_MORE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Noto Sans JP",
    "Noto Sans KR",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "PingFang SC",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "Arial Unicode MS",
)


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def missing_matplotlib() -> UserError:
    """The error where matplotlib is missing."""
    return UserError("charts need matplotlib, which is not installed.", hint="pip install 'dca-prompt[report]'")


def require_matplotlib() -> None:
    """Raise a UserError if matplotlib is not installed."""
    if not can_draw():
        raise missing_matplotlib()


def require_drawable(path: Path | str) -> None:
    """Raise a UserError, before any work, if a chart cannot be drawn or has another format by its name."""
    require_matplotlib()
    _require_suffix(Path(path))


def _require_suffix(path: Path) -> str:
    """The suffix of a chart's file: .png or .svg."""
    kind = path.suffix.lower()
    if kind not in _SUFFIXES:
        raise UserError(f"{path}: charts are written as {' or '.join(_SUFFIXES)}.", hint=f"use {path.stem}.png")
    return kind


@cache
def _fonts() -> tuple[str, ...]:
    """Font families to draw with: DejaVu, which comes with matplotlib, then those installed here."""
    require_matplotlib()
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    return "DejaVu Sans", *(name for name in _MORE_FONTS if name in installed)


@cache
def _drawable_letters() -> frozenset[int]:
    """Code points that one of the fonts can draw."""
    from matplotlib import font_manager

    codes: set[int] = set()
    for name in _fonts():
        codes.update(font_manager.get_font(font_manager.findfont(name)).get_charmap())
    return frozenset(codes)


def fit_text(text: str, most: int = 28) -> str:
    """Text that can be drawn on one line: no control characters, no missing glyphs, at most `most` long.

    A longer one loses its middle: names of a group ("Boeing 737-700", "Boeing 737-800") often differ at the end.
    """
    words = " ".join(text.split())
    kept = "".join(c for c in words if unicodedata.category(c)[0] != "C")
    kept = "".join(c if ord(c) in _drawable_letters() else "\N{WHITE SQUARE}" for c in kept) or "(no name)"
    if len(kept) <= most:
        return kept
    tail = most // 3
    return kept[: most - 1 - tail].rstrip() + "…" + kept[len(kept) - tail :].lstrip()


def measure_width(text: str, size: float, *, bold: bool = False) -> float:
    """Width in inches of text of a font size in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=list(_fonts()), weight="bold" if bold else "normal", size=size)
    points: float = text_to_path.get_text_width_height_descent(text, font, False)[0]
    return points / 72


def fit_width(text: str, inches: float, size: float, *, bold: bool = False, frame: str = "{}") -> str:
    """Text of a font size, in points, that is at most so many inches wide: letters differ in width.

    frame: what stands around it, which is not cut.
    """

    def fits(words: str) -> bool:
        return measure_width(frame.replace("{}", words), size, bold=bold) <= inches

    words = fit_text(text, 200)
    if not fits(words):
        fewest, most = 3, len(words)  # letters: these fit as far as that is possible, and those do not
        while most - fewest > 1:
            middle = (fewest + most) // 2
            fewest, most = (middle, most) if fits(fit_text(text, middle)) else (fewest, middle)
        words = fit_text(text, fewest)
    return frame.replace("{}", words)


def wrap_width(words: str, inches: float, size: float) -> list[str]:
    """Text of a font size, in points, as lines of at most so many inches; a word that is wider has its own line."""
    first, *others = words.split(" ")
    lines = [first]
    for word in others:
        longer = f"{lines[-1]} {word}"
        if measure_width(longer, size) <= inches:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


@contextmanager
def new_figure(width: float, height: float) -> Iterator[Figure]:
    """Make a figure of this size in inches in the common style. Use and save it inside the context."""
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    look: Any = {
        "font.family": list(_fonts()),
        "font.size": BODY,
        "text.color": TEXT,
        # Class names with dollar signs are not formulas.
        "text.parse_math": False,
        "axes.edgecolor": RULE,
        "axes.labelcolor": MUTED,
        "axes.labelsize": TICK,
        "axes.axisbelow": True,
        "axes.unicode_minus": True,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelsize": TICK,
        "ytick.labelsize": TICK,
        **{f"{axis}tick.{kind}.size": 0 for axis in "xy" for kind in ("major", "minor")},
        "svg.hashsalt": "dca",
        "svg.fonttype": "path",
    }
    with matplotlib.rc_context(look):
        yield Figure(figsize=(width, height), dpi=160, facecolor="white")


def add_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Bare axes, placed in inches from the top left corner."""
    full_width, full_height = figure.get_size_inches()
    axes = figure.add_axes(
        (left / full_width, 1 - (top + height) / full_height, width / full_width, height / full_height)
    )
    for side in axes.spines.values():
        side.set_visible(False)
    return axes


def add_text(figure: Figure, left: float, top: float, words: str, **look: Any) -> None:
    """Text on the figure, its upper left corner placed in inches from the top left."""
    width, height = figure.get_size_inches()
    figure.text(left / width, 1 - top / height, words, **{"ha": "left", "va": "top", **look})


def column_width(words: Iterable[str], size: float, *, bold: bool = False) -> float:
    """Width in inches of a column of labels of a font size, with a gap beside them."""
    return LABEL_GAP + max((measure_width(each, size, bold=bold) for each in words), default=0.0)


def add_title(figure: Figure, title: str, below: str = "", *, left: float = 0.3, top: float = 0.25) -> None:
    """Title, and a muted line below it."""
    add_text(figure, left, top, title, size=TITLE, weight="bold")
    if below:
        add_text(figure, left, top + 0.3, below, size=9, color=MUTED)


def save_figure(figure: Figure, path: Path | str) -> Path:
    """Write the figure atomically as PNG or SVG, by the suffix of `path`; returns the path."""
    path = Path(path)
    kind = _require_suffix(path)
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    # Without the program's version and the date, equal data give equal files.
    metadata = {"Software": None} if kind == ".png" else {"Date": None, "Creator": None}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind[1:], metadata=metadata)
    write_bytes(path, buffer.getvalue())
    return path
