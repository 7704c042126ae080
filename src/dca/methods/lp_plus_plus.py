"""LP++: a linear probe with the text in it, whose step sizes follow from the data (Huang et al., CVPR 2024).

Unit features f_i of the training images, n of them, unit text features t_c, and for each class a vector w_c and a
number α_c, which says what the text is worth:

    z_ic = f_i·w_c + α_c f_i·t_c (+ b_c),    p(y | x) = softmax_y(z),    L = 1/n Σ_i CE(p_i, y_i)

L is minimised over all images at once. No rate is chosen: the steps are inverse bounds of the curvature,

    η_w = 4 n / λ_max( Σ_i f_i f_iᵀ ),    η_α = n / ( 4 max_c Σ_i (f_i·t_c)² )

Every iteration is a step of w, with momentum 0.9. After every tenth α takes a step, too. Both start where the
minimum is thought to be: w_c is the sum of the features of its class, and every α_c is 250 times the mean cosine of
an image and its own text. (The mean is one over classes.)

Of 300 iterations the one with the highest accuracy on the validation images counts, of equal ones the last. Without
validation images it is the last of all.

PAPER: this is the authors' code. Its gradient of α is never reset, so that a step of α takes the sum of the gradients
of all iterations so far; `alpha_gradient=last` takes that of the last iteration. The code also has a bias b, which
starts at random values and which the paper does not have; `bias=true` adds one that starts at 0. Steps are in
float64 here, in float16 in the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.encoder import Ability, Encoder
from dca.core.options import option, replace_options
from dca.methods.base import Head, Problem, Support
from dca.methods.shared.class_features import ClassFeatures
from dca.methods.shared.frozen_features import (
    FrozenMethod,
    FrozenOptions,
    accuracy,
    check_shapes,
    crop_option,
    encode_views,
    unit_mean,
)
from dca.methods.shared.heads import LinearHead

AlphaGradient = Literal["sum", "last"]


@dataclass(frozen=True, kw_only=True)
class LPPlusPlusOptions(FrozenOptions):
    """Options of LP++. The training options are not used."""

    views: int = option(1, "augmented views per image, each a sample; 0: the evaluation view", low=0, source="its code")
    crop_low: float = crop_option()
    iterations: int = option(300, "steps of w", low=0, source="its code")
    momentum: float = option(0.9, "momentum of w", low=0, high=1, source="its code")
    alpha_every: int = option(10, "steps of w for each step of α", low=1, source="its code")
    alpha_start: float = option(250.0, "α at the start, in units of the mean cosine", low=0, source="its code")
    alpha_gradient: AlphaGradient = option(
        "sum", "a step of α takes the sum of all gradients so far, or the last one", source="its code"
    )
    bias: bool = option(False, "a bias per class, from 0", source="paper")


@dataclass(frozen=True)
class TextProbe:
    """Training rows f (n, D), their labels (n,) and text features t (C, D), all unit vectors in float64."""

    f: Tensor
    labels: Tensor
    text: Tensor

    def start(self, alpha_start: float) -> tuple[Tensor, Tensor, Tensor]:
        """W (C, D), α (C,) and b (C,) before the first step."""
        grouped = ClassFeatures.group(self.f, self.labels, len(self.text))
        means = grouped.means()
        cosine = (means * self.text).sum(dim=-1).mean()
        bias = self.text.new_zeros(len(self.text))
        return means * grouped.counts[:, None], alpha_start * cosine.expand_as(bias).clone(), bias

    def step_sizes(self) -> tuple[float, float]:
        """η_w and η_α."""
        n, D = self.f.shape
        gram = self.f.T @ self.f if n > D else self.f @ self.f.T  # the same eigenvalues, but for zeros
        largest = torch.linalg.eigvalsh(gram)[-1]
        cosines = (self.f @ self.text.T).square().sum(dim=0).max()
        # Texts that say nothing, such as zeros, leave α as it is.
        return float(4 * n / largest), float(n / (4 * cosines)) if cosines > 0 else 0.0

    def gradients(self, w: Tensor, alpha: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of L: (C, D), (C,) and (C,)."""
        cosines = self.f @ self.text.T
        probabilities = probe_logits(self.f, self.text, w, alpha, b).softmax(dim=-1)
        error = (probabilities - F.one_hot(self.labels, len(w))) / len(self.f)
        return error.T @ self.f, (error * cosines).sum(dim=0), error.sum(dim=0)


def probe_logits(f: Tensor, text: Tensor, w: Tensor, alpha: Tensor, b: Tensor) -> Tensor:
    """Z of unit features f (B, D), text (C, D), w (C, D), alpha (C,) and b (C,): (B, C)."""
    return f @ (w + alpha[:, None] * text).T + b


class LPPlusPlus(FrozenMethod):
    """A linear probe that learns per class what the text is worth, with steps that follow from the data."""

    name = "lp_plus_plus"
    paper = "Huang et al., LP++: A Surprisingly Strong Linear Probe for Few-Shot CLIP, CVPR 2024"
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_FEATURES})
    trains_on = "nothing"  # by the training loop; every step takes all images
    validation = "shots"
    Options = LPPlusPlusOptions
    class_rows = frozenset({"weight", "alpha", "bias", "text_features"})
    results = MappingProxyType({"text_features": torch.float32})
    options: LPPlusPlusOptions
    text_features: Tensor
    _iterations: int  # that `finish` kept

    def __init__(self, encoder: Encoder, problem: Problem, options: LPPlusPlusOptions) -> None:
        super().__init__(encoder, problem, options)
        C, D = len(problem.names), encoder.feature_dim
        self.weight = nn.Parameter(torch.zeros(C, D, device=encoder.device))
        self.alpha = nn.Parameter(torch.zeros(C, device=encoder.device))
        self.bias = nn.Parameter(torch.zeros(C, device=encoder.device)) if options.bias else None

    def finish(self, support: Support) -> None:
        """Take the steps."""
        views = encode_views(support, self.options.views, self.options.crop_low)
        rows = F.normalize(views.flatten(0, 1).double(), dim=-1)
        labels = support.labels.repeat_interleave(views.shape[1])
        self.text_features = unit_mean(self.texts())
        probe = TextProbe(rows, labels, self.text_features.double())
        self._iterations, (weight, alpha, bias) = self._minimize(probe, support.validation)
        with torch.no_grad():
            self.weight.copy_(weight)
            self.alpha.copy_(alpha)
            if self.bias is not None:
                self.bias.copy_(bias)

    def _minimize(self, probe: TextProbe, validation: Support | None) -> tuple[int, tuple[Tensor, Tensor, Tensor]]:
        """The number of iterations that count, and w, α and b after them."""
        options = self.options
        w, alpha, b = probe.start(options.alpha_start)
        rate, alpha_rate = probe.step_sizes()
        speed, bias_speed, slope = torch.zeros_like(w), torch.zeros_like(b), torch.zeros_like(alpha)
        unseen = None if validation is None else self.encode_all(validation).double()
        best, kept = -1.0, (options.iterations, (w, alpha, b))
        for iteration in range(1, options.iterations + 1):
            gradient, alpha_gradient, bias_gradient = probe.gradients(w, alpha, b)
            speed = options.momentum * speed + gradient
            w = w - rate * speed
            if options.bias:
                bias_speed = options.momentum * bias_speed + bias_gradient
                b = b - rate * bias_speed
            slope = slope + alpha_gradient if options.alpha_gradient == "sum" else alpha_gradient
            if iteration % options.alpha_every == 0:
                alpha = alpha - alpha_rate * slope
            score = 0.0
            if unseen is not None and validation is not None:
                score = accuracy(probe_logits(unseen, probe.text, w, alpha, b), validation.labels)
            if score >= best:
                best, kept = score, (iteration, (w, alpha, b))
        return kept

    def options_for_folds(self, options: LPPlusPlusOptions) -> LPPlusPlusOptions:
        """With the iterations of `finish`."""
        return replace_options(options, iterations=self._iterations)

    def make_head(self) -> Head:
        """Softmax of z, with the text in the weights."""
        weight = self.weight.detach() + self.alpha.detach()[:, None] * self.text_features
        return LinearHead(weight, None if self.bias is None else self.bias.detach().clone())

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """One text feature per class."""
        return check_shapes(state, {"text_features": (len(self.problem.names), self.encoder.feature_dim)})


METHOD = LPPlusPlus
