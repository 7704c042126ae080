"""Small drawings for pages: SVG elements whose attributes and texts are escaped, and scales for axes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from markupsafe import Markup, escape


def element(name: str, *children: object, **attributes: object) -> Markup:
    """One element; `class_` and `stroke_width` become class and stroke-width, numbers get at most two decimals.

    >>> str(element("text", "a < b", class_="name", stroke_width=0.5))
    '<text class="name" stroke-width="0.5">a &lt; b</text>'
    """
    parts = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(_text(v))}"' for key, v in attributes.items())
    inside = Markup("").join(escape(child) for child in children)
    return Markup(f"<{name}{parts}>{inside}</{name}>")


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def drawing(width: float, height: float, title: str, *children: object, class_: str = "chart") -> Markup:
    """A drawing that scales with the page; `title` is read out in its place."""
    box = f"0 0 {_text(float(width))} {_text(float(height))}"
    return element("svg", *children, viewBox=box, role="img", aria_label=title, class_=class_)


def to_standalone(svg: Markup, style: str, links: str) -> str:
    """A drawing as a file of its own: with its style, and with links inside a page that lead to that page.

    >>> to_standalone(drawing(1, 1, "t", element("a", href="#x")), "", "../index.html").count('href="../index.html#x"')
    1
    """
    opening, _, rest = str(svg).replace('href="#', f'href="{links}#').partition(">")
    return f'{opening} xmlns="http://www.w3.org/2000/svg" style="background:#fff"><style>{style}</style>{rest}\n'


def shorten(text: str, most: int = 34) -> str:
    """Text that fits into a drawing.

    >>> shorten("a very long name", 8)
    'a very …'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


@dataclass(frozen=True)
class Scale:
    """A linear map from [low, high] to [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The position of a value."""
        span = self.high - self.low
        return self.start + (value - self.low) / (span if span else 1.0) * (self.end - self.start)


@dataclass(frozen=True)
class LogScale:
    """A logarithmic map from [low, high], low > 0, to [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The position of a value."""
        return Scale(math.log(self.low), math.log(self.high), self.start, self.end)(math.log(value))


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A line."""
    return element("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_)


def rect(x: float, y: float, width: float, height: float, class_: str, *children: object) -> Markup:
    """A rectangle; a child `<title>` is shown when it is pointed at."""
    size = {"width": float(max(width, 0)), "height": float(max(height, 0))}
    return element("rect", *children, x=float(x), y=float(y), **size, class_=class_)


def label(x: float, y: float, text: str, class_: str = "") -> Markup:
    """Text; the classes `middle` and `end` place x at its middle or end."""
    return element("text", text, x=float(x), y=float(y), **({"class_": class_} if class_ else {}))


def percent_axis(scale: Scale, left: float, right: float) -> Markup:
    """Horizontal grid lines for 0 to 100 % with their numbers at the left."""
    marks = [Markup("")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        if scale.low <= share <= scale.high:
            y = scale(share)
            marks += [line(left, y, right, y, "grid"), label(left - 6, y + 4, f"{100 * share:.0f}", "end")]
    return Markup("").join(marks)
