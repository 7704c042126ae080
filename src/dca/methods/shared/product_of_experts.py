"""A product of experts: fitted scales, chosen hyperparameters, the head, and the learning curve.

    p = softmax( Σ_e s_e z_e ),   s_e >= 0

**Scales.** The weighted log-loss with smoothed labels is convex in the scales, of which there are few. Every iteration
solves the Newton step under s >= 0 exactly, by trying each set of scales that may be zero.

**Hyperparameters** of the closed form have the least leave-one-out log-loss on the training images. Three experts score
an image: the Gaussian head of `experts.TextGaussian` (k, g), zero-shot CLIP, and kernel ridge (ρ). First k and g are
chosen, each pair with the scales of Gaussian and text that suit it best; then ρ likewise; then the three scales are
fitted together. Every class has the same weight, and every label is smoothed, so that scales stay finite where no image
is mistaken. Where too few images can be left out (fewer than half have another image of their class), leave-one-out
says nothing. Zero-shot CLIP was not trained on the images either, so they measure what text is worth: with b the scale
of least log-loss and gain = 1 - log-loss / log C the share of the uncertainty that text removes,

    k = 2 gain,   scale of text ¾ b,   scale of the Gaussian 1,   g = 10,   no kernel.

**Learning curve.** With e(n) the held-out error with n images per class and e(n/2) its mean over two halves, the error
is assumed to fall by the same factor with every doubling: e(2n) = e(n)² / e(n/2), at most halved and never more than
e(n).
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
from dca.methods.shared.experts import KernelRidge, TextGaussian

ITERATIONS, TOLERANCE = 60, 1e-10


@dataclass(frozen=True)
class Scales:
    """Fitted scales, (E,), and their loss."""

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
    fixed: Sequence[float | None] = (),
) -> Scales:
    """Fit the scales of least loss.

    scores: (E, N, C). labels: (N,). weights: (N,), summing to one. smoothing: share of every label that is spread
    over all classes, which bounds the scales where the experts make no mistake. fixed: scales to keep, None to fit.
    """
    kept = torch.tensor([value is not None for value in fixed] or [False] * len(scores), device=scores.device)
    values = scores.new_tensor([value or 0.0 for value in fixed] or [0.0] * len(scores))
    centred = scores - scores.mean(dim=-1, keepdim=True)  # so the share that is spread adds nothing to the target
    kept = kept | (centred.abs().amax(dim=(1, 2)) <= 1e-12)  # an expert that says nothing keeps a scale of 0
    problem = _ScaleProblem.from_scores(
        centred[~kept], torch.einsum("e,enc->nc", values, centred), labels, weights, smoothing
    )
    values[~kept], loss = problem.solve()
    return Scales(values, loss)


@dataclass(frozen=True)
class _ScaleProblem:
    """Minimisation of Σ_i ω_i (log Σ_c exp(o + s·z)_ic - target_i) over s >= 0.

    z: (E, N, C), scaled to unit size. unit: (E,), the sizes. offset: o (N, C). target: (E, N). constant: (N,).
    """

    z: Tensor
    unit: Tensor
    offset: Tensor
    target: Tensor
    constant: Tensor
    weights: Tensor

    @classmethod
    def from_scores(cls, z: Tensor, offset: Tensor, labels: Tensor, weights: Tensor, smoothing: float) -> _ScaleProblem:
        rows = torch.arange(len(labels), device=labels.device)
        unit = (weights * z.square().mean(dim=-1)).sum(dim=-1).sqrt().clamp_min(1e-30)
        z = z / unit[:, None, None]
        target = (1 - smoothing) * z[:, rows, labels]
        return cls(z, unit, offset, target, (1 - smoothing) * offset[rows, labels], weights)

    def loss(self, s: Tensor) -> float:
        """The objective at s (E,)."""
        logits = self.offset + torch.einsum("e,enc->nc", s, self.z)
        return float((self.weights * (logits.logsumexp(dim=-1) - s @ self.target - self.constant)).sum())

    def solve(self) -> tuple[Tensor, float]:
        """Find the best s, in the units of the scores, and its loss."""
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
# Most images that the selection looks at, which bounds its time.
MAX_SELECTION_IMAGES = 4096
ONE_SHOT_RIDGE, ONE_SHOT_PULL, ONE_SHOT_TEXT = 10.0, 0.1, 0.75


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters of the head, in the order in which they are stored.

    text_shots: k. ridge: g. gaussian, text, kernel: scales of the experts. kernel_ridge: ρ.
    """

    text_shots: float
    ridge: float
    gaussian: float
    text: float
    kernel: float = 0.0
    kernel_ridge: float = 1.0


@dataclass(frozen=True)
class FixedHyperparameters:
    """Hyperparameters that the user sets; None: selected. scales: of the Gaussian, of text and of the kernel."""

    text_shots: float | None = None
    ridge: float | None = None
    kernel_ridge: float | None = None
    scales: tuple[float | None, float | None, float | None] = (None, None, None)


@dataclass(frozen=True)
class Experts:
    """The experts on the same N training images. tau: CLIP's scale. kernel: None without that expert."""

    gaussian: TextGaussian
    tau: float
    kernel: KernelRidge | None
    fixed: FixedHyperparameters = field(default_factory=FixedHyperparameters)

    @classmethod
    def build(
        cls, gaussian: TextGaussian, tau: float, fixed: FixedHyperparameters, *, width: float, most: int
    ) -> Experts:
        """Build all three; kernel ridge, of width w, only if there are at most `most` images."""
        kernel = build_kernel_ridge(gaussian, width) if len(gaussian.x) <= most else None
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


def build_kernel_ridge(source: TextGaussian, width: float, most: int | None = None) -> KernelRidge:
    """Build kernel ridge of width w over the training images, or over at most `most` of them."""
    rows = subsample(len(source.labels), len(source.labels) if most is None else most)
    return KernelRidge(source.x[rows], source.labels[rows], len(source.text), source.groups[rows], width)


def select_hyperparameters(experts: Experts) -> Hyperparameters:
    """Select the hyperparameters of the head by the training images."""
    if experts.gaussian.can_hold_out:
        return _select_by_leave_one_out(experts)
    return _select_by_text(experts.fixed, *text_gain(experts.zero_shot, experts.labels))


def text_gain(zero_shot: Tensor, labels: Tensor) -> tuple[float, float]:
    """Share of the uncertainty that zero-shot CLIP removes, and the scale at which it does. logits: (N, C)."""
    weights = class_weights(labels)
    scale = fit_scales(zero_shot[None], labels, weights, smoothing=ONE_SHOT_PULL).values[0]
    uncertainty = math.log(zero_shot.shape[1])
    return max(0.0, 1 - log_loss(scale * zero_shot, labels, weights) / uncertainty), float(scale)


def _select_by_text(fixed: FixedHyperparameters, gain: float, scale: float) -> Hyperparameters:
    defaults = (1.0, ONE_SHOT_TEXT * scale, 0.0)
    a, b, c = (default if value is None else value for value, default in zip(fixed.scales, defaults, strict=True))
    return Hyperparameters(
        text_shots=2 * gain if fixed.text_shots is None else fixed.text_shots,
        ridge=ONE_SHOT_RIDGE if fixed.ridge is None else fixed.ridge,
        gaussian=a, text=b, kernel=c, kernel_ridge=fixed.kernel_ridge or 1.0,
    )  # fmt: skip


def subsample(count: int, most: int) -> Tensor:
    """Draw at most `most` of the indices below `count`, always the same ones, in order."""
    if count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:most].sort().values


class _ScaleFitter:
    """Fits scales on held-out images, a sample of them if there are very many."""

    def __init__(self, experts: Experts) -> None:
        rows = experts.gaussian.peers.nonzero()[:, 0]
        rows = rows[subsample(len(rows), MAX_SELECTION_IMAGES)]
        self.rows, self.labels = rows, experts.labels[rows]
        self.weights = class_weights(self.labels)
        self.smoothing = 1 / (len(experts.labels) + 2)  # as Platt's targets: N right answers do not prove certainty

    def fit(self, scores: Sequence[Tensor], fixed: Sequence[float | None]) -> Scales:
        """Fit the scales of experts with these scores (N, C) of all images; `fixed` ones are kept."""
        sample = torch.stack([expert[self.rows] for expert in scores])
        return fit_scales(sample, self.labels, self.weights, smoothing=self.smoothing, fixed=fixed)


def _select_by_leave_one_out(experts: Experts) -> Hyperparameters:
    fixed, fitter = experts.fixed, _ScaleFitter(experts)
    a, b, c = fixed.scales
    gaussian, k, g, held = _select_gaussian(experts, fitter)
    scores, scales, rho = [held, experts.zero_shot], [a, b], fixed.kernel_ridge or 1.0
    if experts.kernel is not None and c != 0:
        rho, kernel = _select_kernel_ridge(experts.kernel, experts, fitter)
        scores, scales = [*scores, kernel], [*scales, c]
        values = fitter.fit(scores, scales).values.tolist()
    else:
        values = [*gaussian.values.tolist(), 0.0]
    a, b, c = values
    return Hyperparameters(k, g, a, b, c, rho)


def _select_gaussian(experts: Experts, fitter: _ScaleFitter) -> tuple[Scales, float, float, Tensor]:
    """Scales, k, g and held-out scores of the best pair; of equal ones the larger g, then the larger k."""
    fixed = experts.fixed
    best: tuple[Scales, float, float, Tensor] | None = None
    for g in sorted(RIDGES if fixed.ridge is None else (fixed.ridge,), reverse=True):
        model = experts.gaussian.whiten(g)
        for k in sorted(TEXT_SHOTS if fixed.text_shots is None else (fixed.text_shots,), reverse=True):
            held, _ = model.held_out(k)
            scales = fitter.fit([held, experts.zero_shot], fixed.scales[:2])
            if best is None or scales.loss < best[0].loss - 1e-12:
                best = (scales, k, g, held)
    assert best is not None
    return best


def _select_kernel_ridge(kernel: KernelRidge, experts: Experts, fitter: _ScaleFitter) -> tuple[float, Tensor]:
    """ρ and held-out predictions of the best ridge, beside zero-shot CLIP; of equal ones the largest."""
    fixed = experts.fixed.kernel_ridge
    best: tuple[float, float, Tensor] | None = None
    for rho in sorted(KERNEL_RIDGES if fixed is None else (fixed,), reverse=True):
        held = kernel.held_out(rho)
        loss = fitter.fit([held, experts.zero_shot], (None, None)).loss
        if best is None or loss < best[0] - 1e-12:
            best = (loss, rho, held)
    assert best is not None
    return best[1], best[2]


def held_out_logits(experts: Experts, selected: Hyperparameters, *, corrected: bool = True) -> Tensor:
    """Logits (N, C) of every image by the model without it and its copies; NaN where it cannot be left out."""
    if not experts.gaussian.can_hold_out:
        return torch.full_like(experts.zero_shot, torch.nan)
    scores, _ = experts.gaussian.whiten(selected.ridge).held_out(selected.text_shots, corrected=corrected)
    logits = selected.gaussian * scores + selected.text * experts.zero_shot
    if experts.kernel is not None and selected.kernel > 0:
        logits = logits + selected.kernel * experts.kernel.held_out(selected.kernel_ridge)
    return torch.where(experts.gaussian.peers[:, None], logits, torch.nan)


@dataclass(frozen=True)
class ExpertsHead(Head):
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
    def from_parameters(
        cls,
        weight: Tensor,
        bias: Tensor,
        kernel: KernelRidge | None = None,
        coefficients: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> ExpertsHead:
        """Convert float64 weight (C, D) and bias (C,), and coefficients (N, C) of a kernel."""
        # What all classes share changes no probability, but would cost digits in float32.
        weight, bias = (weight - weight.mean(dim=0)).to(dtype), (bias - bias.mean()).to(dtype)
        if kernel is None or coefficients is None:
            return cls(weight, bias, None, None, 0.0)
        return cls(weight, bias, (kernel.rate * kernel.x).to(dtype), coefficients.to(dtype), kernel.rate)

    @classmethod
    def from_experts(
        cls, experts: Experts, selected: Hyperparameters, dtype: torch.dtype = torch.float32
    ) -> ExpertsHead:
        """Combine the three experts with their scales."""
        W, bias = experts.gaussian.whiten(selected.ridge).linear(selected.text_shots)
        W = selected.gaussian * W + selected.text * experts.tau * experts.gaussian.text
        kernel = experts.kernel if selected.kernel > 0 else None
        coefficients = None if kernel is None else selected.kernel * kernel.coefficients(selected.kernel_ridge)
        return cls.from_parameters(W, selected.gaussian * bias, kernel, coefficients, dtype)

    def to(self, device: torch.device) -> ExpertsHead:
        """Copy the head to a device."""
        keys, coefficients = (t if t is None else t.to(device) for t in (self.keys, self.coefficients))
        return ExpertsHead(self.weight.to(device), self.bias.to(device), keys, coefficients, self.rate)

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


# The learning curve needs this many images per class, since a half with fewer says little; and draws of halves.
MIN_SHOTS = 4
DRAWS = 4


def expected_gain(experts: Experts, selected: Hyperparameters) -> tuple[int, float] | None:
    """Twice as many images per class, and the expected gain in accuracy; None if there are too few to tell."""
    half = _mean_half_error(experts, selected, DRAWS)
    if half is None:
        return None
    error = _held_out_error(experts, selected)
    return round(2 * _images_per_class(experts)), error * (1 - _doubling_factor(error, half))


def learning_curve(experts: Experts, selected: Hyperparameters) -> list[CurvePoint]:
    """Accuracy by images per class: with a quarter and half of the images, with all, and expected with 2 and 4 times.

    Empty where there are too few images to tell.
    """
    shots, half = _images_per_class(experts), _mean_half_error(experts, selected, DRAWS)
    if half is None:
        return []
    error = _held_out_error(experts, selected)
    points = [CurvePoint(shots / 2, 1 - half), CurvePoint(shots, 1 - error)]
    halves = [
        _restrict(experts, rows, selected) for rows in _split_in_halves(experts.labels, experts.gaussian.groups, 0)
    ]
    errors = [_mean_half_error(part, select_hyperparameters(part), 2) for part in halves if part.gaussian.can_hold_out]
    if quarters := [one for one in errors if one is not None]:
        points.insert(0, CurvePoint(shots / 4, 1 - sum(quarters) / len(quarters)))
    factor = _doubling_factor(error, half)
    return [*points, *(CurvePoint(shots * 2**k, 1 - error * factor**k, expected=True) for k in (1, 2))]


def _images_per_class(experts: Experts) -> float:
    """Images per class, the mean."""
    return len(experts.labels) / max(int((experts.gaussian.counts > 0).sum()), 1)


def _mean_half_error(experts: Experts, selected: Hyperparameters, draws: int) -> float | None:
    """Held-out error with half of the images, the mean over `draws` draws of two halves.

    None where there are too few images, or too many copies among them, to leave any out of a half.
    """
    if _images_per_class(experts) < MIN_SHOTS or not experts.gaussian.can_hold_out:
        return None
    labels, groups = experts.labels, experts.gaussian.groups
    parts = [
        _restrict(experts, rows, selected) for seed in range(draws) for rows in _split_in_halves(labels, groups, seed)
    ]
    errors = [_held_out_error(part, select_hyperparameters(part)) for part in parts if part.gaussian.can_hold_out]
    return sum(errors) / len(errors) if errors else None


def _doubling_factor(error: float, half: float) -> float:
    """Factor of the error when the number of images doubles."""
    return min(max(error / half, 0.5), 1.0) if half > 0 else 1.0


def _held_out_error(experts: Experts, selected: Hyperparameters) -> float:
    """Held-out error, the mean over classes."""
    logits, able = held_out_logits(experts, selected), experts.gaussian.peers
    labels = experts.labels[able]
    wrong = (logits[able].argmax(dim=-1) != labels).double()
    return float((wrong * class_weights(labels)).sum())


def _split_in_halves(labels: Tensor, groups: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Split the images of each class into two halves, copies together: indices."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(int(groups.max()) + 1, generator=generator).to(groups.device)[groups]
    first = torch.zeros_like(labels, dtype=torch.bool)
    for c in range(int(labels.max()) + 1):
        own = (labels == c).nonzero()[:, 0]
        own = own[order[own].argsort(stable=True)]
        first[own[: (len(own) + seed % 2) // 2]] = True
    # Copies follow the first of their group.
    first = first[_first_of_group(groups)[groups]]
    return first.nonzero()[:, 0], (~first).nonzero()[:, 0]


def _first_of_group(groups: Tensor) -> Tensor:
    """Index of the first image of every group number."""
    first = torch.zeros(int(groups.max()) + 1, dtype=torch.int64, device=groups.device)
    backwards = torch.arange(len(groups) - 1, -1, -1, device=groups.device)
    first[groups[backwards]] = backwards
    return first


def _restrict(experts: Experts, rows: Tensor, selected: Hyperparameters) -> Experts:
    """The experts on some of the images; the ridges are kept, so that only k and the scales are selected again."""
    source = experts.gaussian
    gaussian = TextGaussian(source.x[rows], source.labels[rows], source.text, source.groups[rows])
    kernel = experts.kernel if selected.kernel > 0 else None
    if kernel is not None:
        kernel = KernelRidge(gaussian.x, gaussian.labels, kernel.classes, gaussian.groups, kernel.width)
    fixed = FixedHyperparameters(ridge=selected.ridge, kernel_ridge=selected.kernel_ridge)
    return replace(experts, gaussian=gaussian, kernel=kernel, fixed=fixed)
