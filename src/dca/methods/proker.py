"""ProKeR: kernel ridge regression that starts at zero-shot CLIP (Bendou et al., CVPR 2025). Nothing is trained.

Zero-shot CLIP is a function f₀ with one value per class. ProKeR looks for a function near it, in the space of
functions of a kernel κ, that gives the training images their labels:

    f₀(x)_c = x·t_c,    κ(x, x') = exp( -β (1 - x·x') )
    min over f of  Σ_i ‖f(x_i) - y_i‖² + λ ‖f - f₀‖²

All views of all training images are rows x_i, n of them, and y_i are one-hot. With K = κ(x_i, x_j), R = Y - f₀(X):

    A = (K / λ + I)⁻¹ R,    f(x) = f₀(x) + κ(x, ·) A,    p(y | x) = softmax_y( τ f(x)_y )

PAPER: this is the authors' code. (K / λ + I)⁻¹ is λ (K + λ I)⁻¹, so the correction of the minimiser has the factor λ
in it. The factor is needed: cosines of two classes differ by some hundredths, labels by 1. `correction=minimizer`
leaves it out.

β and λ are searched on the validation images over a grid, each value of β with all of λ; of equal accuracies the
first counts. With `rules` = paper the grid depends on the dataset, and the whole validation split is used, as in the
authors' code (on ImageNet theirs used the test set). With `strict`, and for datasets that are not in the table, it is
the grid that most datasets have. Without validation images β and λ are those that the authors chose on ImageNet, by
shots, and use elsewhere in one of their comparisons.

The authors take ten views of each image, so that K has 16,000 rows for 100 classes of 16 images. Where views are more
than `MAX_ROWS`, there is one row per image here, the normalised mean of its views; `rows` decides otherwise.

**Leave-one-out** at fixed β and λ is exact. Let H = (K / λ + I)⁻¹ and let B be the rows of an image and of its copies.
Without them A loses H_·B H_BB⁻¹ A_B, which makes the rows B zero:

    f_-B(x) = f₀(x) + κ(x, ·) (A - H_·B H_BB⁻¹ A_B)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.encoder import Ability
from dca.core.options import option, replace_options
from dca.methods.base import Head, HeldOutPredictions, Problem, Support
from dca.methods.shared.experts import has_peers
from dca.methods.shared.frozen_features import (
    FrozenMethod,
    FrozenOptions,
    accuracy,
    check_shapes,
    crop_option,
    encode_views,
    unit_mean,
)

MAX_ROWS = 2000
# First, last and number of the values of a grid.
Grid = tuple[float, float, int]
# The grids of β and of λ that most datasets have, and those of the others.
COMMON: tuple[Grid, Grid] = ((0.5, 3.0, 20), (0.001, 1.0, 10))
PAPER_TABLE: dict[str, tuple[Grid, Grid]] = {
    "imagenet": ((1.5, 3.0, 10), (0.05, 0.25, 10)),
    "oxford_pets": ((0.01, 5.0, 40), (0.01, 0.3, 20)),
    "stanford_cars": ((0.1, 10.0, 5), (0.01, 1.0, 5)),
    "oxford_flowers": ((0.1, 10.0, 20), (0.001, 10.0, 100)),
    "sun397": ((0.1, 10.0, 20), (0.01, 10.0, 10)),
    "dtd": ((0.1, 10.0, 20), (0.001, 10.0, 100)),
    "eurosat": ((0.5, 3.0, 20), (0.001, 1.0, 100)),
}
# Shots -> β and λ that the authors chose on ImageNet.
BY_SHOTS = {1: (3.0, 0.05), 2: (2.6, 0.05), 4: (1.5, 0.05), 8: (1.66, 0.07), 16: (1.7, 0.1)}
Correction = Literal["code", "minimizer"]


@dataclass(frozen=True, kw_only=True)
class ProKeROptions(FrozenOptions):
    """Options of ProKeR, symbols as in the paper. The training options are not used."""

    rules: Literal["paper", "strict"] | None = option(
        None, "grid of β and λ; paper: by dataset; strict: one for all; auto: the rules of the run"
    )
    views: int = option(10, "augmented views per image; 0: the evaluation view", low=0, source="its code")
    crop_low: float = crop_option()
    rows: Literal["views", "images"] | None = option(
        None, f"rows of the kernel: every view, or the mean view of each image; auto: views, up to {MAX_ROWS:,}"
    )
    beta: float | None = option(None, "β, sharpness of the kernel; auto: searched", low=1e-6)
    ridge: float | None = option(None, "λ, weight of the distance to zero-shot CLIP; auto: searched", low=1e-9)
    correction: Correction = option(
        "code", "code: with the factor λ, as the authors compute it; minimizer: without", source="its code"
    )


@dataclass(frozen=True)
class ProximalRidge:
    """The problem for one β. x: unit rows (n, D). residuals: R (n, C). Both float64."""

    x: Tensor
    residuals: Tensor
    beta: float

    def kernel_values(self, x: Tensor) -> Tensor:
        """κ of unit features x (B, D) and the rows: (B, n)."""
        return (self.beta * (x.double() @ self.x.T - 1)).exp()

    @cached_property
    def kernel(self) -> Tensor:
        """K, (n, n)."""
        return self.kernel_values(self.x)

    def factor(self, ridge: float) -> Tensor:
        """Cholesky factor of K / λ + I, (n, n)."""
        matrix = self.kernel / ridge
        matrix.diagonal().add_(1)
        factor: Tensor = torch.linalg.cholesky(matrix)
        return factor

    def coefficients(self, ridge: float) -> Tensor:
        """A, (n, C)."""
        return torch.cholesky_solve(self.residuals, self.factor(ridge))

    def held_out(self, queries: Tensor, leaving: Sequence[Sequence[Tensor]], ridge: float) -> Tensor:
        """κ(x, ·) A for images that leave with some rows: queries (N, D) -> (N, C).

        leaving: pairs of images that leave together, as indices of queries, and of rows that leave with them.
        """
        inverse = torch.cholesky_inverse(self.factor(ridge))
        A, values = inverse @ self.residuals, self.kernel_values(queries)
        held = values @ A
        for images, rows in leaving:
            own = torch.linalg.solve(inverse[rows[:, None], rows], A[rows])
            held[images] -= values[images] @ inverse[:, rows] @ own
        return held


class ProKeR(FrozenMethod):
    """Kernel ridge regression that starts at zero-shot CLIP."""

    name = "proker"
    paper = "Bendou et al., ProKeR: A Kernel Perspective on Few-Shot Adaptation of Large VLMs, CVPR 2025"
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_FEATURES})
    trains_on = "nothing"
    validation = "full"
    Options = ProKeROptions
    class_rows = frozenset({"text_features", "coefficients"})
    # Coefficients are (C, n), so that a class has rows of its own; β and λ.
    results = MappingProxyType(
        {
            "text_features": torch.float32,
            "keys": torch.float32,
            "coefficients": torch.float64,
            "beta_ridge": torch.float64,
        }
    )
    options: ProKeROptions
    text_features: Tensor
    keys: Tensor
    coefficients: Tensor
    beta_ridge: Tensor

    @classmethod
    def resolve(cls, options: Any, problem: Problem) -> Any:
        """The rules of the run."""
        return options.fill_unset(rules=problem.rules)

    def finish(self, support: Support) -> None:
        """Search β and λ, and solve."""
        self.text_features = unit_mean(self.texts())
        rows, labels, _ = self._rows(support)
        beta, ridge = self._select(rows, labels, support.validation)
        coefficients = self._factor(ridge) * self._problem(rows, labels, beta).coefficients(ridge)
        self.keys, self.coefficients = rows.float(), coefficients.T.contiguous()
        self.beta_ridge = rows.new_tensor((beta, ridge))

    def _rows(self, support: Support) -> tuple[Tensor, Tensor, Tensor]:
        """Rows x (n, D) in float64, their labels (n,) and the images that they belong to (n,)."""
        views = F.normalize(encode_views(support, self.options.views, self.options.crop_low).double(), dim=-1)
        N, V = views.shape[:2]
        images = torch.arange(N, device=views.device)
        if self.options.rows == "images" or (self.options.rows is None and N * V > MAX_ROWS):
            return F.normalize(views.mean(dim=1), dim=-1), support.labels, images
        return views.flatten(0, 1), support.labels.repeat_interleave(V), images.repeat_interleave(V)

    def _problem(self, rows: Tensor, labels: Tensor, beta: float) -> ProximalRidge:
        """The problem of rows (n, D) with labels (n,)."""
        text = self.text_features.double()
        return ProximalRidge(rows, F.one_hot(labels, len(text)).double() - rows @ text.T, beta)

    def _factor(self, ridge: float) -> float:
        """What A is multiplied by."""
        return 1.0 if self.options.correction == "code" else 1 / ridge

    def _select(self, rows: Tensor, labels: Tensor, validation: Support | None) -> tuple[float, float]:
        """β and λ: the options, the best on validation images, or those of ImageNet by shots."""
        fixed = self.options.beta, self.options.ridge
        if validation is None or None not in fixed:
            by_shots = BY_SHOTS[max(k for k in BY_SHOTS if k <= max(self.problem.shots, 1))]
            beta, ridge = (value or default for value, default in zip(fixed, by_shots, strict=True))
            return beta, ridge
        grids = PAPER_TABLE.get(self.problem.dataset, COMMON) if self.options.rules == "paper" else COMMON
        betas, ridges = ([value] if value else grid_values(*grid) for value, grid in zip(fixed, grids, strict=True))
        unseen, truth = self.encode_all(validation).double(), validation.labels
        text = unseen @ self.text_features.double().T
        best_score, best = -1.0, (betas[0], ridges[0])
        for beta in betas:
            problem = self._problem(rows, labels, beta)
            values = problem.kernel_values(unseen)
            for ridge in ridges:
                score = accuracy(text + self._factor(ridge) * (values @ problem.coefficients(ridge)), truth)
                if score > best_score:
                    best_score, best = score, (beta, ridge)
        return best

    def predict_held_out(self, support: Support) -> HeldOutPredictions | None:
        """Exact leave-one-out at the β and λ of `finish`; folds where K is too large to invert."""
        rows, labels, images = self._rows(support)
        if len(rows) > MAX_ROWS:
            return None
        (beta, ridge), queries = self.beta_ridge.tolist(), self.encode_all(support).double()
        groups = support.groups
        leaving = [((groups == g).nonzero()[:, 0], (groups[images] == g).nonzero()[:, 0]) for g in torch.unique(groups)]
        held = self._problem(rows, labels, beta).held_out(queries, leaving, ridge)
        logits = queries @ self.text_features.double().T + self._factor(ridge) * held
        probabilities = (self.encoder.tau * logits).softmax(dim=-1)
        probabilities[~has_peers(support.labels, groups)] = torch.nan
        return HeldOutPredictions(probabilities.cpu().numpy(), "leave-one-out")

    def options_for_folds(self, options: ProKeROptions) -> ProKeROptions:
        """With the β and λ of `finish`."""
        beta, ridge = self.beta_ridge.tolist()
        return replace_options(options, beta=beta, ridge=ridge)

    def make_head(self) -> Head:
        """Softmax of τ f."""
        return ProKeRHead.from_results(
            self.text_features, self.keys, self.coefficients, float(self.beta_ridge[0]), self.encoder.tau
        )

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """One text feature and one coefficient per row for each class, keys, and two numbers."""
        C, D = len(self.problem.names), self.encoder.feature_dim
        n = len(state["keys"])
        shapes = {"text_features": (C, D), "keys": (n, D), "coefficients": (C, n), "beta_ridge": (2,)}
        return check_shapes(state, shapes)


@dataclass(frozen=True)
class ProKeRHead(Head):
    """Softmax of τ f. With k̄ the mean of the rows, κ(x, x_i) = exp(β (x·k̄ - 1)) exp(β x·(x_i - k̄)).

    Where features are close to each other, all κ are nearly equal, and their sum with coefficients of both signs would
    lose digits; so the second factor is taken minus 1.

    text: τ t (C, D). keys: β (x_i - k̄) (n, D). middle: β k̄ (D,). coefficients: τ A (n, C). sums: their sums (C,).
    """

    text: Tensor
    keys: Tensor
    middle: Tensor
    coefficients: Tensor
    sums: Tensor
    beta: float

    @classmethod
    def from_results(cls, text: Tensor, keys: Tensor, coefficients: Tensor, beta: float, tau: float) -> ProKeRHead:
        """From text features (C, D), rows (n, D) and coefficients (C, n) in float64."""
        rows, dtype = keys.double(), keys.dtype
        middle = rows.mean(dim=0)
        # What all classes share changes no probability, but would cost digits.
        text, A = text.double() - text.double().mean(dim=0), coefficients - coefficients.mean(dim=0)
        return cls(
            text=(tau * text).to(dtype),
            keys=(beta * (rows - middle)).to(dtype),
            middle=(beta * middle).to(dtype),
            coefficients=(tau * A.T).to(dtype).contiguous(),
            sums=(tau * A.sum(dim=1)).to(dtype),
            beta=beta,
        )

    def logits(self, f: Tensor) -> Tensor:
        """Inputs of the softmax for image features f (B, D), up to what all classes share: (B, C)."""
        common = (f @ self.middle - self.beta).exp()[:, None]
        correction = torch.expm1(F.linear(f, self.keys)) @ self.coefficients + self.sums
        return F.linear(f, self.text) + common * correction

    def __call__(self, f: Tensor) -> Tensor:
        """Image features f (B, D) -> probabilities (B, C)."""
        return self.logits(f).softmax(dim=-1)

    @property
    def values_per_image(self) -> int:
        """One kernel value per row."""
        return len(self.keys)


def grid_values(first: float, last: float, count: int) -> list[float]:
    """Even steps, both ends included."""
    return [first + i * (last - first) / (count - 1) for i in range(count)]


METHOD = ProKeR
