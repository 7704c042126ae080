"""Approximate leave-one-out of logistic regression against refitting without each image."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dca.methods.linear_probe import objective, solve
from dca.methods.shared.logistic import full_hessian, leave_one_out, restore_balance


def problem(N: int, D: int, C: int = 3, spread: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(N + D)
    labels = torch.arange(N) % C
    centers = torch.randn(C, D, generator=generator)
    return centers[labels] + spread * torch.randn(N, D, generator=generator), labels


def refitted(x: Tensor, y: Tensor, c: float, C: int = 3) -> Tensor:
    """Probabilities (N, C) of each image by a model that was fitted without it."""
    rows = []
    for i in range(len(x)):
        keep = torch.arange(len(x)) != i
        W, b = solve(x[keep], y[keep], C, c, iterations=500)
        rows.append((W @ x[i].double() + b).softmax(dim=-1))
    return torch.stack(rows)


def approximate(x: Tensor, y: Tensor, c: float, C: int = 3) -> Tensor:
    found = leave_one_out(x, y, *solve(x, y, C, c, iterations=500), c)
    assert found is not None
    return found.softmax(dim=-1)


@pytest.mark.parametrize(("N", "D"), [(24, 5), (12, 20)])
@pytest.mark.parametrize("c", [0.01, 0.3])
def test_it_is_close_to_refitting_without_the_image(N: int, D: int, c: float) -> None:
    """Within 0.03 of the probability, where leaving the image out moves it by up to 0.8."""
    x, y = problem(N, D)
    W, b = solve(x, y, 3, c, iterations=500)
    exact, found = refitted(x, y, c), approximate(x, y, c)
    moved = (exact - (x.double() @ W.T + b).softmax(dim=-1)).abs().max()
    gap = (exact - found).abs().max()
    assert gap < 0.03
    assert gap < moved / 8


def test_the_error_shrinks_with_the_number_of_images() -> None:
    """One image of N has an influence of 1/N; the error is of second order."""
    gaps = []
    for N in (15, 60, 240):
        x, y = problem(N, 3)
        shown = slice(0, 12)
        exact = torch.stack([refitted_one(x, y, i) for i in range(12)])
        gaps.append(float((exact - approximate(x, y, 1.0)[shown]).abs().max()))
    assert gaps[1] < gaps[0] / 8
    assert gaps[2] < gaps[1] / 8


def refitted_one(x: Tensor, y: Tensor, i: int) -> Tensor:
    keep = torch.arange(len(x)) != i
    W, b = solve(x[keep], y[keep], 3, 1.0, iterations=500)
    return (W @ x[i].double() + b).softmax(dim=-1)


def test_the_hessian_is_that_of_the_objective() -> None:
    x, y = problem(9, 4)
    x = x.double()
    W, b = solve(x, y, 3, 0.7, iterations=500)

    def value(flat: Tensor) -> Tensor:
        rows = flat.reshape(3, 5)
        return objective(rows[:, :-1], rows[:, -1], x, y, 0.7) + rows[:, -1].sum().square() / 2

    flat = torch.cat([W, b[:, None]], dim=1).flatten()
    p = (x @ W.T + b).softmax(dim=-1)
    found = full_hessian(F.pad(x, (0, 1), value=1.0), torch.diag_embed(p) - p[:, :, None] * p[:, None, :], 0.7)
    expected = torch.autograd.functional.hessian(value, flat)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


def test_one_newton_step_is_what_the_formula_takes() -> None:
    """Literally: the gradient and the Hessian without the image, at the weights that were fitted with it."""
    x, y = problem(10, 4)
    x = x.double()
    W, b = solve(x, y, 3, 0.5, iterations=500)
    found = approximate(x, y, 0.5)
    flat = torch.cat([W, b[:, None]], dim=1).flatten()
    for i in range(len(x)):
        keep = torch.arange(len(x)) != i

        def value(flat: Tensor, keep: Tensor = keep) -> Tensor:
            rows = flat.reshape(3, 5)
            return objective(rows[:, :-1], rows[:, -1], x[keep], y[keep], 0.5) + rows[:, -1].sum().square() / 2

        slope = torch.func.grad(value)(flat)
        step = torch.linalg.solve(torch.autograd.functional.hessian(value, flat), slope)  # type: ignore[no-untyped-call]
        rows = (flat - step).reshape(3, 5)
        expected = (rows[:, :-1] @ x[i] + rows[:, -1]).softmax(dim=-1)
        torch.testing.assert_close(found[i], expected, atol=1e-7, rtol=0)


def test_too_many_weights_are_left_to_folds() -> None:
    x, y = problem(12, 4)
    W, b = solve(x, y, 3, 1.0, iterations=100)
    assert leave_one_out(x, y, W, b, 1.0, most=3 * 5) is not None
    assert leave_one_out(x, y, W, b, 1.0, most=3 * 5 - 1) is None


def test_the_own_class_is_not_punished_for_the_image_it_lost() -> None:
    """A model without weights knows only how frequent classes are: balanced, it must not know the left-out label."""
    x, y = problem(12, 4)
    W, b = torch.zeros(3, 4), torch.zeros(3)
    logits = leave_one_out(x, y, W, b, 1e-12)
    assert logits is not None
    exact = torch.stack([torch.bincount(y[torch.arange(12) != i]) / 11 for i in range(12)]).double()
    approximated = logits.softmax(dim=-1)
    assert (approximated.argmax(dim=-1) != y).all()
    torch.testing.assert_close(approximated, exact, atol=0.03, rtol=0)
    count = torch.full((12,), 4)
    torch.testing.assert_close(
        restore_balance(exact.log(), y, count).softmax(dim=-1), torch.full((12, 3), 1 / 3, dtype=torch.float64)
    )
