from __future__ import annotations

import pytest

from dca.report.svg import LogScale, Scale, drawing, element, label, rect


def test_texts_and_attributes_are_escaped() -> None:
    found = str(label(1, 2, "<b>&", 'x" onload="y'))
    assert "<b>" not in found
    assert 'onload="y"' not in found
    assert "&lt;b&gt;&amp;" in found


def test_a_drawing_can_be_read_out() -> None:
    found = str(drawing(10, 20, "a < b", rect(0, 0, -1, 2, "good")))
    assert 'viewBox="0 0 10 20"' in found
    assert 'role="img" aria-label="a &lt; b"' in found
    assert 'width="0"' in found


def test_elements_are_not_escaped_twice() -> None:
    assert str(element("g", element("title", "a & b"))) == "<g><title>a &amp; b</title></g>"


def test_scales_map_their_ends() -> None:
    assert [Scale(0, 2, 10, 30)(x) for x in (0, 1, 2)] == [10, 20, 30]
    assert Scale(1, 1, 0, 5)(1) == 0
    assert [LogScale(2, 8, 0, 10)(x) for x in (2, 4, 8)] == pytest.approx([0, 5, 10])
