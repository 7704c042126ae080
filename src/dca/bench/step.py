"""A training step of DCA: forward, backward and update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dca.bench import reference
from dca.bench.setting import batch_of, method_of
from dca.bench.timing import PEAK, Cost, Result, measure, relative_gap
from dca.clip import CLIP
from dca.clip.config import TowerConfig
from dca.engine.schedule import advance, make_optimizer
from dca.engine.step import Gradients, compute_gradients
from dca.methods.dca import DCA
from dca.methods.interface import Batch


def measure_steps(clip: CLIP, classes: Sequence[int], batches: Sequence[int], *, compare: bool) -> Iterator[Result]:
    """One result for every number of classes and batch size; compare: also run the reference."""
    for count in classes:
        for size in batches:
            yield measure_step(clip, count, size, compare=compare)


def measure_step(clip: CLIP, classes: int, size: int, *, compare: bool) -> Result:
    """Our step, recorded on a GPU, and the usual one."""
    method, batch = method_of(clip, classes), batch_of(clip, classes, size)
    if clip.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(clip.device)
    gradients, optimizer = Gradients(method), make_optimizer(method, method.options, 1e-9)

    def ours() -> None:
        gradients(batch)
        advance(optimizer, 1e-9)

    for _ in range(2):  # the first step finds out what can be recorded, the second records it
        ours()
    # Of the recording, too: what it computed in stays reserved, but does not count as allocated afterwards.
    memory = torch.cuda.max_memory_allocated(clip.device) if clip.device.type == "cuda" else None
    cost, found = measure(ours, clip.device), _gradients(method)
    usual, wanted = _usual(method, batch) if compare else (None, None)
    return Result(
        name=f"step, {classes} classes, batch {size}",
        ours_ms=cost.ms,
        reference_ms=usual.ms if usual else None,
        memory=memory,
        reference_memory=usual.memory if usual else None,
        floor_ms=floor_ms(method, size),
        gap=relative_gap(found, wanted) if wanted else None,
    )


def _usual(method: DCA, batch: Batch) -> tuple[Cost | None, list[Tensor] | None]:
    """Cost and gradients of the usual step; None where it does not fit in memory."""
    usual = reference.usual(method)
    try:
        cost = measure(lambda: compute_gradients(usual, batch), method.clip.device, repeats=5, warm_up=2)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None, None
    return cost, _gradients(method)


def _gradients(method: DCA) -> list[Tensor]:
    return [parameter.grad.detach().clone() for parameter in method.parameters() if parameter.grad is not None]


def floor_ms(method: DCA, size: int) -> float:
    """Milliseconds of the arithmetic of a step at `PEAK`: products of weights and of attention, forward and backward.

    Packed text rows, image rows with the visual tokens; a frozen layer's backward costs as much as its forward.
    """
    clip = method.clip
    names = sum(len(ids) for ids in method.text.name_ids)
    text = [1 + len(context) for context in method.text.contexts]
    rows = sum(text) + len(text) * names
    image = 1 + clip.config.vision.patches + len(method.visual.tokens)
    operations = _operations(clip.config.text, rows, max(text) + names / len(method.text.name_ids))
    operations += _operations(clip.config.vision, size * image, image)
    return 2 * operations / PEAK * 1000


def _operations(tower: TowerConfig, rows: int, seen: float) -> float:
    """Of a forward pass: `rows` rows that attend to `seen` others each."""
    weights = 4 * tower.width**2 + 2 * tower.width * tower.hidden
    return tower.layers * rows * (2 * weights + 4 * seen * tower.width)
