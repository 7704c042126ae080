"""A product of experts: fitted scales, chosen hyperparameters, the head, and predictions for held-out images.

    p = softmax( Σ_e s_e z_e ),   s_e >= 0

**Scales.** The weighted log-loss with smoothed labels is convex in the scales, of which there are few. Every iteration
solves the Newton step under s >= 0 exactly, by trying each set of scales that may be zero. Many problems on the same
images are solved together.

**Hyperparameters** of the closed form have the least leave-one-out log-loss on the training images. Three experts score
an image: the Gaussian head of `experts.TextGaussian` (k, g), zero-shot CLIP, and kernel ridge (ρ). First k and g are
chosen, each pair with the scales of Gaussian and text that suit it best; then ρ, each with the scales of all three.
Every class has the same weight, and every label is smoothed, so that scales stay finite where no image is mistaken.
Where too few images can be left out (fewer than half have another image of their class, or those of one class only),
leave-one-out says nothing, and where classes are rare and votes few (`TextGaussian.can_choose`) it says what suits a
handful of images. Zero-shot CLIP was not trained on the images either, so they measure what text is worth: with b the
scale of least log-loss, gain = 1 - log-loss / log C the share of the uncertainty that text removes, and L the mean
length of the class means about their centre,

    k = 2 gain,   scale of text ½ b,   scale of the Gaussian 3 log C / L²,   g = 30,   no kernel.

The scale follows from the number of classes: the score of an image at its class mean is then 3 log C above the mean of
the classes. The three constants were chosen on training and validation images.

**Held-out predictions** for estimates. Leave-one-out with hyperparameters that were chosen on the same images, and with
one class that lacks an image, is too good where there are few images. There the model is really fitted again, with all
choices, on folds that take the same share out of every class, so that no label shows in the counts (`stats/folds.py`).

**Several encoders** (`ExpertPool`). Each has a product of experts of its own; one more convex problem weighs them.

**Learning curve.** The accuracy with half of the images is that of models of one half on the other half, the mean over
draws. How that and the accuracy with all images are continued is in `stats/learning_curve.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations, product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from dca.methods.base import CurvePoint, Head
from dca.methods.shared.experts import KernelRidge, LandmarkRidge, TextGaussian
from dca.stats.folds import assign_folds, number_of_folds
from dca.stats.intervals import effective_images, held_out_interval
from dca.stats.learning_curve import expect_with_twice

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
    values, losses = fit_scales_each(scores[None], labels, weights, smoothing=smoothing, fixed=fixed)
    return Scales(values[0], float(losses[0]))


def fit_scales_each(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor,
    *,
    smoothing: float = 0.0,
    fixed: Sequence[float | None] = (),
) -> tuple[Tensor, Tensor]:
    """`fit_scales` of B problems on the same images: scores (B, E, N, C) -> values (B, E) and losses (B,)."""
    kept = torch.tensor([value is not None for value in fixed] or [False] * scores.shape[1], device=scores.device)
    given = scores.new_tensor([value or 0.0 for value in fixed] or [0.0] * scores.shape[1])
    centred = scores - scores.mean(dim=-1, keepdim=True)  # so the share that is spread adds nothing to the target
    offset = torch.einsum("e,benc->bnc", given, centred)
    problem = _ScaleProblems.from_scores(centred[:, ~kept], offset, labels, weights, smoothing)
    values = given.expand(len(scores), -1).clone()
    values[:, ~kept], losses = problem.solve()
    return values, losses


@dataclass(frozen=True)
class _ScaleProblems:
    """Minimisation of Σ_i ω_i (log Σ_c exp(o + s·z)_ic - target_i) over s >= 0, for B problems.

    z: (B, E, N, C), scaled to unit size; 0 for experts that say nothing, whose scale stays 0. unit: (B, E), the sizes.
    offset: o (B, N, C). target: (B, E), weighted mean. constant: (B,), likewise of the offset. weights: (N,).
    """

    z: Tensor
    unit: Tensor
    offset: Tensor
    target: Tensor
    constant: Tensor
    weights: Tensor

    @classmethod
    def from_scores(
        cls, z: Tensor, offset: Tensor, labels: Tensor, weights: Tensor, smoothing: float
    ) -> _ScaleProblems:
        rows = torch.arange(len(labels), device=labels.device)
        unit = (weights * z.square().mean(dim=-1)).sum(dim=-1).sqrt()
        silent = z.abs().amax(dim=(2, 3)) <= 1e-12
        unit = torch.where(silent, torch.inf, unit.clamp_min(1e-30))
        z = z / unit[..., None, None]
        target = (1 - smoothing) * (z[:, :, rows, labels] @ weights)
        return cls(z, unit, offset, target, (1 - smoothing) * (offset[:, rows, labels] @ weights), weights)

    def losses(self, s: Tensor) -> Tensor:
        """The objectives at s (B, E): (B,)."""
        logits = self.offset + torch.einsum("be,benc->bnc", s, self.z)
        return logits.logsumexp(dim=-1) @ self.weights - (s * self.target).sum(dim=-1) - self.constant

    def solve(self) -> tuple[Tensor, Tensor]:
        """Find the best s, in the units of the scores, and the losses."""
        B, E = self.z.shape[:2]
        s = (1 / max(E, 1)) * self.unit.isfinite().to(self.unit.dtype)
        losses = self.losses(s)
        for _ in range(ITERATIONS if E else 0):
            step, rate = self._steps(s), s.new_ones(B)
            new = self.losses((s + step).clamp_min(0))
            while (worse := (new > losses) & (rate > 1e-6)).any():
                rate = torch.where(worse, rate / 2, rate)
                new = torch.where(worse, self.losses((s + rate[:, None] * step).clamp_min(0)), new)
            gained = losses - new
            better = gained > 0
            s = torch.where(better[:, None], (s + rate[:, None] * step).clamp_min(0), s)
            losses = torch.where(better, new, losses)
            if not (gained >= TOLERANCE).any():
                break
        return s / self.unit, losses

    def _steps(self, s: Tensor) -> Tensor:
        """Newton's steps at s (B, E), under s >= 0."""
        p = (self.offset + torch.einsum("be,benc->bnc", s, self.z)).softmax(dim=-1)
        weighted = self.z * p[:, None]
        mean = weighted.sum(dim=-1)
        gradient = mean @ self.weights - self.target
        second = torch.einsum("benc,bfnc->bef", weighted * self.weights[:, None], self.z)
        return newton_steps(s, gradient, second - torch.einsum("ben,bfn->bef", mean * self.weights, mean))


def newton_steps(s: Tensor, gradient: Tensor, hessian: Tensor) -> Tensor:
    """The minima of gradient·δ + ½ δᵀ hessian δ over s + δ >= 0; s, gradient (B, E), hessian (B, E, E)."""
    # Where all probabilities are 0 or 1 the Hessian is 0: the damping must not be.
    size = hessian.diagonal(dim1=-2, dim2=-1).mean(dim=-1).clamp_min(1e-6)
    damped = hessian + 1e-9 * size[:, None, None] * torch.eye(s.shape[1], dtype=s.dtype, device=s.device)
    best: Tensor = torch.linalg.solve(damped, -gradient)
    outside = (s + best < -1e-12).any(dim=-1)
    if outside.any():
        best[outside] = _bounded_steps(s[outside], gradient[outside], damped[outside])
    return best


def _bounded_steps(s: Tensor, gradient: Tensor, hessian: Tensor) -> Tensor:
    """The minima of problems some of whose s + δ are 0 at it: the best of those with each set of zeros."""
    E = s.shape[1]
    best, lowest = -s, s.new_full((len(s),), torch.inf)
    for free in list(product((True, False), repeat=E))[1:]:
        on = torch.tensor(free, device=s.device)
        step = torch.where(on, 0.0, -s)
        if on.any():
            right = -(gradient + torch.einsum("bef,bf->be", hessian, step))[:, on]
            step[:, on] = torch.linalg.solve(hessian[:, on][:, :, on], right)
        value = (gradient * step).sum(dim=-1) + torch.einsum("be,bef,bf->b", step, hessian, step) / 2
        lower = (s + step >= -1e-12).all(dim=-1) & (value < lowest)
        best, lowest = torch.where(lower[:, None], step, best), torch.where(lower, value, lowest)
    return best


# Labels of an image that are read.
MOST_LABELS = 5
TEXT_SHOTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
RIDGES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
KERNEL_RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# Where nothing can be left out: g, the share of a label that is spread, the share of b, and the scale in units of
# log C / L². All were chosen on training and validation images.
ONE_SHOT_RIDGE, ONE_SHOT_PULL, ONE_SHOT_TEXT, ONE_SHOT_SCALE = 30.0, 0.1, 0.5, 3.0
# Where nothing can be left out: the gain from which on an encoder that knows texts counts fully, and its least weight.
# With the embedded encoders, equal weights were best on validation images of three datasets, whose gains are above 0.2;
# the least weight was read off two other sets of photos, where texts say nothing.
FULL_GAIN, LEAST_WEIGHT = 0.2, 0.25
# Most values of held-out scores in one tensor of the selection: more do not fit into caches.
MAX_SCORES = 2**18


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

    def weighted(self, weight: float) -> Hyperparameters:
        """The same with all scales times a weight."""
        a, b, c = (weight * scale for scale in (self.gaussian, self.text, self.kernel))
        return replace(self, gaussian=a, text=b, kernel=c)


@dataclass(frozen=True)
class FixedHyperparameters:
    """Hyperparameters that the user sets; None: selected. scales: of the Gaussian, of text and of the kernel."""

    text_shots: float | None = None
    ridge: float | None = None
    kernel_ridge: float | None = None
    scales: tuple[float | None, float | None, float | None] = (None, None, None)


@dataclass(frozen=True)
class LabelReader:
    """Names through labels: zero-shot for an encoder that knows no texts but classes of its own (ConSE).

    The text of an image is the mean of the texts of its `MOST_LABELS` most probable labels, weighed by their
    probabilities (Norouzi et al., Zero-Shot Learning by Convex Combination of Semantic Embeddings, ICLR 2014).

    weight, bias: (L, D), (L,), classifier of L labels over unit features. label_text: unit text features of the labels
    (L, T). text: those of the C classes (C, T). tau: CLIP's scale.
    """

    weight: Tensor
    bias: Tensor
    label_text: Tensor
    text: Tensor
    tau: float

    def logits(self, x: Tensor) -> Tensor:
        """τ times the cosines of the texts of images x (B, D) and of the classes: (B, C)."""
        probabilities = F.linear(x, self.weight.to(x), self.bias.to(x)).softmax(dim=-1)
        best = probabilities.topk(min(MOST_LABELS, probabilities.shape[-1]), dim=-1)
        kept = torch.zeros_like(probabilities).scatter(-1, best.indices, best.values)
        return self.tau * F.normalize(kept @ self.label_text.to(x), dim=-1) @ self.text.to(x).T

    def to(self, device: torch.device) -> LabelReader:
        """Copy it to a device."""
        weight, bias, label_text, text = (t.to(device) for t in (self.weight, self.bias, self.label_text, self.text))
        return LabelReader(weight, bias, label_text, text, self.tau)


@dataclass(frozen=True)
class Experts:
    """The experts on the same N training images, over the features of one encoder.

    tau: CLIP's scale. kernel: None without that expert. reader: zero-shot of an encoder that knows no texts; None: the
    texts of the Gaussian.
    """

    gaussian: TextGaussian
    tau: float
    kernel: KernelRidge | LandmarkRidge | None
    fixed: FixedHyperparameters = field(default_factory=FixedHyperparameters)
    reader: LabelReader | None = None

    @classmethod
    def build(
        cls,
        gaussian: TextGaussian,
        tau: float,
        fixed: FixedHyperparameters,
        *,
        width: float,
        most: int,
        reader: LabelReader | None = None,
    ) -> Experts:
        """Build all three; `most` images for kernel ridge of width w as for `build_kernel_ridge`, 0 leaves it out."""
        return cls(gaussian, tau, build_kernel_ridge(gaussian, width, most) if most else None, fixed, reader)

    @cached_property
    def zero_shot(self) -> Tensor:
        """Zero-shot logits of the training images, (N, C)."""
        return self.text_logits(self.gaussian.x)

    def text_logits(self, x: Tensor) -> Tensor:
        """τ x·t of images x (B, D), or what the reader says: (B, C)."""
        if self.reader is not None:
            return self.reader.logits(x.double())
        return self.tau * x.double() @ self.gaussian.text.T

    @property
    def labels(self) -> Tensor:
        """Class of each image, (N,)."""
        return self.gaussian.labels


def build_kernel_ridge(source: TextGaussian, width: float, most: int) -> KernelRidge | LandmarkRidge:
    """Build kernel ridge of width w over the training images; with more than `most`, over half as many landmarks."""
    x, labels, groups, C = source.x, source.labels, source.groups, len(source.text)
    if len(x) <= most:
        return KernelRidge(x, labels, C, groups, width)
    return LandmarkRidge.with_landmarks(x, labels, C, groups, width, max(most // 2, 1))


def select_hyperparameters(experts: Experts, *, choose: bool = True) -> Hyperparameters:
    """Select the hyperparameters of the head by the training images; choose: False does without leave-one-out."""
    by_votes = choose and experts.gaussian.can_choose
    return _select_by_leave_one_out(experts) if by_votes else _select_by_text(experts)


def text_gain(zero_shot: Tensor, labels: Tensor) -> tuple[float, float]:
    """Share of the uncertainty that zero-shot CLIP removes, and the scale at which it does. logits: (N, C)."""
    weights = class_weights(labels)
    scale = fit_scales(zero_shot[None], labels, weights, smoothing=ONE_SHOT_PULL).values[0]
    uncertainty = math.log(zero_shot.shape[1])
    return max(0.0, 1 - log_loss(scale * zero_shot, labels, weights) / uncertainty), float(scale)


def _select_by_text(experts: Experts) -> Hyperparameters:
    fixed = experts.fixed
    gain, scale = text_gain(experts.zero_shot, experts.labels)
    k = 2 * gain if fixed.text_shots is None else fixed.text_shots
    g = ONE_SHOT_RIDGE if fixed.ridge is None else fixed.ridge
    length = experts.gaussian.whiten(g).mean_length(k)
    own = ONE_SHOT_SCALE * math.log(len(experts.gaussian.text)) / max(length, 1e-6) ** 2
    defaults = (own, ONE_SHOT_TEXT * scale, 0.0)
    a, b, c = (default if value is None else value for value, default in zip(fixed.scales, defaults, strict=True))
    return Hyperparameters(k, g, gaussian=a, text=b, kernel=c, kernel_ridge=fixed.kernel_ridge or 1.0)


class _ScaleFitter:
    """Fits scales on the images that vote, among the classes that do.

    A class none of whose images can be left out would only ever be a wrong answer, and be chosen against.
    """

    def __init__(self, experts: Experts) -> None:
        self.rows = experts.gaussian.voters
        self.classes, self.labels = torch.unique(experts.labels[self.rows], return_inverse=True)
        self.weights = class_weights(self.labels)
        self.smoothing = 1 / (len(experts.labels) + 2)  # as Platt's targets: N right answers do not prove certainty

    def fit_best(self, scores: Sequence[Tensor], fixed: Sequence[float | None]) -> tuple[int, Tensor, float]:
        """The first candidate of least loss, its scales (E,) and the loss; candidates have scores (E, n, C)."""
        values, losses = list[Tensor](), list[Tensor]()
        size = max(MAX_SCORES // max(scores[0].numel(), 1), 1)
        for first in range(0, len(scores), size):
            batch = torch.stack([one[..., self.classes] for one in scores[first : first + size]])
            found = fit_scales_each(batch, self.labels, self.weights, smoothing=self.smoothing, fixed=fixed)
            values.append(found[0])
            losses.append(found[1])
        every = torch.cat(losses)
        best = int((every <= every.min() + 1e-12).double().argmax())
        return best, torch.cat(values)[best], float(every[best])


def _select_by_leave_one_out(experts: Experts) -> Hyperparameters:
    """Of equal candidates the one with the larger ridge, then the larger k."""
    fixed, fitter = experts.fixed, _ScaleFitter(experts)
    zero_shot = experts.zero_shot[fitter.rows]
    ridges = sorted(RIDGES if fixed.ridge is None else (fixed.ridge,), reverse=True)
    shots = sorted(TEXT_SHOTS if fixed.text_shots is None else (fixed.text_shots,), reverse=True)
    g, k, held, scales, loss = 0.0, 0.0, zero_shot, None, math.inf
    for ridge in ridges:
        model = experts.gaussian.whiten(ridge)
        candidates = [torch.stack([model.voters_held_out(value), zero_shot]) for value in shots]
        place, values, found = fitter.fit_best(candidates, fixed.scales[:2])
        if found < loss - 1e-12:
            g, k, held, scales, loss = ridge, shots[place], candidates[place][0], values, found
    assert scales is not None
    a, b, c = [*scales.tolist(), 0.0]
    rho = fixed.kernel_ridge or 1.0
    if experts.kernel is not None and fixed.scales[2] != 0:
        rhos = sorted(KERNEL_RIDGES if fixed.kernel_ridge is None else (fixed.kernel_ridge,), reverse=True)
        candidates = [torch.stack([held, zero_shot, experts.kernel.held_out(rho, fitter.rows)]) for rho in rhos]
        place, scales, _ = fitter.fit_best(candidates, fixed.scales)
        rho, (a, b, c) = rhos[place], scales.tolist()
    return Hyperparameters(k, g, a, b, c, rho)


def held_out_logits(
    experts: Experts, selected: Hyperparameters, *, corrected: bool = True, fixed_shares: bool = False
) -> Tensor:
    """Logits (N, C) of every image by the model without it and its copies; NaN where it cannot be left out."""
    if not experts.gaussian.can_hold_out:
        return torch.full_like(experts.zero_shot, torch.nan)
    model = experts.gaussian.whiten(selected.ridge)
    scores, _ = model.held_out(selected.text_shots, corrected=corrected, fixed_shares=fixed_shares)
    logits = selected.gaussian * scores + selected.text * experts.zero_shot
    if experts.kernel is not None and selected.kernel > 0:
        logits = logits + selected.kernel * experts.kernel.held_out(selected.kernel_ridge)
    return torch.where(experts.gaussian.peers[:, None], logits, torch.nan)


@dataclass(frozen=True)
class ExpertPool:
    """The experts over each of E encoders, of the same N training images.

    The product of E closed forms, each with its own hyperparameters and a weight w_e >= 0,

        z = Σ_e w_e z_e,

    where the weights have the least log-loss on held-out images, like the scales of the experts in each: a convex
    problem in E numbers. They are part of the hyperparameters, as factors of the scales. With one encoder there is
    nothing to weigh.

    Where nothing can be left out, the z_e are calibrated each for itself, and zero-shot of each encoder, which has not
    seen the images, says how well it knows what is in them (`weigh_by_zero_shot`).

    parts: one for each encoder; their images, labels and copies are the same.
    """

    parts: tuple[Experts, ...]

    @property
    def labels(self) -> Tensor:
        """Class of each image, (N,)."""
        return self.parts[0].labels

    @property
    def source(self) -> TextGaussian:
        """Labels, copies and counts, which all parts share."""
        return self.parts[0].gaussian

    @cached_property
    def sizes(self) -> list[int]:
        """Length of the features of each encoder."""
        return [part.gaussian.x.shape[1] for part in self.parts]

    def split(self, features: Tensor) -> list[Tensor]:
        """Features (B, D) of a pool as unit features (B, D_e) of each encoder."""
        return split_features(features, self.sizes)

    @property
    def held_out_scores(self) -> int:
        """Number of held-out scores, N C E, which bounds the time of what is done again and again."""
        return len(self.labels) * len(self.source.text) * len(self.parts)

    def select(self, *, choose: bool = True) -> tuple[Hyperparameters, ...]:
        """Select the hyperparameters of all parts by the training images; choose: as for `select_hyperparameters`."""
        selected = tuple(select_hyperparameters(part, choose=choose) for part in self.parts)
        if len(selected) == 1 or any(scale is not None for part in self.parts for scale in part.fixed.scales):
            return selected
        by_votes = choose and self.source.can_choose
        weights = self._fit_weights(selected) if by_votes else weigh_by_zero_shot(self.parts)
        return tuple(own.weighted(weight) for own, weight in zip(selected, weights, strict=True))

    def _fit_weights(self, selected: Sequence[Hyperparameters]) -> list[float]:
        fitter = _ScaleFitter(self.parts[0])
        logits = [held_out_logits(*pair)[fitter.rows] for pair in zip(self.parts, selected, strict=True)]
        _, values, _ = fitter.fit_best([torch.stack(logits)], [None] * len(logits))
        weights: list[float] = values.tolist()
        return weights

    def held_out_logits(
        self, selected: Sequence[Hyperparameters], *, corrected: bool = True, fixed_shares: bool = False
    ) -> Tensor:
        """As the function `held_out_logits`, of all parts together: (N, C)."""
        pairs = zip(self.parts, selected, strict=True)
        logits = [held_out_logits(*pair, corrected=corrected, fixed_shares=fixed_shares) for pair in pairs]
        return torch.stack(logits).sum(dim=0)

    def make_head(self, selected: Sequence[Hyperparameters], dtype: torch.dtype = torch.float32) -> PoolHead:
        """The head over features of the pool."""
        pairs = zip(self.parts, selected, strict=True)
        return PoolHead(tuple(ExpertsHead.from_experts(*pair, dtype) for pair in pairs), tuple(self.sizes))

    @property
    def features(self) -> Tensor:
        """Unit features of each encoder, side by side: (N, D)."""
        return torch.cat([part.gaussian.x for part in self.parts], dim=-1)

    def with_groups(self, groups: Tensor) -> ExpertPool:
        """The same experts, with images that share a number (N,), copies among them, leaving together."""
        if len(torch.unique(groups)) == len(torch.unique(self.source.groups)):
            return self
        parts = []
        for part in self.parts:
            kernel = None if part.kernel is None else replace(part.kernel, groups=groups)
            parts.append(replace(part, gaussian=replace(part.gaussian, groups=groups), kernel=kernel))
        return ExpertPool(tuple(parts))

    def take(
        self,
        rows: Tensor,
        fixed: Sequence[FixedHyperparameters] | None = None,
        kernel: Sequence[bool] | None = None,
    ) -> ExpertPool:
        """The experts on some of the images, with these fixed hyperparameters and kernels, as for `take_images`."""
        fixed = [part.fixed for part in self.parts] if fixed is None else fixed
        kernel = [True] * len(self.parts) if kernel is None else kernel
        rules = zip(self.parts, fixed, kernel, strict=True)
        return ExpertPool(tuple(take_images(part, rows, own, kernel=used) for part, own, used in rules))


def split_features(features: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Features (B, D) as unit features (B, D_e) of each encoder; those of one encoder are unit vectors already."""
    if len(sizes) == 1:
        return [features]
    return [F.normalize(part, dim=-1) for part in torch.split(features, list(sizes), dim=-1)]


def weigh_by_zero_shot(parts: Sequence[Experts]) -> list[float]:
    """Weights of encoders where no image can be left out; they sum to one.

    Encoders that know no texts count 1, and those that do, gain / `FULL_GAIN`, at least `LEAST_WEIGHT` and at most 1:
    where texts say nothing about the images, these are not what their encoder knows.
    """
    values = []
    for part in parts:
        reads = part.reader is None and bool(part.gaussian.text.any())
        gain, _ = text_gain(part.zero_shot, part.labels) if reads else (FULL_GAIN, 1.0)
        values.append(min(max(gain / FULL_GAIN, LEAST_WEIGHT), 1.0))
    return [value / sum(values) for value in values]


# Folds of really refitted models, and most values of their scores, N C: above that exact leave-one-out is close.
FOLDS, MAX_REFITTED = 4, 50_000


@dataclass(frozen=True)
class Refits:
    """Predictions for images by models that were fitted again without them, all choices included.

    probabilities: (N, C), the mean over the folds that leave an image out; NaN for images that none leaves out.
    left_out: (K, N), of `stats.folds.assign_folds`.
    """

    probabilities: Tensor
    left_out: NDArray[np.bool_]

    @property
    def folds(self) -> int:
        """Number of models."""
        return len(self.left_out)


def refit_in_folds(pool: ExpertPool, occasions: Tensor) -> Refits:
    """Fit the model on all folds of its training images but one, each in turn, and predict that one.

    occasions: (N,), images that share a number leave together; copies do.

    A model whose hyperparameters are chosen keeps them where taking a fold out leaves classes without a vote that have
    one otherwise, those of two images beside larger ones: a choice among the others would be another choice.
    """
    labels, source, x = pool.labels, pool.source, pool.features
    voting, own = torch.unique(labels[source.voters]), None
    y, groups, order = labels.numpy(), occasions.numpy(), order_by_content(source.x).numpy()
    left_out = assign_folds(y, groups, order, number_of_folds(y, groups, FOLDS))
    total = torch.zeros((len(x), len(source.text)), dtype=x.dtype)
    for out in torch.from_numpy(left_out):
        part = pool.take((~out).nonzero()[:, 0])
        loses_votes = len(torch.unique(part.labels[part.source.voters])) < len(voting)
        if source.can_choose and part.source.can_choose and loses_votes:
            selected = own = pool.select() if own is None else own
        else:
            selected = part.select(choose=source.can_choose)
        total[out] += part.make_head(selected, torch.float64)(x[out])
    return Refits(total / torch.from_numpy(left_out.sum(axis=0))[:, None], left_out)


def order_by_content(x: Tensor) -> Tensor:
    """Places (N,) of images x (N, D) along a random direction, always the same: not a matter of the images' order."""
    direction = torch.randn(x.shape[1], dtype=x.dtype, generator=torch.Generator().manual_seed(0)).to(x.device)
    return (x @ direction).argsort().argsort()


def take_images(experts: Experts, rows: Tensor, fixed: FixedHyperparameters, *, kernel: bool = True) -> Experts:
    """The experts on some of the images, with these fixed hyperparameters; kernel: False leaves kernel ridge out."""
    source, ridge = experts.gaussian, experts.kernel
    _, groups = torch.unique(source.groups[rows], return_inverse=True)
    gaussian = TextGaussian(source.x[rows], source.labels[rows], source.text, groups)
    if ridge is None or not kernel:
        return replace(experts, gaussian=gaussian, kernel=None, fixed=fixed)
    most = 2 * len(ridge.landmarks) if isinstance(ridge, LandmarkRidge) else len(ridge.x)
    return replace(experts, gaussian=gaussian, kernel=build_kernel_ridge(gaussian, ridge.width, most), fixed=fixed)


@dataclass(frozen=True)
class ExpertsHead(Head):
    """Softmax of w_y · f + b_y + Σ_i exp(k_i · f - rate) a_iy + what a reader says of f.

    weight: (C, D). bias: (C,). keys: rate times the training features (N, D). coefficients: (N, C). The last two
    are None without a kernel. reader: None unless the encoder reads names through labels; read: its scale.
    """

    weight: Tensor
    bias: Tensor
    keys: Tensor | None
    coefficients: Tensor | None
    rate: float
    reader: LabelReader | None = None
    read: float = 0.0

    @classmethod
    def from_parameters(
        cls,
        weight: Tensor,
        bias: Tensor,
        kernel: KernelRidge | LandmarkRidge | None = None,
        coefficients: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> ExpertsHead:
        """Convert float64 weight (C, D) and bias (C,), and coefficients (N, C) of a kernel."""
        # What all classes share changes no probability, but would cost digits in float32.
        weight, bias = (weight - weight.mean(dim=0)).to(dtype), (bias - bias.mean()).to(dtype)
        if kernel is None or coefficients is None:
            return cls(weight, bias, None, None, 0.0)
        return cls(weight, bias, (kernel.rate * kernel.keys).to(dtype), coefficients.to(dtype), kernel.rate)

    @classmethod
    def from_experts(
        cls, experts: Experts, selected: Hyperparameters, dtype: torch.dtype = torch.float32
    ) -> ExpertsHead:
        """Combine the three experts with their scales."""
        W, bias = experts.gaussian.whiten(selected.ridge).linear(selected.text_shots)
        W = selected.gaussian * W
        if experts.reader is None:
            W = W + selected.text * experts.tau * experts.gaussian.text
        kernel = experts.kernel if selected.kernel > 0 else None
        coefficients = None if kernel is None else selected.kernel * kernel.coefficients(selected.kernel_ridge)
        head = cls.from_parameters(W, selected.gaussian * bias, kernel, coefficients, dtype)
        if experts.reader is None or not selected.text:
            return head
        return replace(head, reader=experts.reader, read=selected.text)

    def to(self, device: torch.device) -> ExpertsHead:
        """Copy the head to a device."""
        keys, coefficients = (t if t is None else t.to(device) for t in (self.keys, self.coefficients))
        reader = None if self.reader is None else self.reader.to(device)
        weight, bias = self.weight.to(device), self.bias.to(device)
        return ExpertsHead(weight, bias, keys, coefficients, self.rate, reader, self.read)

    def logits(self, f: Tensor) -> Tensor:
        """Inputs of the softmax for image features f (B, D): (B, C)."""
        logits = F.linear(f, self.weight, self.bias)
        if self.reader is not None:
            logits = logits + self.read * self.reader.logits(f)
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


@dataclass(frozen=True)
class PoolHead(Head):
    """Softmax of the sum of the logits of a head for each encoder. sizes: lengths of the encoders' features."""

    heads: tuple[ExpertsHead, ...]
    sizes: tuple[int, ...]

    def to(self, device: torch.device) -> PoolHead:
        """Copy the head to a device."""
        return PoolHead(tuple(head.to(device) for head in self.heads), self.sizes)

    def logits(self, f: Tensor) -> Tensor:
        """Inputs of the softmax for image features f (B, D): (B, C)."""
        pairs = zip(self.heads, split_features(f, self.sizes), strict=True)
        return torch.stack([head.logits(part) for head, part in pairs]).sum(dim=0)

    def __call__(self, f: Tensor) -> Tensor:
        """Image features f (B, D) -> probabilities (B, C)."""
        return self.logits(f).softmax(dim=-1)

    @property
    def values_per_image(self) -> int:
        """Those of the largest head."""
        return max(head.values_per_image for head in self.heads)


# The learning curve needs this many images per class, since a half with fewer says little, and at most so many values
# of scores N C, which bounds its time; and the number of draws of two halves, fewer where these have more answers.
MIN_SHOTS, MAX_CURVE_SCORES, DRAWS, ENOUGH_ANSWERS = 4, 1_000_000, 4, 2000


def learning_curve(
    pool: ExpertPool, selected: Sequence[Hyperparameters], occasions: Tensor, accuracy: float
) -> list[CurvePoint]:
    """Accuracy by images per class: with half of the images, with all, and expected with 2 and 4 times as many.

    occasions: (N,), as for `refit_in_folds`. accuracy: that with all images. Empty where there are too few images to
    tell, or so many that it would take long.
    """
    labels, groups = pool.labels.cpu(), pool.source.groups.cpu()
    different = torch.unique(torch.stack([labels, groups]), dim=1)[0]  # copies count as one image
    shots = len(different) / max(len(torch.unique(labels)), 1)
    if shots < MIN_SHOTS or not pool.source.can_hold_out or pool.held_out_scores > MAX_CURVE_SCORES:
        return []
    halves = _half_accuracies(pool, selected, occasions)
    if not halves:
        return []
    C, half = len(torch.unique(labels)), sum(halves) / len(halves)
    points = [CurvePoint(shots / 2, half), CurvePoint(shots, accuracy)]
    images = effective_images(labels, occasions)
    for more in (1, 2):
        expected = expect_with_twice(points[-1].accuracy, points[-2].accuracy, C)
        low, high = held_out_interval(expected, images)
        points.append(CurvePoint(shots * 2**more, expected, expected=True, low=low, high=high))
    return points


def _half_accuracies(pool: ExpertPool, selected: Sequence[Hyperparameters], occasions: Tensor) -> list[float]:
    """Accuracies of models of one half of the images on the other half, each the mean over classes.

    The ridges are kept, so that only k, the scales and weights are selected again. Every draw answers for all images.
    """
    labels, x, found = pool.labels, pool.features, list[float]()
    fixed = [FixedHyperparameters(ridge=own.ridge, kernel_ridge=own.kernel_ridge) for own in selected]
    kernel = [own.kernel > 0 for own in selected]
    for seed in range(min(DRAWS, max(ENOUGH_ANSWERS // len(labels), 1))):
        for rows, others in permutations(_split_in_halves(labels, occasions, seed)):
            part = pool.take(rows, fixed, kernel)
            if not len(rows) or not len(others) or not part.source.can_hold_out:
                continue
            logits = part.make_head(part.select(), torch.float64).logits(x[others])
            right = (logits.argmax(dim=-1) == labels[others]).double()
            found.append(float((right * class_weights(labels[others])).sum()))
    return found


def _split_in_halves(labels: Tensor, groups: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Split the images of each class into two halves, those of a group together: indices."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(int(groups.max()) + 1, generator=generator).to(groups.device)[groups]
    first = torch.zeros_like(labels, dtype=torch.bool)
    for c in range(int(labels.max()) + 1):
        own = (labels == c).nonzero()[:, 0]
        own = own[order[own].argsort(stable=True)]
        first[own[: (len(own) + seed % 2) // 2]] = True
    # All follow the first of their group.
    first = first[_first_of_group(groups)[groups]]
    return first.nonzero()[:, 0], (~first).nonzero()[:, 0]


def _first_of_group(groups: Tensor) -> Tensor:
    """Index of the first image of every group number."""
    first = torch.zeros(int(groups.max()) + 1, dtype=torch.int64, device=groups.device)
    backwards = torch.arange(len(groups) - 1, -1, -1, device=groups.device)
    first[groups[backwards]] = backwards
    return first
