"""Transduction over Gaussians, written out image by image, class by class and dimension by dimension."""

from __future__ import annotations

import math

Vector = list[float]
Matrix = list[Vector]


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def unit(a: Vector) -> Vector:
    length = math.sqrt(dot(a, a))
    return [x / length for x in a]


def log_gaussian(f: Vector, mean: Vector, variances: Vector) -> float:
    return -sum((x - m) ** 2 / v for x, m, v in zip(f, mean, variances, strict=True)) / 2


def affinities(unlabelled: Matrix, labelled: Matrix, k: int) -> Matrix:
    """w_ij of all images (unlabelled ones first) and the unlabelled ones."""
    rows = []
    for i, f in enumerate([*unlabelled, *labelled]):
        others = [j for j in range(len(unlabelled)) if j != i]
        near = sorted(others, key=lambda j: -dot(f, unlabelled[j]))[:k]
        rows.append([dot(f, unlabelled[j]) if j in near else 0.0 for j in range(len(unlabelled))])
    return rows


def transduce(
    unlabelled: Matrix,
    predictions: Matrix,
    labelled: Matrix,
    labels: list[int],
    *,
    power: float,
    gamma: float,
    scale: float = 50.0,
    k: int = 3,
    rounds: int = 10,
    inner_rounds: int = 5,
    confident: int = 8,
) -> tuple[Matrix, Matrix, Vector]:
    """z, μ and the diagonal of Σ."""
    U, L, C, D = len(unlabelled), len(labelled), len(predictions[0]), len(unlabelled[0])
    w = affinities(unlabelled, labelled, k)
    one_hot = [[float(c == y) for c in range(C)] for y in labels]
    z = [list(row) for row in predictions]
    means = []
    for c in range(C):
        if c in labels:
            rows = [(1.0, f) for f, y in zip(labelled, labels, strict=True) if y == c]
        else:
            best = sorted(range(U), key=lambda i: -z[i][c])[:confident]
            rows = [(z[i][c], unlabelled[i]) for i in best]
        means.append(unit([sum(weight * f[d] for weight, f in rows) for d in range(D)]))
    variances = [1 / D] * D
    for done in range(rounds + 1):
        for _ in range(inner_rounds):
            every = [*z, *one_hot]
            new = []
            for i in range(U):
                logits = []
                for c in range(C):
                    value = power * math.log(predictions[i][c])
                    value += log_gaussian(unlabelled[i], means[c], variances) / scale
                    for j in range(U + L):
                        there = w[i][j] if j < U else 0.0  # how near j is to i
                        value += (there + w[j][i]) * every[j][c] / (2 * k)
                    logits.append(value)
                top = max(logits)
                exponents = [math.exp(value - top) for value in logits]
                new.append([e / sum(exponents) for e in exponents])
            z = new
        if done == rounds:
            break
        weights = [[value / U for value in row] for row in z]
        weights += [[gamma * scale / L * value for value in row] for row in one_hot]
        images = [*unlabelled, *labelled]
        for c in range(C):
            means[c] = unit([sum(weights[i][c] * images[i][d] for i in range(U + L)) for d in range(D)])
        total = sum(map(sum, weights))
        for d in range(D):
            squares = (weights[i][c] * (images[i][d] - means[c][d]) ** 2 for i in range(U + L) for c in range(C))
            variances[d] = sum(squares) / total
    return z, means, variances
