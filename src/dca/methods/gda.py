"""GDA: Gaussian discriminant analysis beside zero-shot CLIP (Wang et al., ICLR 2024). Nothing is trained.

All views of all training images are unit vectors f_i, n of them; μ_c is the mean of a class and S
the covariance within the classes:

    S = 1 / (n - 1) Σ_i (f_i - μ_{y_i}) (f_i - μ_{y_i})ᵀ
    P = D ((n - 1) S + tr(S) I)⁻¹  =  D / (n - 1) · (S + D / (n - 1) · V I)⁻¹,   V = tr(S) / D
    w_c = P μ_c,    b_c = log 1/C - ½ μ_cᵀ P μ_c
    p(y | x) = softmax_y( τ f·t_y + α (f·w_y + b_y) )

The shrinkage decreases as n grows. α is the best of seven powers of ten on the validation
images; without such images it depends on the shots, with the values that the authors' search found,
since the scale of P changes with n. `shrinkage` selects the estimate of the inverse
covariance and keeps the factor D / (n - 1), so that α has the same scale.

`select=loo` needs no validation images: α has the least log-loss on the training images (evaluation view), each
under the model without it and without its views. That is in closed form (`shared/gaussian.py`), for
shrinkage=gda only. Log-loss, since few images make accuracy coarse; at its best temperature, since α decides the
ranking and the Gaussian part is far too confident at the α that ranks best; and with the distance to the own class as
of a new image, or a class of two would be judged by a mean of one. Images that are alone in their class do not count,
for without them there is no such class; if all are, α is by shots.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from dca.core.errors import UserError
from dca.core.hints import set_option
from dca.core.options import option, replace_options
from dca.methods.base import Head, HeldOutPredictions, Support
from dca.methods.shared import gaussian
from dca.methods.shared.class_features import ClassFeatures
from dca.methods.shared.frozen_features import (
    FrozenMethod,
    FrozenOptions,
    accuracy,
    check_shapes,
    crop_option,
    encode_views,
    first_best,
    log_loss_at_best_scale,
    unit_mean,
)
from dca.methods.shared.gaussian import add_text, held_out_logits, held_out_scores
from dca.methods.shared.heads import LinearHead

ALPHAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
# Shots -> α without validation images: the middle of the values that the search found.
ALPHA_BY_SHOTS = {1: 1e-3, 2: 1e-2, 4: 1e-1, 8: 1.0, 16: 10.0}
Estimate = Literal["gda", "ledoit_wolf", "oas", "convex"]


@dataclass(frozen=True, kw_only=True)
class GDAOptions(FrozenOptions):
    """Options of GDA. The training options are not used."""

    views: int = option(10, "augmented views per image, each a sample; 0: the evaluation view", low=0, source="paper")
    crop_low: float = crop_option()
    alpha: float | None = option(None, "α, weight of the Gaussian part; auto: as `select` says", low=0)
    select: Literal["validation", "loo"] = option(
        "validation",
        "α by accuracy on validation images (by shots without any), or by leave-one-out log-loss on training images",
        source="paper",
    )
    shrinkage: Estimate = option("gda", "estimate of the inverse covariance", source="paper")
    rho: float = option(0.1, "ρ, for shrinkage=convex", low=1e-6, high=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.select == "loo" and self.shrinkage != "gda":
            raise UserError(
                f"select=loo is for shrinkage=gda, not for shrinkage={self.shrinkage}",
                hint=[set_option("shrinkage", "gda"), set_option("select", "validation")],
            )


def gaussian_weights(
    features: Tensor, labels: Tensor, classes: int, options: GDAOptions, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """W (C, D) and b (C,) of unit features (N, D), in float64. weights: samples that each row counts as (N,)."""
    grouped = ClassFeatures.group(features.double(), labels, classes)
    head = gaussian.Gaussian(options.shrinkage, pooling=1.0, rho=options.rho)
    n = float(len(features))
    if weights is not None:
        weights, n = weights[labels.argsort(stable=True)], float(weights.sum())
    W, b = gaussian.linear_weights(grouped, head, weights=weights)
    scale = features.shape[1] / max(n - 1, 1)
    return scale * W, scale * b - math.log(classes)


def gda_head(text: Tensor, weight: Tensor, bias: Tensor, tau: float, alpha: float | Tensor) -> LinearHead:
    """τ f·t + α (f·w + b) as one linear head, of text (C, D), w (C, D) and b (C,), in the type of w."""
    total = tau * text.double() + alpha * weight.double()
    return LinearHead(total.to(weight.dtype), (alpha * bias.double()).to(bias.dtype))


class GDA(FrozenMethod):
    """Gaussian discriminant analysis beside zero-shot CLIP, in closed form."""

    name = "gda"
    paper = "Wang et al., A Hard-to-Beat Baseline for Training-free CLIP-based Adaptation, ICLR 2024"
    trains_on = "nothing"
    validation = "full"
    Options = GDAOptions
    class_rows = frozenset({"text_features", "weight", "bias"})
    results = MappingProxyType(dict.fromkeys(("text_features", "weight", "bias", "alpha"), torch.float32))
    options: GDAOptions
    text_features: Tensor
    weight: Tensor
    bias: Tensor
    alpha: Tensor

    def finish(self, support: Support) -> None:
        """Statistics of the training images, then α."""
        features = self._encode_views(support)
        labels = support.labels.repeat_interleave(features.shape[1])
        weight, bias = gaussian_weights(features.flatten(0, 1), labels, len(self.problem.names), self.options)
        self.text_features = unit_mean(self.texts())
        self.weight, self.bias = weight.to(features.dtype), bias.to(features.dtype)
        self.alpha = features.new_tensor(self._select_alpha(support, features))

    def _encode_views(self, support: Support) -> Tensor:
        """Unit features of the views of each image, (N, V, D)."""
        return self.adapt_features(encode_views(support, self.options.views, self.options.crop_low))

    def _select_alpha(self, support: Support, views: Tensor) -> float:
        """α: the option, the best on validation or held-out images, or by shots. views: (N, V, D)."""
        validation, options = support.validation, self.options
        if options.alpha is not None:
            return options.alpha
        if options.select == "loo" and int(support.labels.bincount().max()) > 1:
            return self._select_alpha_by_leave_one_out(support, views)
        if options.select == "loo" or validation is None:
            return ALPHA_BY_SHOTS[max(k for k in ALPHA_BY_SHOTS if k <= max(self.problem.shots, 1))]
        features, labels = self.encode_all(validation), validation.labels
        return first_best(ALPHAS, lambda alpha: accuracy(self._linear(alpha).logits(features), labels))[0]

    def _select_alpha_by_leave_one_out(self, support: Support, views: Tensor) -> float:
        """The α with the least leave-one-out log-loss at its best temperature. views: (N, V, D)."""
        text, queries, y = self.text_features, self.encode_all(support), support.labels
        scores = held_out_scores(views, y, queries, len(text), corrected=True)
        kept = y.bincount(minlength=len(text))[y] > 1
        scores, queries, y = scores[kept], queries[kept], y[kept]

        def log_likelihood(alpha: float) -> float:
            return -log_loss_at_best_scale(add_text(scores, queries, text, tau=self.encoder.tau, alpha=alpha), y)

        return first_best(ALPHAS, log_likelihood)[0]

    def predict_held_out(self, support: Support) -> HeldOutPredictions | None:
        """Exact leave-one-out at the α of `finish`; folds for near-copies and for the other estimates."""
        y = support.labels
        if self.options.shrinkage != "gda" or len(set(support.groups.tolist())) < len(y):
            return None
        views, text = self._encode_views(support), self.text_features
        probabilities = held_out_logits(
            views, y, self.encode_all(support), text, tau=self.encoder.tau, alpha=float(self.alpha)
        ).softmax(dim=-1)
        probabilities[y.bincount(minlength=len(text))[y] == 1] = torch.nan
        return HeldOutPredictions(probabilities.cpu().numpy(), "leave-one-out")

    def options_for_folds(self, options: GDAOptions) -> GDAOptions:
        """With the α of `finish`."""
        return replace_options(options, alpha=float(self.alpha))

    def _linear(self, alpha: float | Tensor) -> LinearHead:
        """The head with this α."""
        return gda_head(self.text_features, self.weight, self.bias, self.encoder.tau, alpha)

    def make_head(self) -> Head:
        """Softmax of text and Gaussian part."""
        return self._linear(self.alpha)

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """One text feature, one weight vector and one bias per class, and one α."""
        C, D = len(self.problem.names), self.encoder.feature_dim
        shapes = {"text_features": (C, D), "weight": (C, D), "bias": (C,), "alpha": ()}
        return check_shapes(state, shapes)


METHOD = GDA
