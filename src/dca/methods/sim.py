"""SiM: similarity mapping (Zanella, Fuchs et al., 2025). No class name is read, so that a name may mean nothing.

An image is described by its similarities to K = 1,000 sentences, one for each class of ImageNet, whatever the task
is about. Ridge regression maps them to the labels:

    l = f Pᵀ,   P (K, D): unit text features of "a photo of a {}."
    W = argmin ‖L W - Y‖² + λ ‖W‖²,   L (N, K): the training images, Y (N, C): their labels, one-hot
    s = l W,    p(y | x) = softmax_y( τ s_y )

λ = 0.1. The ranking of the scores s is published; the softmax is ours. Weights W say which ImageNet classes speak for
a class. Nothing is selected on any image.

With P = Q R and z = f Rᵀ the problem has min(K, D) instead of K unknowns and the same solution, W = Q U: L W = Z U
and ‖W‖ = ‖U‖ (`Ridge`). The leave-one-out predictions of ridge regression are exact. At prediction f W' with
W' = Pᵀ W is all that is left, so that a finished model reads no sentence.

**Ridge regression** to one-hot labels (`Ridge`), and its exact leave-one-out predictions:

    min over U of  ‖Z U - Y‖² + λ ‖U‖²,    A = ZᵀZ + λ I,   U = A⁻¹ Zᵀ Y,   H = Z A⁻¹ Zᵀ

The prediction for an image by the model without it is y_i - (y_i - ŷ_i) / (1 - H_ii); images B that leave together
have Y_B - (I - H_BB)⁻¹ (Y_B - Ŷ_B). All computations are in float64.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.encoder import Ability, Encoder
from dca.core.options import option
from dca.datasets.classes import read_class_list
from dca.methods.base import Head, HeldOutPredictions, Problem, Support
from dca.methods.shared.experts import iterate_copies
from dca.methods.shared.frozen_features import FrozenMethod, FrozenOptions, check_shapes, encode_class_texts, unit_mean
from dca.methods.shared.heads import LinearHead

SENTENCE = ("a photo of a {}.",)


@dataclass(frozen=True, kw_only=True)
class SiMOptions(FrozenOptions):
    """Options of SiM. The training options are not used."""

    templates: tuple[str, ...] = option(SENTENCE, "sentences with {} for the name of an ImageNet class", source="paper")
    ridge: float = option(0.1, "λ, weight of ‖W‖²", low=1e-9, source="paper")


def imagenet_names() -> tuple[str, ...]:
    """The 1,000 names of ImageNet's classes."""
    return tuple(name for _, name in read_class_list("imagenet"))


class SiM(FrozenMethod):
    """Ridge regression from similarities to 1,000 ImageNet sentences; reads no class name."""

    name = "sim"
    paper = "Zanella, Fuchs et al., Vocabulary-free few-shot learning for Vision-Language Models, arXiv 2025"
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_FEATURES})
    trains_on = "nothing"  # by the training loop; W is solved for
    Options = SiMOptions
    class_rows = frozenset({"mapping", "weight"})
    # τ Wᵀ P, so that a finished model needs no sentences.
    results = MappingProxyType({"weight": torch.float32})
    options: SiMOptions
    weight: Tensor
    _ridge: Ridge  # of `finish`

    def __init__(self, encoder: Encoder, problem: Problem, options: SiMOptions) -> None:
        super().__init__(encoder, problem, options)
        shape = len(problem.names), len(imagenet_names())
        self.mapping = nn.Parameter(torch.zeros(shape, device=encoder.device))

    def encode_sentences(self) -> Tensor:
        """P, unit text features of the ImageNet names, (K, D)."""
        names = dataclasses.replace(self.problem, names=imagenet_names())
        return unit_mean(encode_class_texts(self.encoder, names, self.options.templates or SENTENCE))

    def finish(self, support: Support) -> None:
        """Solve for W."""
        P = self.encode_sentences().double()
        Q, R = torch.linalg.qr(P)
        z = self.encode_all(support).double() @ R.T
        self._ridge = Ridge(z, support.labels, len(self.problem.names), self.options.ridge)
        W = Q @ self._ridge.coefficients
        with torch.no_grad():
            self.mapping.copy_(W.T)
        self.weight = (self.encoder.tau * W.T @ P).float()

    def predict_held_out(self, support: Support) -> HeldOutPredictions:
        """Exact leave-one-out; near-copies are left out together."""
        labels, groups = support.labels, support.groups
        probabilities = (self.encoder.tau * self._ridge.held_out(groups)).softmax(dim=-1)
        _, member = torch.unique(torch.stack([groups, labels]), dim=1, return_inverse=True)
        probabilities[member.bincount()[member] == labels.bincount()[labels]] = torch.nan
        return HeldOutPredictions(probabilities.cpu().numpy(), "leave-one-out")

    def with_name(self, index: int, name: str) -> Self:
        """The same weights: no class name is read."""
        return self.with_rows(range(len(self.problem.names)), self.names_with(index, name))

    def prompt_features(self) -> None:
        """None: no class name is read."""

    def make_head(self) -> Head:
        """Softmax of τ s."""
        return LinearHead(self.weight.clone())

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """One weight vector per class."""
        expected = len(self.problem.names), self.encoder.feature_dim
        return check_shapes(state, {"weight": expected})


@dataclass(frozen=True)
class Ridge:
    """Rows z (N, D) in float64, labels (N,) of C classes, and λ > 0."""

    z: Tensor
    labels: Tensor
    classes: int
    strength: float

    @cached_property
    def _factor(self) -> Tensor:
        """Cholesky factor of A, (D, D)."""
        D = self.z.shape[1]
        penalty = self.strength * torch.eye(D, dtype=self.z.dtype, device=self.z.device)
        factor: Tensor = torch.linalg.cholesky(self.z.T @ self.z + penalty)
        return factor

    @cached_property
    def targets(self) -> Tensor:
        """Y, one-hot labels (N, C)."""
        return F.one_hot(self.labels, self.classes).to(self.z.dtype)

    @cached_property
    def coefficients(self) -> Tensor:
        """U, (D, C)."""
        return torch.cholesky_solve(self.z.T @ self.targets, self._factor)

    def held_out(self, groups: Tensor) -> Tensor:
        """Predictions (N, C) for every image by the model without it and its copies, which share a number (N,)."""
        residuals = self.targets - self.z @ self.coefficients
        half = torch.linalg.solve_triangular(self._factor, self.z.T, upper=False)  # H is halfᵀ half
        held: Tensor = self.targets - residuals / (1 - half.square().sum(dim=0))[:, None]
        for rows in iterate_copies(groups):
            own = half[:, rows]
            remainder = torch.eye(len(rows), dtype=own.dtype, device=own.device) - own.T @ own
            held[rows] = self.targets[rows] - torch.linalg.solve(remainder, residuals[rows])
        return held


METHOD = SiM
