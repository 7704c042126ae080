"""Scales of experts: softmax( Σ_e s_e z_e ) with s_e >= 0, fitted on held-out scores.

The weighted log-loss with smoothed labels is convex in the scales, of which there are few. Every iteration solves
the Newton step under s >= 0 exactly, by trying each set of scales that may be zero.

What the closed form chooses, and how: by the leave-one-out log-loss of the training images.

Three experts score an image: the Gaussian head of `text_gaussian` (k, g), zero-shot CLIP, and kernel ridge
(ρ). First k and g are chosen, each pair with the scales of Gaussian and text that suit it best; then ρ likewise;
then the three scales are fitted together. Every class has the same weight, and every label is smoothed, so that
scales stay finite where no image is mistaken.

Where too few images can be left out (fewer than half have another image of their class), leave-one-out
says nothing. Zero-shot CLIP was not trained on the images either, so they measure what text is worth:
with b the scale of least log-loss and gain = 1 - log-loss / log C the share of the uncertainty that text removes,

    k = 2 gain,   scale of text ¾ b,   scale of the Gaussian 1,   g = 10,   no kernel.

The finished head of the closed form: a linear part and a kernel part.

What images that were left out say about new ones: p-values for "none of these", and sets of classes.

An image is familiar if kernel ridge predicts some class strongly: far from all training images every prediction falls
to zero. The p-value compares the largest prediction with those of left-out training images. docs/closed-form.md
compares it with the largest probability and with the zero-shot score MCM.

What more training images would bring, from leave-one-out on halves of those that are there.

With e(n) the left-out error with n images per class and e(n/2) its mean over two halves, the error is taken to fall
by the same factor with every doubling: e(2n) = e(n)² / e(n/2), at most halved and never more than e(n).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.methods.base import CurvePoint, Head
from dca.methods.shared.experts import KernelRidge, TextGaussian, has_fellows
from dca.stats.conformal import add_best, conformal_p_values, jackknife_plus

ITERATIONS, TOLERANCE = 60, 1e-10


@dataclass(frozen=True)
class Scales:
    """Fitted scales, (E,), and the loss that they reach."""

    values: Tensor
    loss: float


def log_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> float:
    """Σ_i ω_i (-log p_i) of logits (N, C), labels (N,) and weights (N,) that sum to one."""
    rows = torch.arange(len(labels), device=labels.device)
    return float(-(weights * logits.log_softmax(dim=-1)[rows, labels]).sum())


def class_weights(labels: Tensor) -> Tensor:
    """Weights (N,) that sum to one and give every class that occurs the same weight."""
    counts = torch.bincount(labels).double()
    return 1 / (counts[labels] * (counts > 0).sum())


def fit_scales(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor,
    *,
    smoothing: float = 0.0,
    given: Sequence[float | None] = (),
) -> Scales:
    """The scales of least loss.

    scores: (E, N, C). labels: (N,). weights: (N,), summing to one. smoothing: share of every label that is spread
    over all classes, which bounds the scales where the experts make no mistake. given: scales to keep, None to fit.
    """
    kept = torch.tensor([value is not None for value in given] or [False] * len(scores), device=scores.device)
    values = scores.new_tensor([value or 0.0 for value in given] or [0.0] * len(scores))
    centred = scores - scores.mean(dim=-1, keepdim=True)  # so the share that is spread adds nothing to the target
    kept = kept | (centred.abs().amax(dim=(1, 2)) <= 1e-12)  # an expert that says nothing keeps a scale of 0
    problem = _Problem.of(centred[~kept], torch.einsum("e,enc->nc", values, centred), labels, weights, smoothing)
    values[~kept], loss = problem.solve()
    return Scales(values, loss)


@dataclass(frozen=True)
class _Problem:
    """Minimise Σ_i ω_i (log Σ_c exp(o + s·z)_ic - target_i) over s >= 0.

    z: (E, N, C), scaled to unit size. unit: (E,), the sizes. offset: o (N, C). target: (E, N). constant: (N,).
    """

    z: Tensor
    unit: Tensor
    offset: Tensor
    target: Tensor
    constant: Tensor
    weights: Tensor

    @classmethod
    def of(cls, z: Tensor, offset: Tensor, labels: Tensor, weights: Tensor, smoothing: float) -> _Problem:
        rows = torch.arange(len(labels), device=labels.device)
        unit = (weights * z.square().mean(dim=-1)).sum(dim=-1).sqrt().clamp_min(1e-30)
        z = z / unit[:, None, None]
        own = (1 - smoothing) * z[:, rows, labels]
        return cls(z, unit, offset, own, (1 - smoothing) * offset[rows, labels], weights)

    def loss(self, s: Tensor) -> float:
        """The objective at s (E,)."""
        logits = self.offset + torch.einsum("e,enc->nc", s, self.z)
        return float((self.weights * (logits.logsumexp(dim=-1) - s @ self.target - self.constant)).sum())

    def solve(self) -> tuple[Tensor, float]:
        """The best s, in the units of the scores, and its loss."""
        s = self.z.new_full((len(self.z),), 1 / max(len(self.z), 1))
        loss = self.loss(s)
        for _ in range(ITERATIONS if len(s) else 0):
            step, rate = self._step(s), 1.0
            while (new := self.loss((s + rate * step).clamp_min(0))) > loss and rate > 1e-6:
                rate /= 2
            gained = loss - new
            if gained > 0:
                s, loss = (s + rate * step).clamp_min(0), new
            if gained < TOLERANCE:
                break
        return s / self.unit, loss

    def _step(self, s: Tensor) -> Tensor:
        """Newton's step at s, under s >= 0."""
        p = (self.offset + torch.einsum("e,enc->nc", s, self.z)).softmax(dim=-1)
        mean = (p * self.z).sum(dim=-1)
        gradient = ((mean - self.target) * self.weights).sum(dim=-1)
        second = torch.einsum("enc,fnc->ef", self.z * (p * self.weights[:, None]), self.z)
        return newton_step(s, gradient, second - torch.einsum("en,fn->ef", mean * self.weights, mean))


def newton_step(s: Tensor, gradient: Tensor, hessian: Tensor) -> Tensor:
    """The minimum of gradient·δ + ½ δᵀ hessian δ over s + δ >= 0."""
    damped = hessian + 1e-9 * torch.eye(len(s), dtype=s.dtype, device=s.device) * hessian.diagonal().mean()
    best, best_value = -s, torch.inf
    for free in product((True, False), repeat=len(s)):
        on = torch.tensor(free, device=s.device)
        step = torch.where(on, 0.0, -s)
        if on.any():
            right = -(gradient + damped @ step)[on]
            step[on] = torch.linalg.solve(damped[on][:, on], right)
        if (s + step < -1e-12).any():
            continue
        value = float(gradient @ step + step @ damped @ step / 2)
        if value < best_value:
            best, best_value = step, value
    return best


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


@dataclass(frozen=True)
class PooledHead(Head):
    """Softmax of w_y · f + b_y + Σ_i exp(k_i · f - rate) a_iy.

    weight: (C, D). bias: (C,). keys: rate times the training features (N, D). coefficients: (N, C). The last two
    are None without a kernel.
    """

    weight: Tensor
    bias: Tensor
    keys: Tensor | None
    coefficients: Tensor | None
    rate: float

    @classmethod
    def of(
        cls,
        weight: Tensor,
        bias: Tensor,
        kernel: KernelRidge | None = None,
        coefficients: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> PooledHead:
        """From float64 weight (C, D) and bias (C,), and coefficients (N, C) of a kernel."""
        # What all classes share changes no probability, but would cost digits in float32.
        weight, bias = (weight - weight.mean(dim=0)).to(dtype), (bias - bias.mean()).to(dtype)
        if kernel is None or coefficients is None:
            return cls(weight, bias, None, None, 0.0)
        return cls(weight, bias, (kernel.rate * kernel.x).to(dtype), coefficients.to(dtype), kernel.rate)

    @classmethod
    def of_experts(cls, experts: Experts, numbers: Numbers, dtype: torch.dtype = torch.float32) -> PooledHead:
        """The three experts, weighed by the numbers."""
        W, bias = experts.gaussian.whitened(numbers.ridge).linear(numbers.text_shots)
        W = numbers.gaussian * W + numbers.text * experts.tau * experts.gaussian.text
        kernel = experts.kernel if numbers.kernel > 0 else None
        coefficients = None if kernel is None else numbers.kernel * kernel.coefficients(numbers.kernel_ridge)
        return cls.of(W, numbers.gaussian * bias, kernel, coefficients, dtype)

    def on(self, device: torch.device) -> PooledHead:
        """The head on a device."""
        keys, coefficients = (t if t is None else t.to(device) for t in (self.keys, self.coefficients))
        return PooledHead(self.weight.to(device), self.bias.to(device), keys, coefficients, self.rate)

    def logits(self, f: Tensor) -> Tensor:
        """Inputs of the softmax for image features f (B, D): (B, C)."""
        logits = F.linear(f, self.weight, self.bias)
        if self.keys is None or self.coefficients is None:
            return logits
        return logits + (F.linear(f, self.keys) - self.rate).exp() @ self.coefficients

    def __call__(self, f: Tensor) -> Tensor:
        """Image features f (B, D) -> probabilities (B, C)."""
        return self.logits(f).softmax(dim=-1)

    @property
    def values_per_image(self) -> int:
        """One kernel value per training image, one logit per class."""
        return len(self.weight) + (0 if self.keys is None else len(self.keys))


# Most images whose models are compared with a new image in prediction sets, and numbers in the largest tensor.
CALIBRATION, NUMBERS = 1000, 2**22


@dataclass(frozen=True)
class LeftOutAnswers:
    """Left-out images of a closed form.

    experts: all training images. numbers: those of the head. kernel: over the images that say what is familiar.
    """

    experts: Experts
    numbers: Numbers
    kernel: KernelRidge

    @cached_property
    def _familiar(self) -> Tensor:
        """Largest prediction for every left-out image, (n,)."""
        able = has_fellows(self.kernel.labels, self.kernel.groups)
        return self.kernel.left_out(self.numbers.kernel_ridge)[able].amax(dim=-1)

    @cached_property
    def _coefficients(self) -> Tensor:
        return self.kernel.coefficients(self.numbers.kernel_ridge)

    def p_values(self, f: Tensor) -> Tensor:
        """p-value of each image f (B, D) under "it is of one of the classes": (B,)."""
        found = (self.kernel.kernel(f) @ self._coefficients).amax(dim=-1)
        return conformal_p_values(-self._familiar, -found)

    @cached_property
    def _rows(self) -> Tensor:
        """Images without copies that can be left out, at most `CALIBRATION` of them."""
        source = self.experts.gaussian
        alone = torch.bincount(source.groups)[source.groups] == 1
        rows = (alone & source.fellows).nonzero()[:, 0]
        return rows[some_of(len(rows), CALIBRATION)]

    @cached_property
    def _held(self) -> Tensor:
        """-log p of the own class of the images `_rows` by the models without them: (n,)."""
        rows = self._rows
        logits = left_out_logits(self.experts, self.numbers, repaired=False)[rows]
        return -logits.log_softmax(dim=-1)[torch.arange(len(rows), device=rows.device), self.experts.labels[rows]]

    def sets(self, f: Tensor, probabilities: Tensor, coverage: float) -> Tensor:
        """Whether each class is in the jackknife+ set of each image f (B, D): (B, C).

        probabilities: those of the head (B, C). coverage: 1 - α; the guarantee is 1 - 2α.
        """
        at_once = max(NUMBERS // max(len(self._rows) * probabilities.shape[1], 1), 1)
        parts = [jackknife_plus(self._held, self._without(some), coverage) for some in torch.split(f, at_once)]
        return add_best(torch.cat(parts), probabilities)

    def _without(self, f: Tensor) -> Tensor:
        """-log p (B, n, C) of images f (B, D) by the models without each of the images `_rows`."""
        source, n = self.experts.gaussian, self.numbers
        logits = n.gaussian * source.whitened(n.ridge).without_each(f, self._rows, n.text_shots)
        logits = logits + n.text * self.experts.text_logits(f)[:, None, :]
        if self.experts.kernel is not None and n.kernel > 0:
            logits = logits + n.kernel * self.experts.kernel.without_each(f, self._rows, n.kernel_ridge)
        return -logits.log_softmax(dim=-1)


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
