"""Figures as data: a drawing whose marks link to the runs behind them.

The kinds of drawings of the report about runs. Marks are links to the runs behind them and say their values.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from dca.report.svg import LogScale, Scale, drawing, element, label, line, rect, shorten


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        name: Stem of its file name.
        title: What it shows.
        svg: The drawing; links inside begin with "#".
        groups: Ids of the runs behind each of its marks.
        caption: Below the drawing.
    """

    name: str
    title: str
    svg: Markup
    groups: tuple[tuple[str, ...], ...]
    caption: str = ""

    @property
    def runs(self) -> tuple[str, ...]:
        """Ids of all runs behind it."""
        return tuple(dict.fromkeys(id for group in self.groups for id in group))


def anchor(runs: Sequence[str]) -> str:
    """Name of the list of these runs on the page.

    >>> anchor(["a", "b"]) == anchor(("a", "b")) != anchor(["ab"])
    True
    """
    return f"runs-{hashlib.sha256(' '.join(runs).encode()).hexdigest()[:12]}"


def link_to_runs(mark: Markup, runs: Sequence[str]) -> Markup:
    """A mark of a drawing that leads to the list of its runs."""
    return element("a", mark, href=f"#{anchor(runs)}") if runs else mark


WIDTH, LEFT, RIGHT, TOP, BOTTOM = 460.0, 46.0, 448.0, 12.0, 230.0
COLOURS = 8
# More lines than this are drawn without their intervals.
MOST_WITH_WHISKERS = 4


@dataclass(frozen=True)
class Point:
    """One mark: its value, the ends of its whisker, the runs behind it, and what is said when it is pointed at."""

    y: float
    low: float
    high: float
    runs: tuple[str, ...]
    said: str
    x: float = 0.0


@dataclass(frozen=True)
class Series:
    """A line of marks, one or nothing per place of the horizontal axis.

    strong: whether it stands out. quiet: whether it is grey, behind the others and without a name in the legend.
    """

    name: str
    points: tuple[Point | None, ...]
    strong: bool = False
    quiet: bool = False


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values between low and high, about this many at most.

    >>> ticks(61.2, 74.9), ticks(0.0, 4.0)
    ([62.0, 64.0, 66.0, 68.0, 70.0, 72.0, 74.0], [0.0, 1.0, 2.0, 3.0, 4.0])
    """
    span = max(high - low, 1e-9)
    size = 10.0 ** math.floor(math.log10(span / most))
    step = next(size * k for k in (1, 2, 5, 10) if span / (size * k) <= most + 1)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 10) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _range_with_margin(values: Sequence[float]) -> tuple[float, float]:
    """The range of some values with a margin; never empty."""
    low, high = min(values), max(values)
    margin = max(0.06 * (high - low), 0.5 if high == low else 0.0)
    return low - margin, high + margin


def _colour(place: int) -> str:
    return f"k{place % COLOURS} dash{place // COLOURS % 3}"


def _axis(scale: Scale, left: float = LEFT, right: float = RIGHT) -> list[Markup]:
    """Horizontal grid lines with their numbers."""
    values = ticks(scale.low, scale.high)
    digits = max((len(f"{value:g}".partition(".")[2]) for value in values), default=0)
    marks = []
    for value in values:
        y = scale(value)
        marks += [line(left, y, right, y, "grid"), label(left - 6, y + 4, f"{value:.{digits}f}", "end")]
    return marks


def _legend(names: Sequence[str], top: float, samples: Sequence[Markup]) -> tuple[list[Markup], float]:
    """Names in two columns, each with its sample at (0, 0); and the height below it."""
    parts, rows = [], math.ceil(len(names) / 2)
    for place, (name, sample) in enumerate(zip(names, samples, strict=True)):
        x, y = (8.0, 236.0)[place // rows], top + 17 * (place % rows)
        parts.append(element("g", sample, transform=f"translate({x:.0f} {y:.0f})"))
        parts.append(label(x + 26, y + 4, shorten(name, 25)))
    return parts, top + 17 * rows


def line_chart(series: Sequence[Series], places: Sequence[str], x_title: str, title: str) -> Markup:
    """Lines over equally spaced places, with whiskers where there are few lines."""
    series = sorted(series, key=lambda one: not one.quiet)
    points = [point for one in series for point in one.points if point is not None]
    whiskers = len(series) <= MOST_WITH_WHISKERS
    ends = [end for p in points for end in ((p.low, p.high) if whiskers else (p.y, p.y))]
    y = Scale(*_range_with_margin(ends), BOTTOM, TOP)
    x = Scale(0, max(len(places) - 1, 1), LEFT + 18, RIGHT - 18)
    parts = _axis(y) + [label(x(n), BOTTOM + 18, name, "middle") for n, name in enumerate(places)]
    parts.append(label((LEFT + RIGHT) / 2, BOTTOM + 36, x_title, "middle"))
    loud = [one for one in series if not one.quiet]
    colours = ["quiet"] * (len(series) - len(loud))
    colours += ["strong-line" if one.strong else _colour(n) for n, one in enumerate(loud)]
    for number, one in enumerate(series):
        shift = 5.0 * (number - (len(series) - 1) / 2) if whiskers else 0.0
        placed = [(x(n) + shift, p) for n, p in enumerate(one.points) if p is not None]
        parts.append(_polyline([(at, y(p.y)) for at, p in placed], colours[number]))
        for at, p in placed:
            if whiskers and p.high > p.low:
                parts.append(line(at, y(p.low), at, y(p.high), "whisker"))
            parts.append(_dot(at, y(p.y), p, f"mark {colours[number]}", 2.4 if one.quiet else 3.6))
    named = {one.name: colour for one, colour in zip(series, colours, strict=True) if not one.quiet}
    named |= {f"{len(series) - len(loud)} others": "quiet"} if len(loud) < len(series) else {}
    samples = [element("path", d="M0 0H20", class_=f"series {colour}") for colour in named.values()]
    legend, end = _legend(list(named), BOTTOM + 60, samples)
    return drawing(WIDTH, end, title, *parts, *legend)


def _polyline(points: Sequence[tuple[float, float]], colour: str) -> Markup:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return element("path", d=f"M{path}", class_=f"series {colour}") if points else Markup("")


def _dot(x: float, y: float, point: Point, class_: str, radius: float) -> Markup:
    dot = element("circle", element("title", point.said), cx=x, cy=y, r=radius, class_=class_)
    return link_to_runs(dot, point.runs)


def bar_chart(rows: Sequence[tuple[str, Point]], title: str, unit: str = "points") -> Markup:
    """Bars from zero with whiskers, one per row, its name above it."""
    ends = [0.0, *(end for _, p in rows for end in (p.y, p.low, p.high))]
    low, high = _range_with_margin(ends)
    # 20: half the width of the number under the outermost grid line.
    x = Scale(low if min(ends) < 0 else 0.0, high if max(ends) > 0 else 0.0, 20, WIDTH - 20)
    step, height = 40.0, 8.0 + 40.0 * len(rows)
    parts = [line(x(value), 4, x(value), height, "grid") for value in ticks(x.low, x.high)]
    parts += [label(x(v), height + 16, f"{v:g}".replace("-", "−"), "middle") for v in ticks(x.low, x.high)]
    parts += [line(x(0), 4, x(0), height, "axis"), label(WIDTH / 2, height + 34, unit, "middle")]
    for place, (name, point) in enumerate(rows):
        y = 8 + step * place
        parts.append(label(10, y + 11, f"{shorten(name, 40)}: {point.said.partition(':')[0]}", "strong"))
        start, end = sorted((x(0), x(point.y)))
        bar = rect(
            start, y + 17, max(end - start, 1), 13, "good" if point.y >= 0 else "bad", element("title", point.said)
        )
        parts.append(link_to_runs(bar, point.runs))
        if point.high > point.low:
            parts.append(line(x(point.low), y + 23.5, x(point.high), y + 23.5, "whisker"))
    return drawing(WIDTH, height + 42, title, *parts)


def heat_map(
    cells: Sequence[Sequence[Point | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    axes: tuple[str, str],
    title: str,
    crosses: Mapping[tuple[int, int], str],
) -> Markup:
    """Values as shades, one row of cells per row.

    axes: names of the vertical and the horizontal axis. crosses: why cells have no value, by row and column.
    """
    known = [point.y for some in cells for point in some if point is not None]
    shade = Scale(min(known), max(known), 0.06, 0.75)
    left, size = 58.0, min(56.0, (WIDTH - 62) / len(columns))
    parts = [label(left + size * (n + 0.5), 32, name, "middle") for n, name in enumerate(columns)]
    parts += [label(left + size * len(columns) / 2, 13, axes[1], "middle"), label(4, 32, axes[0])]
    for row, some in enumerate(cells):
        y = 40 + 30.0 * row
        parts.append(label(left - 8, y + 19, rows[row], "end"))
        for column, point in enumerate(some):
            at = left + size * column
            if point is None:
                why = crosses.get((row, column))
                mark = label(at + size / 2, y + 19, "–" if why is None else "×", "middle")
                parts.append(mark if why is None else element("g", element("title", why), mark))
                continue
            box = element(
                "rect", element("title", point.said), x=at + 1, y=y, width=size - 2, height=28.0, class_="heat",
                fill_opacity=shade(point.y) if len(set(known)) > 1 else 0.3,
            )  # fmt: skip
            parts += [
                link_to_runs(box, point.runs),
                label(at + size / 2, y + 19, f"{point.y:.1f}", "middle strong inside"),
            ]
    return drawing(WIDTH, 44 + 30.0 * len(cells), title, *parts)


def scatter(marks: Sequence[tuple[str, Point | None]], x_title: str, title: str) -> Markup:
    """Marks over a logarithmic axis, with the names below; values of zero are at its left end.

    A name without a point is left out; the others keep their shapes and colours.
    """
    points = [(number, name, point) for number, (name, point) in enumerate(marks) if point is not None]
    positive = [point.x for _, _, point in points if point.x > 0] or [1.0]
    x = LogScale(min(positive) / 1.6, max(positive) * 1.6, LEFT + 40, RIGHT - 8)
    y = Scale(*_range_with_margin([point.y for _, _, point in points]), BOTTOM, TOP)
    parts = [*_axis(y), label((LEFT + RIGHT) / 2, BOTTOM + 36, x_title, "middle")]
    zeros = any(point.x <= 0 for _, _, point in points)
    parts += [label(LEFT + 14, BOTTOM + 18, "0", "middle")] if zeros else []
    for power in range(math.ceil(math.log10(x.low)), math.floor(math.log10(x.high)) + 1):
        at = x(10.0**power)
        parts += [line(at, TOP, at, BOTTOM, "grid"), label(at, BOTTOM + 18, _power(power), "middle")]
    samples = []
    for number, _, point in points:
        at = x(point.x) if point.x > 0 else LEFT + 14
        parts.append(link_to_runs(_shape(at, y(point.y), number, element("title", point.said)), point.runs))
        samples.append(_shape(10, 0, number))
    named = [f"{name} ({point.said.partition(':')[0]})" for _, name, point in points]
    legend, end = _legend(named, BOTTOM + 60, samples)
    return drawing(WIDTH, end, title, *parts, *legend)


def _shape(x: float, y: float, place: int, *children: Markup) -> Markup:
    """A mark for one of many: circles, then squares, then diamonds, each in all colours."""
    turn = f"rotate(45 {x:.1f} {y:.1f})" if place // COLOURS == 2 else "rotate(0)"
    round_ = 6.0 if place < COLOURS else 0.0
    box = {"x": float(x) - 6, "y": float(y) - 6, "width": 12.0, "height": 12.0, "rx": round_}
    return element("rect", *children, **box, class_=f"mark k{place % COLOURS}", transform=turn)


def _power(power: int) -> str:
    """A power of ten as a number.

    >>> _power(-1), _power(3), _power(6)
    ('0.1', '1,000', '10⁶')
    """
    if power > 4:
        return "10" + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(power))
    return f"{10.0**power:,.{max(-power, 0)}f}"
