"""Tip-Adapter: a cache of the training images beside zero-shot CLIP (Zhang et al., ECCV 2022). Nothing is trained.

The keys F (N, D) are the features of the training images, averaged over augmented views and then
normalised; the values L (N, C) are their labels, one-hot:

    logits = τ f T + α exp( -β (1 - f Fᵀ) ) L

α and β are searched on the validation images over a grid, β in 200 steps and α in 20, each from 0.1
up to, not including, the end of its range; of equal values the first wins. Where there are no
validation images they keep their starting values.

With `rules` = paper the range and the starting values depend on the dataset, as published, and the
search uses the whole validation split, as the authors' code does (on ImageNet theirs used the test set).
With `strict`, and for datasets that are not in the table, they are the medians of that table, and the
search uses the validation images of the draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.core.options import option, replace_options
from dca.methods.base import CROP_LOW, Head, HeldOutPredictions, Problem, Support, TrainsOn
from dca.methods.shared.frozen_features import (
    FrozenMethod,
    FrozenOptions,
    accuracy,
    check_shapes,
    crop_option,
    encode_views,
    unit_mean,
)
from dca.methods.shared.heads import CacheHead

# Dataset -> (initial α, end of the range of β, end of the range of α).
PAPER_TABLE = {
    "imagenet": (1.17, 7.0, 3.0),
    "caltech101": (3.0, 12.0, 5.0),
    "oxford_pets": (1.17, 7.0, 3.0),
    "stanford_cars": (3.0, 20.0, 10.0),
    "oxford_flowers": (10.0, 50.0, 50.0),
    "food101": (1.17, 10.0, 10.0),
    "fgvc_aircraft": (5.0, 30.0, 30.0),
    "sun397": (1.17, 12.0, 10.0),
    "dtd": (2.0, 13.0, 13.0),
    "eurosat": (2.0, 12.0, 10.0),
    "ucf101": (3.0, 7.0, 3.0),
}
MEDIANS = (2.0, 12.0, 10.0)
BETA_STEPS, ALPHA_STEPS, LOW = 200, 20, 0.1


@dataclass(frozen=True, kw_only=True)
class TipAdapterOptions(FrozenOptions):
    """Options of Tip-Adapter, symbols as in the paper. The training options are not used."""

    rules: Literal["paper", "strict"] | None = option(
        None,
        "range and start of α and β; paper: by dataset; strict: one for all; auto: the rules of the run",
    )
    views: int = option(10, "augmented views averaged in each key; 0: the evaluation view", low=0, source="paper")
    crop_low: float = crop_option()
    alpha: float | None = option(None, "α, weight of the cache; auto: by rules, then searched", low=0)
    beta: float | None = option(None, "β, sharpness of the cache; auto: 1, then searched", low=0)


def search_ranges(problem: Problem, rules: str | None) -> tuple[float, float, float]:
    """Initial α, and the ends of the ranges of β and α."""
    return PAPER_TABLE.get(problem.dataset, MEDIANS) if rules == "paper" else MEDIANS


def search_grid(end: float, steps: int) -> list[float]:
    """Even steps from 0.1 up to, not including, `end`."""
    return [LOW + i * (end - LOW) / steps for i in range(steps)]


def cache_logits(affinity: Tensor, labels: Tensor, classes: int, beta: float | Tensor) -> Tensor:
    """exp(-β (1 - f Fᵀ)) L as sums over the keys of each class: affinity (B, N), labels (N,) -> (B, C)."""
    near = (-beta * (1 - affinity)).exp()
    return near.new_zeros(len(near), classes).index_add(1, labels, near)


def cache_keys(support: Support, views: int, crop_low: float = CROP_LOW) -> Tensor:
    """F: raw features averaged over the views of an image, then normalised. (N, D)."""
    return F.normalize(encode_views(support, views, crop_low).mean(dim=1), dim=-1)


def search_alpha_beta(
    text: Tensor, affinity: Tensor, labels: Tensor, truth: Tensor, alphas: Sequence[float], betas: Sequence[float]
) -> tuple[float, float]:
    """The α and β with the highest accuracy on images with labels `truth` (V,).

    text: (V, C) zero-shot logits. affinity: (V, N). labels: (N,), of the keys.
    """
    best_score, best = -1.0, (alphas[0], betas[0])
    for beta in betas:
        cache = cache_logits(affinity, labels, text.shape[1], beta)
        for alpha in alphas:
            score = accuracy(text + alpha * cache, truth)
            if score > best_score:
                best_score, best = score, (alpha, beta)
    return best


class TipAdapter(FrozenMethod):
    """A cache of training images beside zero-shot CLIP."""

    name = "tip_adapter"
    paper = "Zhang et al., Tip-Adapter: Training-free Adaption of CLIP for Few-shot Classification, ECCV 2022"
    trains_on: ClassVar[TrainsOn] = "nothing"
    validation = "full"
    Options = TipAdapterOptions
    results = MappingProxyType(
        {
            "text_features": torch.float32,
            "keys": torch.float32,
            "key_labels": torch.int64,
            "alpha_beta": torch.float32,
        }
    )
    options: TipAdapterOptions
    text_features: Tensor
    keys: Tensor
    key_labels: Tensor
    alpha_beta: Tensor

    @classmethod
    def resolve(cls, options: Any, problem: Problem) -> Any:
        """The rules of the run."""
        return options.fill_unset(rules=problem.rules)

    def finish(self, support: Support) -> None:
        """Text features and keys, then α and β."""
        self.text_features, self.key_labels = unit_mean(self.texts()), support.labels
        self.keys = cache_keys(support, self.options.views, self.options.crop_low)
        self.alpha_beta = self.keys.new_tensor(self.select_alpha_beta(support.validation))

    def select_alpha_beta(self, validation: Support | None) -> tuple[float, float]:
        """α and β: the options, the best on validation images, or the starting values."""
        first, beta_end, alpha_end = search_ranges(self.problem, self.options.rules)
        alpha, beta = self.options.alpha, self.options.beta
        if validation is None:
            return first if alpha is None else alpha, 1.0 if beta is None else beta
        alphas = search_grid(alpha_end, ALPHA_STEPS) if alpha is None else [alpha]
        betas = search_grid(beta_end, BETA_STEPS) if beta is None else [beta]
        f = self.encode_all(validation)
        text = self.encoder.tau * f @ self.text_features.T
        return search_alpha_beta(text, f @ self.keys.T, self.key_labels, validation.labels, alphas, betas)

    def predict_held_out(self, support: Support) -> HeldOutPredictions | None:
        """Exact leave-one-out at the α and β of `finish`: the keys of an image and of its copies are left out."""
        if self.trains_on != "nothing":
            return None
        (alpha, beta), y, f = self.alpha_beta.double().tolist(), support.labels, self.encode_all(support).double()
        C, copies = len(self.text_features), support.groups[:, None] == support.groups
        near = torch.where(copies, 0.0, (-beta * (1 - f @ self.keys.double().T)).exp())
        cache = near.new_zeros(len(near), C).index_add(1, y, near)
        probabilities = (self.encoder.tau * f @ self.text_features.double().T + alpha * cache).softmax(dim=-1)
        alone = (copies | (y[:, None] != y)).all(dim=1)
        probabilities[alone] = torch.nan
        return HeldOutPredictions(probabilities.cpu().numpy(), "leave-one-out")

    def options_for_folds(self, options: TipAdapterOptions) -> TipAdapterOptions:
        """With the α and β of `finish`."""
        alpha, beta = self.alpha_beta.tolist()
        return replace_options(options, alpha=alpha, beta=beta)

    def make_head(self) -> Head:
        """Softmax of text and cache."""
        alpha, beta = self.alpha_beta.tolist()
        return CacheHead.from_keys(
            self.text_features, self.keys.detach(), self.key_labels, self.encoder.tau, alpha, beta
        )

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """One text feature per class, keys with labels of these classes, α and β."""
        C, D = len(self.problem.names), self.encoder.feature_dim
        N = max(len(state["key_labels"]), C) if state["key_labels"].dim() else C
        shapes = {"text_features": (C, D), "keys": (N, D), "key_labels": (N,), "alpha_beta": (2,)}
        problems = check_shapes(state, shapes)
        if not problems and not 0 <= int(state["key_labels"].min()) <= int(state["key_labels"].max()) < C:
            problems.append(f"key_labels: numbers from 0 to {C - 1} expected")
        return problems


METHOD = TipAdapter
