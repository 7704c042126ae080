from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dca.methods.shared import logistic as logistic_module
from dca.methods.shared.logistic import Logistic
from oracles import logistic

HOW = {"tolerance": 1e-8, "iterations": 1000}


def problem(counts: tuple[int, ...], D: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    centers = torch.randn(len(counts), D, generator=generator)
    return 3 + centers[labels] + 2 * torch.randn(len(labels), D, generator=generator), labels


def difference(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> float:
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("counts", "D"), [((6, 6, 6), 4), ((1, 1, 1), 12), ((9, 2, 1, 4), 20), ((7, 3), 3)])
def test_the_minimum_is_that_of_the_route_as_written_for_every_c(counts: tuple[int, ...], D: int) -> None:
    x, y = problem(counts, D)
    for c in (1e-6, 1e-2, 1.0, 1e2, 1e6):
        ours = Logistic(x, y, len(counts))
        found = ours.to_weights(ours.solve(c, **HOW))
        assert difference(found, logistic.solve(x, y, len(counts), c)) < 1e-6


@pytest.mark.parametrize("order", [(6, 4, 2, 0, -2, -4, -6), (-6, 6, 0, -3, 3, 3.5, 3.25), (2, 2, 2.001)])
def test_the_solutions_before_do_not_change_the_minimum(order: tuple[float, ...]) -> None:
    x, y = problem((5, 5, 5, 5), 16)
    path = Logistic(x, y, 4)
    for decade in order:
        path.solve(10.0**decade, tolerance=1e-2, iterations=1000)
    for decade in order:
        alone = Logistic(x, y, 4)
        warm, cold = (one.to_weights(one.solve(10.0**decade, **HOW)) for one in (path, alone))
        assert difference(warm, cold) < 1e-7


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_scale_of_the_features_is_no_obstacle(scale: float) -> None:
    """W scales inversely, if c does so twice."""
    x, y = problem((5, 5, 5), 8)
    plain, scaled = Logistic(x.double(), y, 3), Logistic(scale * x.double(), y, 3)
    W, b = plain.to_weights(plain.solve(1.0, **HOW))
    # The gradient grows with the features; the relative accuracy of W is the one that counts.
    V, a = scaled.to_weights(scaled.solve(scale**-2, tolerance=1e-8, iterations=1000))
    assert difference((scale * V, a), (W, b)) < 1e-6


def test_equal_features_give_the_frequencies_of_the_classes() -> None:
    x, y = torch.ones(8, 5), torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])
    ours = Logistic(x, y, 3)
    W, b = ours.to_weights(ours.solve(1.0, **HOW))
    assert not W.any()
    torch.testing.assert_close(b.softmax(0), torch.tensor([5, 2, 1]).double() / 8)


def test_more_iterations_than_allowed_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = problem((5, 5, 5), 8)
    made: list[int] = []
    written = logistic_module.conjugate_gradients

    def counting(*given: Any) -> tuple[Tensor, int]:
        made.append(written(*given)[1])
        return written(*given)

    monkeypatch.setattr(logistic_module, "conjugate_gradients", counting)
    Logistic(x, y, 3).solve(1e4, tolerance=1e-8, iterations=7)
    assert sum(made) == 7


def test_coordinates_give_the_logits_of_the_weights() -> None:
    x, y = problem((4, 4), 6)
    ours = Logistic(x, y, 2)
    A = ours.solve(1.0, **HOW)
    W, b = ours.to_weights(A)
    unseen = torch.randn(5, 6, generator=torch.Generator().manual_seed(3))
    logits, wanted = ours.to_coordinates(unseen) @ A.T, unseen.double() @ W.T + b
    gaps = [rows - rows.mean(dim=1, keepdim=True) for rows in (logits, wanted)]
    torch.testing.assert_close(*gaps)
    assert math.isclose(float(b.mean()), 0, abs_tol=1e-12)
