"""A support of random pictures for methods over frozen features, and their equations one number at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


class Images:
    """Random pixels; view v is the picture shifted by 0.1 (v + 1)."""

    def __init__(self, counts: tuple[int, ...], seed: int = 0, validation: Images | None = None) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        self.pixels = torch.randn(len(self.labels), 3, 32, 32, generator=generator)
        self.validation = validation

    def view(self, v: int) -> Tensor:
        return self.pixels + 0.1 * (v + 1)

    def map(self, encode: Callable[[Tensor], Tensor], *, views: int = 0) -> Tensor:
        with torch.no_grad():
            if views == 0:
                return encode(self.pixels)
            return torch.cat([encode(self.view(v)) for v in range(views)])


def unit(rows: list[list[float]]) -> list[list[float]]:
    return [[x / math.sqrt(sum(y * y for y in row)) for x in row] for row in rows]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(values: list[float]) -> list[float]:
    top = max(values)
    weights = [math.exp(v - top) for v in values]
    return [w / sum(weights) for w in weights]


def cross_entropy(logits: list[list[float]], labels: list[int]) -> float:
    return sum(-math.log(softmax(row)[y]) for row, y in zip(logits, labels, strict=True)) / len(labels)


def mean_of(rows: list[list[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]
