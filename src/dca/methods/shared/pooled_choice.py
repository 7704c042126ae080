"""What the closed form chooses, and how: by the leave-one-out log-loss of the training images.

Three experts score an image: the Gaussian head of `text_gaussian` (k, g), zero-shot CLIP, and kernel ridge
(ρ). First k and g are chosen, each pair with the scales of Gaussian and text that suit it best; then ρ likewise;
then the three scales are fitted together. Every class has the same weight, and every label is smoothed, so that
scales stay finite where no image is mistaken.

Where too few images can be left out (fewer than half have another image of their class), leave-one-out
says nothing. Zero-shot CLIP was not trained on the images either, so they measure what text is worth:
with b the scale of least log-loss and gain = 1 - log-loss / log C the share of the uncertainty that text removes,

    k = 2 gain,   scale of text ¾ b,   scale of the Gaussian 1,   g = 10,   no kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from dca.methods.shared.expert_scales import Scales, class_weights, fit_scales, log_loss
from dca.methods.shared.kernel_ridge import KernelRidge
from dca.methods.shared.text_gaussian import TextGaussian

TEXT_SHOTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
RIDGES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
KERNEL_RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# Most images that vote in the choice, which bounds its time.
VOTERS = 4096
ONE_SHOT_RIDGE, ONE_SHOT_PULL, ONE_SHOT_TEXT = 10.0, 0.1, 0.75


@dataclass(frozen=True)
class Numbers:
    """The numbers of the head, in the order in which they are stored.

    text_shots: k. ridge: g. gaussian, text, kernel: scales of the experts. kernel_ridge: ρ.
    """

    text_shots: float
    ridge: float
    gaussian: float
    text: float
    kernel: float = 0.0
    kernel_ridge: float = 1.0


@dataclass(frozen=True)
class Fixed:
    """Numbers that the user gave; None: chosen. scales: of the Gaussian, of text and of the kernel."""

    text_shots: float | None = None
    ridge: float | None = None
    kernel_ridge: float | None = None
    scales: tuple[float | None, float | None, float | None] = (None, None, None)


@dataclass(frozen=True)
class Experts:
    """The experts for the same N training images. tau: CLIP's scale. kernel: None without that expert."""

    gaussian: TextGaussian
    tau: float
    kernel: KernelRidge | None
    fixed: Fixed = field(default_factory=Fixed)

    @classmethod
    def of(cls, gaussian: TextGaussian, tau: float, fixed: Fixed, *, width: float, most: int) -> Experts:
        """All three; kernel ridge, with width w, only where there are at most `most` images."""
        kernel = kernel_over(gaussian, width) if len(gaussian.x) <= most else None
        return cls(gaussian, tau, kernel, fixed)

    @cached_property
    def zero_shot(self) -> Tensor:
        """τ x·t of the training images, (N, C)."""
        return self.text_logits(self.gaussian.x)

    def text_logits(self, x: Tensor) -> Tensor:
        """τ x·t of images x (B, D), (B, C)."""
        return self.tau * x.double() @ self.gaussian.text.T

    @property
    def labels(self) -> Tensor:
        """Class of each image, (N,)."""
        return self.gaussian.labels


def kernel_over(source: TextGaussian, width: float, most: int | None = None) -> KernelRidge:
    """Kernel ridge with width w over the training images, or over at most so many of them."""
    rows = some_of(len(source.labels), len(source.labels) if most is None else most)
    return KernelRidge(source.x[rows], source.labels[rows], len(source.text), source.groups[rows], width)


def choose(experts: Experts) -> Numbers:
    """The numbers of the head."""
    if experts.gaussian.leaves_out:
        return _by_leave_one_out(experts)
    return _by_text(experts.fixed, *text_gain(experts.zero_shot, experts.labels))


def text_gain(zero_shot: Tensor, labels: Tensor) -> tuple[float, float]:
    """Share of the uncertainty that zero-shot CLIP removes, and the scale at which it does: logits (N, C), labels."""
    weights = class_weights(labels)
    scale = fit_scales(zero_shot[None], labels, weights, smoothing=ONE_SHOT_PULL).values[0]
    unsure = math.log(zero_shot.shape[1])
    return max(0.0, 1 - log_loss(scale * zero_shot, labels, weights) / unsure), float(scale)


def _by_text(fixed: Fixed, gain: float, scale: float) -> Numbers:
    auto = (1.0, ONE_SHOT_TEXT * scale, 0.0)
    a, b, c = (value if value is not None else own for value, own in zip(fixed.scales, auto, strict=True))
    return Numbers(
        text_shots=2 * gain if fixed.text_shots is None else fixed.text_shots,
        ridge=ONE_SHOT_RIDGE if fixed.ridge is None else fixed.ridge,
        gaussian=a, text=b, kernel=c, kernel_ridge=fixed.kernel_ridge or 1.0,
    )  # fmt: skip


def some_of(count: int, most: int) -> Tensor:
    """At most `most` of the numbers below `count`, drawn evenly and always the same, in order."""
    if count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:most].sort().values


class _Vote:
    """Fits scales on the votes of some of the images."""

    def __init__(self, experts: Experts) -> None:
        rows = experts.gaussian.fellows.nonzero()[:, 0]
        rows = rows[some_of(len(rows), VOTERS)]
        self.rows, self.labels = rows, experts.labels[rows]
        self.weights = class_weights(self.labels)
        self.smoothing = 1 / (len(experts.labels) + 2)  # as Platt's targets: N right answers do not prove certainty

    def scales(self, scores: Sequence[Tensor], given: Sequence[float | None]) -> Scales:
        """Scales of experts whose scores (N, C) of all images are given; `given` ones are kept."""
        found = torch.stack([one[self.rows] for one in scores])
        return fit_scales(found, self.labels, self.weights, smoothing=self.smoothing, given=given)


def _by_leave_one_out(experts: Experts) -> Numbers:
    fixed, vote = experts.fixed, _Vote(experts)
    a, b, c = fixed.scales
    gaussian, k, g, held = _best_gaussian(experts, vote)
    scores, given, rho = [held, experts.zero_shot], [a, b], fixed.kernel_ridge or 1.0
    if experts.kernel is not None and c != 0:
        rho, kernel = _best_kernel(experts.kernel, experts, vote)
        scores, given = [*scores, kernel], [*given, c]
        values = vote.scales(scores, given).values.tolist()
    else:
        values = [*gaussian.values.tolist(), 0.0]
    a, b, c = values
    return Numbers(k, g, a, b, c, rho)


def _best_gaussian(experts: Experts, vote: _Vote) -> tuple[Scales, float, float, Tensor]:
    """Scales, k, g and left-out scores of the best pair; of equal ones the larger g, then the larger k."""
    fixed = experts.fixed
    best: tuple[Scales, float, float, Tensor] | None = None
    for g in sorted(RIDGES if fixed.ridge is None else (fixed.ridge,), reverse=True):
        model = experts.gaussian.whitened(g)
        for k in sorted(TEXT_SHOTS if fixed.text_shots is None else (fixed.text_shots,), reverse=True):
            held, _ = model.left_out(k)
            scales = vote.scales([held, experts.zero_shot], fixed.scales[:2])
            if best is None or scales.loss < best[0].loss - 1e-12:
                best = (scales, k, g, held)
    assert best is not None
    return best


def _best_kernel(kernel: KernelRidge, experts: Experts, vote: _Vote) -> tuple[float, Tensor]:
    """ρ and left-out predictions of the best ridge, beside zero-shot CLIP; of equal ones the largest."""
    fixed = experts.fixed.kernel_ridge
    best: tuple[float, float, Tensor] | None = None
    for rho in sorted(KERNEL_RIDGES if fixed is None else (fixed,), reverse=True):
        held = kernel.left_out(rho)
        loss = vote.scales([held, experts.zero_shot], (None, None)).loss
        if best is None or loss < best[0] - 1e-12:
            best = (loss, rho, held)
    assert best is not None
    return best[1], best[2]


def left_out_logits(experts: Experts, numbers: Numbers, *, repaired: bool = True) -> Tensor:
    """Logits (N, C) of every image by the model without it and its copies; NaN where it cannot be left out."""
    if not experts.gaussian.leaves_out:
        return torch.full_like(experts.zero_shot, torch.nan)
    scores, _ = experts.gaussian.whitened(numbers.ridge).left_out(numbers.text_shots, repaired=repaired)
    logits = numbers.gaussian * scores + numbers.text * experts.zero_shot
    if experts.kernel is not None and numbers.kernel > 0:
        logits = logits + numbers.kernel * experts.kernel.left_out(numbers.kernel_ridge)
    return torch.where(experts.gaussian.fellows[:, None], logits, torch.nan)
