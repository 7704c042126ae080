"""Metrics of a server: counters, gauges and histograms in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Upper bounds of the buckets of request times, and of batch sizes.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
Labels = tuple[tuple[str, str], ...]


class ServerMetrics:
    """What a server counts as it works.

    Attributes:
        requests: Requests by route and status code.
        seconds: Time of the requests to the API.
        batches: Images that passed the encoder together.
    """

    def __init__(self) -> None:
        self.requests = Counter("dca_requests_total", "Requests by route and status.")
        self.seconds = Histogram("dca_request_seconds", "Time of requests to the API.", SECONDS)
        self.batches = Histogram("dca_batch_images", "Images that passed the encoder together.", SIZES)

    def render(self, gauges: Sequence[Gauge]) -> str:
        """Render these metrics and the gauges as one text."""
        return render_metrics([self.requests, self.seconds, self.batches, *gauges])


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

    def samples(self) -> list[str]:
        """One line per combination of labels."""
        return [_sample(self.name, key, value) for key, value in self._values.items()]


class Gauge:
    """A number that goes up and down."""

    kind = "gauge"

    def __init__(self, name: str, help: str, value: float) -> None:
        self.name, self.help, self._value = name, help, value

    def samples(self) -> list[str]:
        """One line."""
        return [_sample(self.name, (), self._value)]


class Histogram:
    """How often values fell into each bucket.

    bounds: upper bounds of the buckets, ascending.
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

    def samples(self) -> list[str]:
        """Cumulative counts, the sum and the number of values."""
        lines, total = list[str](), 0
        for bound, count in zip([*map(_format_number, self._bounds), "+Inf"], self._counts, strict=True):
            total += count
            lines.append(_sample(f"{self.name}_bucket", (("le", bound),), total))
        return [*lines, _sample(f"{self.name}_sum", (), self._sum), _sample(f"{self.name}_count", (), total)]


Metric = Counter | Gauge | Histogram


def render_metrics(metrics: Sequence[Metric]) -> str:
    """Render metrics as one text.

    >>> requests = Counter("requests_total", "Requests.")
    >>> requests.add(route="predict")
    >>> print(render_metrics([requests]))
    # HELP requests_total Requests.
    # TYPE requests_total counter
    requests_total{route="predict"} 1
    <BLANKLINE>
    """
    lines: list[str] = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}", *metric.samples()]
    return "\n".join(lines) + "\n"


def _sample(name: str, labels: Labels, value: float) -> str:
    """One line: the name, its labels, and the value."""
    pairs = ",".join(f'{key}="{_escape(text)}"' for key, text in labels)
    return f"{name}{{{pairs}}} {_format_number(value)}" if pairs else f"{name} {_format_number(value)}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _format_number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
