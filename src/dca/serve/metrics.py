"""Counters, gauges and histograms in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

Labels = tuple[tuple[str, str], ...]
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Counter:
    """A number that only grows, one per combination of labels."""

    kind = "counter"

    def __init__(self, name: str, help: str) -> None:
        self.name, self.help = name, help
        self._values: dict[Labels, float] = {}

    def add(self, amount: float = 1.0, **labels: str) -> None:
        """Add to the number with these labels."""
        key = tuple(sorted(labels.items()))
        self._values[key] = self._values.get(key, 0.0) + amount

    def lines(self) -> list[str]:
        """One line per combination of labels."""
        return [_line(self.name, key, value) for key, value in self._values.items()]


class Gauge:
    """A number that goes up and down."""

    kind = "gauge"

    def __init__(self, name: str, help: str, value: float) -> None:
        self.name, self.help, self._value = name, help, value

    def lines(self) -> list[str]:
        """One line."""
        return [_line(self.name, (), self._value)]


class Histogram:
    """How often values fell into each of some ranges.

    bounds: the upper ends of the ranges, ascending.
    """

    kind = "histogram"

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self.name, self.help, self._bounds = name, help, tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self) -> list[str]:
        """Cumulative counts, the sum and the number of values."""
        found, below = [], 0
        for bound, count in zip([*map(_number, self._bounds), "+Inf"], self._counts, strict=True):
            below += count
            found.append(_line(f"{self.name}_bucket", (("le", bound),), below))
        return [*found, _line(f"{self.name}_sum", (), self._sum), _line(f"{self.name}_count", (), below)]


Metric = Counter | Gauge | Histogram


def rendered(metrics: Sequence[Metric]) -> str:
    """All metrics as one text.

    >>> requests = Counter("requests_total", "Requests.")
    >>> requests.add(route="predict")
    >>> print(rendered([requests]))
    # HELP requests_total Requests.
    # TYPE requests_total counter
    requests_total{route="predict"} 1
    <BLANKLINE>
    """
    lines: list[str] = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}", *metric.lines()]
    return "\n".join(lines) + "\n"


def _line(name: str, labels: Labels, value: float) -> str:
    shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{name}{{{shown}}} {_number(value)}" if shown else f"{name} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
