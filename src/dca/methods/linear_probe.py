"""Linear probe: logistic regression on frozen CLIP image features (Radford et al., 2021).

    p(y | x) = softmax_y( W f + b )
    min over W, b of  ½ ‖W‖² + c Σ_i CE(W f_i + b, y_i)

f is the image feature of the encoder, not normalised; no text is used. The problem is convex and is solved to its
minimum by Newton steps (`shared/logistic.py`; no scikit-learn is needed, the tests compare with it).

c is searched as in CoOp's comparison: seven powers of ten on the few-shot validation images, then eight halvings, on
a logarithmic scale, of a window of two decades around the best. What decides is the accuracy of the minimum at each
c, not of a point where a solver stopped before it; of equally good c the first is taken, in the order from large to
small powers, then the left end of a window. Where there are no validation images, c is the value of CLIP's authors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.encoder import Encoder
from dca.core.options import option, replace_options
from dca.methods.base import Head, HeldOutPredictions, Problem, Support, TrainingOptions
from dca.methods.shared.frozen_features import FrozenMethod, accuracy, first_best
from dca.methods.shared.heads import LinearHead
from dca.methods.shared.logistic import Logistic, leave_one_out, restore_balance

DECADES = (6, 4, 2, 0, -2, -4, -6)
HALVINGS = 8
# Accuracy of a solution, relative to its norm: in the search, the first that decides all validation images; at the end.
SEARCH, FINE = (1e-4, 1e-7), 1e-8

Solution = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class LinearProbeOptions(TrainingOptions):
    """Options of the linear probe. The training options are not used."""

    c: float | None = option(None, "weight of the data against ½‖W‖²; auto: searched on validation images", low=1e-9)
    default_c: float = option(0.316, "c without validation images", low=1e-9, source="CLIP")
    features: Literal["raw", "unit"] = option("raw", "image features of the encoder: raw, or normalised", source="CoOp")
    iterations: int = option(1000, "most iterations of the solver", low=1, source="CoOp")


def objective(W: Tensor, b: Tensor, features: Tensor, labels: Tensor, c: float) -> Tensor:
    """½ ‖W‖² + c Σ_i CE(W f_i + b, y_i). W: (C, D), b: (C,), features: (N, D), labels: (N,)."""
    return W.square().sum() / 2 + c * F.cross_entropy(features @ W.T + b, labels, reduction="sum")


def solve(
    features: Tensor,
    labels: Tensor,
    classes: int,
    c: float,
    *,
    iterations: int,
    tolerance: float = FINE,
    weights: Tensor | None = None,
) -> Solution:
    """The minimum of `objective`, in float64: W (C, D) and b (C,), the mean of b zero.

    weights: how many times each image counts, (N,); None: once.
    """
    problem = Logistic(features, labels, classes, weights)
    return problem.to_weights(problem.solve(c, tolerance=tolerance, iterations=iterations))


def margins_exceed(logits: Tensor, margin: Tensor) -> bool:
    """Whether in every row (M, C) the two largest differ by more than `margin` (M,)."""
    first, second = logits.topk(2, dim=-1).values.unbind(dim=-1)
    return bool((first - second > margin).all())


def best_decade(score: Callable[[float], float]) -> float:
    """Search the logarithm of c: the better end of the last window; of equal scores the first."""
    peak, _ = first_best(DECADES, score)
    left, right, best = peak - 1.0, peak + 1.0, float(peak)
    for _ in range(HALVINGS):
        best, _ = first_best((left, right), score)
        middle = (left + right) / 2
        left, right = (left, middle) if best == left else (middle, right)
    return best


class LinearProbe(FrozenMethod):
    """Logistic regression on frozen image features."""

    name = "linear_probe"
    paper = "Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021"
    trains_on = "nothing"  # by the training loop; a convex solver finds the weights
    validation = "few"
    Options = LinearProbeOptions
    class_rows = frozenset({"weight", "bias"})
    options: LinearProbeOptions
    _solution: tuple[float, Tensor, Tensor]  # c, W and b of `finish`, in float64

    def __init__(self, encoder: Encoder, problem: Problem, options: LinearProbeOptions) -> None:
        super().__init__(encoder, problem, options)
        C, D = len(problem.names), encoder.feature_dim
        self.weight = nn.Parameter(torch.zeros(C, D, device=encoder.device))
        self.bias = nn.Parameter(torch.zeros(C, device=encoder.device))

    def adapt_features(self, features: Tensor) -> Tensor:
        """Image features f (B, D) of the encoder, normalised only with features=unit."""
        return F.normalize(features, dim=-1) if self.options.features == "unit" else features

    def finish(self, support: Support) -> None:
        """Select c and solve."""
        problem = Logistic(self.encode_all(support), support.labels, len(self.problem.names))
        c = self.options.c if self.options.c is not None else self._search(problem, support.validation)
        weight, bias = problem.to_weights(problem.solve(c, tolerance=FINE, iterations=self.options.iterations))
        self._solution = c, weight, bias
        with torch.no_grad():
            self.weight.copy_(weight)
            self.bias.copy_(bias)

    def _search(self, problem: Logistic, validation: Support | None) -> float:
        """The best c on the validation images; CLIP's if there are none."""
        if validation is None:
            return self.options.default_c
        unseen, truth = problem.to_coordinates(self.encode_all(validation)), validation.labels
        known: dict[float, float] = {}

        def score(decade: float) -> float:
            if decade not in known:
                known[decade] = accuracy(self._precise_logits(problem, 10.0**decade, unseen), truth)
            return known[decade]

        for decade in sorted(DECADES):  # small c is easy to solve, and each solution is a start for the next
            score(decade)
        return math.pow(10.0, best_decade(score))

    def predict_held_out(self, support: Support) -> HeldOutPredictions | None:
        """Approximate leave-one-out at the c of `finish`; folds for near-copies and for very many weights."""
        if len(set(support.groups.tolist())) < len(support.labels):
            return None
        c, weight, bias = self._solution
        logits = leave_one_out(self.encode_all(support), support.labels, weight, bias, c)
        if logits is None:
            return None
        count = torch.bincount(support.labels, minlength=len(weight))[support.labels]
        probabilities = restore_balance(logits, support.labels, count).softmax(dim=-1)
        probabilities[count == 1] = torch.nan
        return HeldOutPredictions(probabilities.cpu().numpy(), "approximate leave-one-out")

    def options_for_folds(self, options: LinearProbeOptions) -> LinearProbeOptions:
        """With the c of `finish`."""
        return replace_options(options, c=self._solution[0])

    def with_name(self, index: int, name: str) -> Self:
        """The same weights: no text is used."""
        return self.with_rows(range(len(self.problem.names)), self.names_with(index, name))

    def prompt_features(self) -> None:
        """None: no text is used."""

    def _precise_logits(self, problem: Logistic, c: float, unseen: Tensor) -> Tensor:
        """Logits (M, C) for c of validation images (M, R), so near the minimum that no image could change its class."""
        for tolerance in SEARCH:
            A = problem.solve(c, tolerance=tolerance, iterations=self.options.iterations)
            logits = unseen @ A.T
            # W is within `tolerance` of its norm from the minimum; so a difference of two logits is within √2 of that.
            if margins_exceed(logits, 2 * tolerance * A.norm() * unseen.norm(dim=-1)):
                break
        return logits

    def make_head(self) -> Head:
        """Softmax of W f + b."""
        return LinearHead(self.weight.detach().clone(), self.bias.detach().clone())


METHOD = LinearProbe
