"""Hostile input: files with a few changes, and checks of many such inputs in bounded time and memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# A few inputs in every run of the tests, 10,000 with `make test-slow`.
HOW_MANY = [pytest.param(60, id="few"), pytest.param(10_000, id="many", marks=pytest.mark.slow)]
# Bounds of one input: seconds of computing, and growth of the memory of the process over all inputs, in bytes.
SECONDS, MEMORY = 5.0, 1_500_000_000
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([10**30, "\x1b[2J"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)


def fuzz(inputs: st.SearchStrategy[Any], check: Callable[[Any], None], examples: int) -> None:
    """Check so many inputs; each within `SECONDS`, all of them within `MEMORY`."""
    before = peak_memory()

    @settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(inputs)
    def run(value: Any) -> None:
        began = time.process_time()
        check(value)
        assert time.process_time() - began < SECONDS

    run()
    assert peak_memory() - before < MEMORY


def peak_memory() -> int:
    """Largest memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@st.composite
def damaged(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """One of the files with a few changes: bytes, lengths and counts, parts of another file, an early end."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 5))):
        # Most fields that decide something are near the start.
        at = draw(st.integers(0, min(len(data), draw(st.sampled_from([32, 256, len(data)])))))
        match draw(st.sampled_from(["byte", "number", "insert", "delete", "splice", "cut"])):
            case "byte":
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "number":
                size = draw(st.sampled_from([2, 4, 8]))
                value = draw(st.sampled_from([0, 1, 255, 2**15, 2 ** (8 * size - 1) - 1, 2 ** (8 * size) - 1]))
                data[at : at + size] = value.to_bytes(size, draw(st.sampled_from(["little", "big"])))
            case "insert":
                data[at:at] = draw(st.binary(max_size=16))
            case "delete":
                del data[at : at + draw(st.integers(1, 64))]
            case "splice":
                other = draw(st.sampled_from(seeds))
                data[at:] = other[draw(st.integers(0, len(other))) :]
            case "cut":
                del data[at:]
    return bytes(data)
