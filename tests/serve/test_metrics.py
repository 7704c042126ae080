"""Metrics in the text format of Prometheus."""

from __future__ import annotations

from dca.serve.metrics import Counter, Gauge, Histogram, render_metrics


def test_metrics_are_in_the_text_format():
    requests, sizes = Counter("asked_total", "Asked."), Histogram("size", "Sizes.", (1, 4))
    requests.add(code='2"0\n0')
    requests.add(2.5)
    for value in (1, 3, 9):
        sizes.observe(value)
    lines = render_metrics([requests, sizes, Gauge("now", "Now.", 3)]).splitlines()
    assert 'asked_total{code="2\\"0\\n0"} 1' in lines
    assert "asked_total 2.5" in lines
    assert [line for line in lines if line.startswith("size_")] == [
        'size_bucket{le="1"} 1', 'size_bucket{le="4"} 2', 'size_bucket{le="+Inf"} 3', "size_sum 13", "size_count 3"
    ]  # fmt: skip
    assert lines[-1] == "now 3"
