"""Equations of methods over frozen features, one number at a time."""

from __future__ import annotations

import math


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
