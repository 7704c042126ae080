"""Linear probe: logistic regression on frozen CLIP image features (Radford et al., 2021).

    p(y | x) = softmax_y( W f + b )
    min over W, b of  ½ ‖W‖² + c Σ_i CE(W f_i + b, y_i)

f is the image feature of the encoder, not normalised; no text is used. The problem is
convex and is solved to its minimum by L-BFGS in float64 (no scikit-learn is needed; the tests
compare with it). W is in the span of the features, so the solver works in their N dimensions
where the images are fewer than D.

c is searched as in CoOp's comparison: seven powers of ten on the few-shot validation images, then
eight halvings, on a logarithmic scale, of a window of two decades around the best. Where there are
no validation images, c is the value of CLIP's authors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.clip import CLIP
from dca.core.options import opt
from dca.methods.interface import HeldOut, Problem, Support
from dca.methods.recipe import Recipe
from dca.methods.shared.frozen import FrozenMethod, accuracy, first_best
from dca.methods.shared.heads import Head, LinearHead
from dca.methods.shared.logistic_leave_one_out import leave_one_out, restore_balance

DECADES = (6, 4, 2, 0, -2, -4, -6)
HALVINGS = 8
# Largest entry of the gradient at which a fit stops: during the search, and for the final fit.
ROUGH, FINE = 1e-4, 1e-8

Solution = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class LinearProbeOptions(Recipe):
    """Settings of the linear probe. The training recipe is not used."""

    c: float | None = opt(None, "weight of the data against ½‖W‖²; auto: searched on validation images", low=1e-9)
    default_c: float = opt(0.316, "c where there are no validation images", low=1e-9, source="CLIP")
    features: Literal["raw", "unit"] = opt("raw", "image features of the encoder: raw, or normalised", source="CoOp")
    iterations: int = opt(1000, "most iterations of L-BFGS", low=1, source="CoOp")


def objective(W: Tensor, b: Tensor, features: Tensor, labels: Tensor, c: float) -> Tensor:
    """½ ‖W‖² + c Σ_i CE(W f_i + b, y_i). W: (C, D), b: (C,), features: (N, D), labels: (N,)."""
    return W.square().sum() / 2 + c * F.cross_entropy(features @ W.T + b, labels, reduction="sum")


def solve(
    features: Tensor, labels: Tensor, classes: int, c: float, *, iterations: int, tolerance: float = FINE
) -> Solution:
    """The minimum of `objective`, in float64: W (C, D) and b (C,).

    The objective is divided by c N, so that `tolerance` means the same for every c.
    """
    x = features.double()
    basis = torch.linalg.qr(x.T)[0] if len(x) < x.shape[1] else None
    x = x if basis is None else x @ basis
    W = x.new_zeros(classes, x.shape[1]).requires_grad_()
    b = x.new_zeros(classes).requires_grad_()
    solver = torch.optim.LBFGS(
        [W, b],
        max_iter=iterations,
        tolerance_grad=tolerance,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        solver.zero_grad()
        value = objective(W, b, x, labels, c) / (c * len(x))
        value.backward()  # type: ignore[no-untyped-call]
        return float(value.detach())

    with torch.enable_grad():
        solver.step(closure)  # type: ignore[no-untyped-call]
    found = W.detach() if basis is None else W.detach() @ basis.T
    return found, b.detach()


def best_decade(score: Callable[[float], float]) -> float:
    """The logarithm of c: the better end of the last window; of equal scores the first."""
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
    _found: tuple[float, Tensor, Tensor]  # c, W and b of `finish`, in float64

    def __init__(self, clip: CLIP, problem: Problem, chosen: LinearProbeOptions) -> None:
        super().__init__(clip, problem, chosen)
        C, D = len(problem.names), clip.config.embed_dim
        self.weight = nn.Parameter(torch.zeros(C, D, device=clip.device))
        self.bias = nn.Parameter(torch.zeros(C, device=clip.device))

    def from_frozen(self, features: Tensor) -> Tensor:
        """Image features f (B, D) of the encoder, normalised only with features=unit."""
        return F.normalize(features, dim=-1) if self.options.features == "unit" else features

    def finish(self, support: Support) -> None:
        """Choose c and solve."""
        features, labels = self.encode_all(support), support.labels
        c = self.options.c if self.options.c is not None else self._search(features, labels, support.validation)
        weight, bias = self._fit(features, labels, c)
        self._found = c, weight, bias
        with torch.no_grad():
            self.weight.copy_(weight)
            self.bias.copy_(bias)

    def _fit(self, features: Tensor, labels: Tensor, c: float, tolerance: float = FINE) -> Solution:
        classes, most = len(self.problem.names), self.options.iterations
        return solve(features, labels, classes, c, iterations=most, tolerance=tolerance)

    def _search(self, features: Tensor, labels: Tensor, validation: Support | None) -> float:
        """The best c on the validation images; CLIP's if there are none."""
        if validation is None:
            return self.options.default_c
        unseen, truth = self.encode_all(validation).double(), validation.labels
        known: dict[float, float] = {}

        def score(decade: float) -> float:
            if decade not in known:
                weight, bias = self._fit(features, labels, 10.0**decade, ROUGH)
                known[decade] = accuracy(unseen @ weight.T + bias, truth)
            return known[decade]

        return math.pow(10.0, best_decade(score))

    def held_out(self, support: Support) -> HeldOut | None:
        """Approximate leave-one-out at the c of `finish`; folds for near-copies and for very many weights."""
        if len(set(support.groups.tolist())) < len(support.labels):
            return None
        c, weight, bias = self._found
        logits = leave_one_out(self.encode_all(support), support.labels, weight, bias, c)
        if logits is None:
            return None
        count = torch.bincount(support.labels, minlength=len(weight))[support.labels]
        probabilities = restore_balance(logits, support.labels, count).softmax(dim=-1)
        probabilities[count == 1] = torch.nan
        return HeldOut(probabilities.cpu().numpy(), "approximate leave-one-out")

    def with_name(self, index: int, name: str) -> Self:
        """The same weights: no text is used."""
        names = [name if c == index else old for c, old in enumerate(self.problem.names)]
        return self.with_rows(range(len(names)), names)

    def make_head(self) -> Head:
        """Softmax of W f + b."""
        return LinearHead(self.weight.detach().clone(), self.bias.detach().clone())


METHOD = LinearProbe
