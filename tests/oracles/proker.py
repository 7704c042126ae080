"""ProKeR's equations (Bendou et al., CVPR 2025), one number at a time, with a solver of linear equations of its own."""

from __future__ import annotations

import math

from oracles.frozen import dot


def solve(matrix: list[list[float]], right: list[list[float]]) -> list[list[float]]:
    """X with matrix X = right, by Gaussian elimination with pivoting."""
    n = len(matrix)
    rows = [list(matrix[i]) + list(right[i]) for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for r in range(n):
            if r != i:
                rows[r] = [a - rows[r][i] * b for a, b in zip(rows[r], rows[i], strict=True)]
    return [row[n:] for row in rows]


def kernel(a: list[float], b: list[float], beta: float) -> float:
    return math.exp(-beta * (1 - dot(a, b)))


def predict(
    query: list[float],
    rows: list[list[float]],
    labels: list[int],
    text: list[list[float]],
    *,
    beta: float,
    ridge: float,
    minimizer: bool = False,
) -> list[float]:
    """f(x) of one unit query under the model of these unit rows, one value per class."""
    n, classes = len(rows), range(len(text))
    residuals = [[float(c == y) - dot(row, text[c]) for c in classes] for row, y in zip(rows, labels, strict=True)]
    system = [[kernel(rows[i], rows[j], beta) / ridge + (i == j) for j in range(n)] for i in range(n)]
    solution = solve(system, residuals)
    factor = 1 / ridge if minimizer else 1.0
    return [
        dot(query, text[c]) + factor * sum(kernel(query, rows[i], beta) * solution[i][c] for i in range(n))
        for c in classes
    ]


def objective(values: list[list[float]], solution: list[list[float]], gram: list[list[float]], ridge: float) -> float:
    """Σ_i ‖values_i‖² + λ Σ_c a_cᵀ K a_c of residuals that remain and of a function κ(x, ·) A."""
    n, classes = len(gram), len(solution[0])
    norm = sum(solution[i][c] * gram[i][j] * solution[j][c] for c in range(classes) for i in range(n) for j in range(n))
    return sum(value**2 for row in values for value in row) + ridge * norm
