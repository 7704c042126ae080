"""What more training images would bring, from leave-one-out on halves of those that are there.

With e(n) the left-out error with n images per class and e(n/2) its mean over two halves, the error is taken to fall
by the same factor with every doubling: e(2n) = e(n)² / e(n/2), at most halved and never more than e(n).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dca.methods.shared.expert_scales import class_weights
from dca.methods.shared.kernel_ridge import KernelRidge
from dca.methods.shared.pooled_choice import Experts, Fixed, Numbers, choose, left_out_logits
from dca.methods.shared.text_gaussian import TextGaussian
from dca.methods.uncertainty import CurvePoint

# A half with fewer images per class says little.
LEAST_SHOTS = 4
DRAWS = 4


def expected_gain(experts: Experts, numbers: Numbers) -> tuple[int, float] | None:
    """Twice as many images per class, and what they would bring; None where there are too few to tell."""
    half = _half_error(experts, numbers, DRAWS)
    if half is None:
        return None
    error = _error(experts, numbers)
    return round(2 * _shots(experts)), error * (1 - _factor(error, half))


def curve(experts: Experts, numbers: Numbers) -> list[CurvePoint]:
    """Accuracy by images per class: with a quarter and half of the images, with all, and expected with 2 and 4 times.

    Empty where there are too few images to tell.
    """
    shots, half = _shots(experts), _half_error(experts, numbers, DRAWS)
    if half is None:
        return []
    error = _error(experts, numbers)
    points = [CurvePoint(shots / 2, 1 - half), CurvePoint(shots, 1 - error)]
    halves = [_part(experts, rows, numbers) for rows in _halves(experts.labels, experts.gaussian.groups, 0)]
    found = [_half_error(part, choose(part), 2) for part in halves if part.gaussian.leaves_out]
    if quarters := [one for one in found if one is not None]:
        points.insert(0, CurvePoint(shots / 4, 1 - sum(quarters) / len(quarters)))
    factor = _factor(error, half)
    return [*points, *(CurvePoint(shots * 2**k, 1 - error * factor**k, expected=True) for k in (1, 2))]


def _shots(experts: Experts) -> float:
    """Images per class, the mean."""
    return len(experts.labels) / max(int((experts.gaussian.counts > 0).sum()), 1)


def _half_error(experts: Experts, numbers: Numbers, draws: int) -> float | None:
    """Left-out error with half of the images, the mean over so many draws of two halves.

    None where there are too few images, or too many copies among them, to leave any out of a half.
    """
    if _shots(experts) < LEAST_SHOTS or not experts.gaussian.leaves_out:
        return None
    labels, groups = experts.labels, experts.gaussian.groups
    parts = [_part(experts, rows, numbers) for seed in range(draws) for rows in _halves(labels, groups, seed)]
    errors = [_error(part, choose(part)) for part in parts if part.gaussian.leaves_out]
    return sum(errors) / len(errors) if errors else None


def _factor(error: float, half: float) -> float:
    """What the error is multiplied with when the number of images doubles."""
    return min(max(error / half, 0.5), 1.0) if half > 0 else 1.0


def _error(experts: Experts, numbers: Numbers) -> float:
    """Left-out error, the mean over classes."""
    logits, able = left_out_logits(experts, numbers), experts.gaussian.fellows
    labels = experts.labels[able]
    wrong = (logits[able].argmax(dim=-1) != labels).double()
    return float((wrong * class_weights(labels)).sum())


def _halves(labels: Tensor, groups: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Two halves of the images of each class, copies together: indices."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(int(groups.max()) + 1, generator=generator).to(groups.device)[groups]
    first = torch.zeros_like(labels, dtype=torch.bool)
    for c in range(int(labels.max()) + 1):
        own = (labels == c).nonzero()[:, 0]
        own = own[order[own].argsort(stable=True)]
        first[own[: (len(own) + seed % 2) // 2]] = True
    # Copies follow the first of their group.
    first = first[_first_of(groups)[groups]]
    return first.nonzero()[:, 0], (~first).nonzero()[:, 0]


def _first_of(groups: Tensor) -> Tensor:
    """Index of the first image of every group number."""
    first = torch.zeros(int(groups.max()) + 1, dtype=torch.int64, device=groups.device)
    backwards = torch.arange(len(groups) - 1, -1, -1, device=groups.device)
    first[groups[backwards]] = backwards
    return first


def _part(experts: Experts, rows: Tensor, numbers: Numbers) -> Experts:
    """The experts on some of the images; with the ridges of all of them only k and the scales are chosen again."""
    source = experts.gaussian
    gaussian = TextGaussian(source.x[rows], source.labels[rows], source.text, source.groups[rows])
    kernel = experts.kernel if numbers.kernel > 0 else None
    if kernel is not None:
        kernel = KernelRidge(gaussian.x, gaussian.labels, kernel.classes, gaussian.groups, kernel.width)
    fixed = Fixed(ridge=numbers.ridge, kernel_ridge=numbers.kernel_ridge)
    return replace(experts, gaussian=gaussian, kernel=kernel, fixed=fixed)
