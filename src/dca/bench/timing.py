"""Time and memory of a piece of work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

# Multiplications and additions per second that an H200 was measured to do in a large bfloat16 product.
PEAK = 790e12


@dataclass(frozen=True)
class Cost:
    """Milliseconds, and bytes at the peak (None where they are not known, on a CPU)."""

    ms: float
    memory: int | None = None


@dataclass(frozen=True)
class Result:
    """One line of a benchmark.

    Attributes:
        name: What was measured, with its sizes.
        ours_ms: Milliseconds of this package.
        reference_ms: Milliseconds of the plain reference; None where it does not fit in memory.
        memory: Peak bytes of ours; None if unknown.
        reference_memory: Peak bytes of the reference.
        floor_ms: Milliseconds that the arithmetic alone would take on a device of `PEAK`; None where that says nothing.
        gap: Largest relative difference between the results of the two; None if they were not compared.
    """

    name: str
    ours_ms: float
    reference_ms: float | None = None
    memory: int | None = None
    reference_memory: int | None = None
    floor_ms: float | None = None
    gap: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """For `--json`: the fields, and how many times faster than the reference."""
        ratio = None if self.reference_ms is None else self.reference_ms / self.ours_ms
        return {**asdict(self), "ratio": ratio}


def measure(work: Callable[[], object], device: torch.device, *, repeats: int = 20, warm_up: int = 3) -> Cost:
    """The median time of `work` after a warm-up, and the most memory that it held.

    Args:
        work: What is measured; on a GPU it may return before the GPU is done.
        device: Where it runs.
        repeats: How often it is timed.
        warm_up: How often it runs before.

    Returns:
        Time and memory.
    """
    for _ in range(warm_up):
        work()
    if device.type != "cuda":
        return Cost(statistics.median(_seconds(work) for _ in range(repeats)) * 1000)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    # In one go: the time of a step among others, as in training, without a wait after each.
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize(device)
    took = (time.perf_counter() - began) / repeats * 1000
    return Cost(took, torch.cuda.max_memory_allocated(device))


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def relative_gap(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """Largest ‖a - b‖ / ‖b‖ over pairs of tensors."""
    pairs = zip(found, wanted, strict=True)
    return max(float((a.float() - b.float()).norm() / b.float().norm().clamp_min(1e-12)) for a, b in pairs)
