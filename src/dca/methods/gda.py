"""GDA: Gaussian discriminant analysis beside zero-shot CLIP (Wang et al., ICLR 2024). Nothing is trained.

All views of all training images are unit vectors f_i, n of them; μ_c is the mean of a class and S
the covariance within the classes:

    S = 1 / (n - 1) Σ_i (f_i - μ_{y_i}) (f_i - μ_{y_i})ᵀ
    P = D ((n - 1) S + tr(S) I)⁻¹  =  D / (n - 1) · (S + D / (n - 1) · V I)⁻¹,   V = tr(S) / D
    w_c = P μ_c,    b_c = log 1/C - ½ μ_cᵀ P μ_c
    p(y | x) = softmax_y( τ f·t_y + α (f·w_y + b_y) )

The shrinkage fades by itself as n grows. α is the best of seven powers of ten on the validation
images; where there are none it follows the shots, by the values that the authors' search found:
the scale of P changes with n, and α with it. `shrinkage` exchanges the estimate of the inverse
covariance and keeps the factor D / (n - 1), so that α means the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.core.options import opt
from dca.methods.interface import Support
from dca.methods.shared import gaussian
from dca.methods.shared.frozen import (
    FrozenMethod,
    FrozenOptions,
    accuracy,
    first_best,
    image_views,
    shape_problems,
    unit_mean,
)
from dca.methods.shared.shots import Shots

ALPHAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
# Shots -> α where nothing can be searched: the middle of what the search gave by shots.
ALPHA_BY_SHOTS = {1: 1e-3, 2: 1e-2, 4: 1e-1, 8: 1.0, 16: 10.0}
ESTIMATES = ("gda", "ledoit_wolf", "oas", "convex")


@dataclass(frozen=True, kw_only=True)
class GDAOptions(FrozenOptions):
    """Settings of GDA. It has no epochs: of the training recipe nothing is used."""

    views: int = opt(10, "augmented views an image, each a sample; 0: the evaluation view", low=0, source="paper")
    alpha: float | None = opt(None, "α, weight of the Gaussian part; auto: validation images, or by shots", low=0)
    shrinkage: str = opt("gda", "estimate of the inverse covariance", choices=ESTIMATES, source="paper")
    rho: float = opt(0.1, "ρ of shrinkage=convex", low=1e-6, high=1)


def gaussian_part(features: Tensor, labels: Tensor, classes: int, chosen: GDAOptions) -> tuple[Tensor, Tensor]:
    """W (C, D) and b (C,) of unit features (n, D), in float64."""
    shots = Shots.group(features.double(), labels, classes)
    head = gaussian.Gaussian(chosen.shrinkage, pooling=1.0, rho=chosen.rho)
    W, b = gaussian.linear(shots, head)
    scale = features.shape[1] / max(len(features) - 1, 1)
    return scale * W, scale * b - math.log(classes)


class GDA(FrozenMethod):
    """Gaussian discriminant analysis beside zero-shot CLIP, in closed form."""

    name = "gda"
    paper = "Wang et al., A Hard-to-Beat Baseline for Training-free CLIP-based Adaptation, ICLR 2024"
    trains_on = "nothing"
    habit = "full"
    Options = GDAOptions
    results = MappingProxyType(dict.fromkeys(("text_features", "weight", "bias", "alpha"), torch.float32))
    options: GDAOptions
    text_features: Tensor
    weight: Tensor
    bias: Tensor
    alpha: Tensor

    def finish(self, support: Support) -> None:
        """Statistics of the training images, then α."""
        features = self.from_frozen(image_views(support, self.clip, self.options.views))
        labels = support.labels.repeat_interleave(features.shape[1])
        weight, bias = gaussian_part(features.flatten(0, 1), labels, len(self.problem.names), self.options)
        self.text_features = unit_mean(self.texts())
        self.weight, self.bias = weight.to(features.dtype), bias.to(features.dtype)
        self.alpha = features.new_tensor(self._alpha(support.validation))

    def _alpha(self, validation: Support | None) -> float:
        """The option, the best on validation images, or by shots."""
        if self.options.alpha is not None:
            return self.options.alpha
        if validation is None:
            return ALPHA_BY_SHOTS[max(k for k in ALPHA_BY_SHOTS if k <= max(self.problem.shots, 1))]
        features, labels = self.encode_all(validation), validation.labels
        return first_best(ALPHAS, lambda alpha: accuracy(self._logits(features, alpha), labels))[0]

    def _logits(self, features: Tensor, alpha: float | Tensor) -> Tensor:
        """τ f·t + α (f·w + b): (B, C)."""
        return self.clip.tau * features @ self.text_features.T + alpha * F.linear(features, self.weight, self.bias)

    def classify(self, features: Tensor) -> Tensor:
        """Softmax of text and Gaussian part: (B, C)."""
        return self._logits(features, self.alpha).softmax(dim=-1)

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """One text feature, one weight vector and one bias a class, and one α."""
        C, D = len(self.problem.names), self.clip.config.embed_dim
        shapes = {"text_features": (C, D), "weight": (C, D), "bias": (C,), "alpha": ()}
        return shape_problems({name: (state[name], shape) for name, shape in shapes.items()})


METHOD = GDA
