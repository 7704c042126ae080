"""Linear heads: nearest mean, Gaussian discriminant analysis, and the linear probe."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dca.estimators.base import FeatureHead, InputError
from dca.estimators.text import Text, text_vectors
from dca.methods.gda import Estimate, GDAOptions, gaussian_part, gda_head
from dca.methods.linear_probe import solve
from dca.methods.shared import gaussian
from dca.methods.shared.heads import LinearHead
from dca.methods.shared.shots import Shots


class NearestMeanHead(FeatureHead):
    """The class with the nearest mean of unit features.

    Args:
        metric: "cosine" to means of unit length, or "euclidean" distance to the means as they are.
        tau: Scale of the logits; it changes no prediction.

    Example:
        >>> from dca.estimators import NearestMeanHead
        >>> NearestMeanHead().fit([[1, 0], [0, 1]], ["right", "up"]).predict([[0.9, 0.2]]).tolist()
        ['right']
    """

    def __init__(self, *, metric: Literal["cosine", "euclidean"] = "cosine", tau: float = 100.0) -> None:
        self.metric = metric
        self.tau = tau

    def _make_head(self, features: Tensor, labels: Tensor) -> LinearHead:
        if self.metric not in ("cosine", "euclidean"):
            raise InputError(f"metric is {self.metric!r}", hint="'cosine' or 'euclidean'")
        shots = Shots.group(features, labels, len(self.classes_))
        W, b = gaussian.linear(shots, gaussian.Gaussian("identity", unit_means=self.metric == "cosine"))
        return LinearHead(self.tau * W, self.tau * b)


class GDAHead(FeatureHead):
    """Gaussian discriminant analysis beside zero-shot text: the head of the method `gda`.

    Args:
        text: Text vectors (C, D) in the order of the sorted labels, or a dictionary from label to vector. None: images
            alone.
        tau: Scale of text, `CLIP.tau` of the backbone.
        alpha: α, weight of the Gaussian part beside text; without text it changes no prediction.
        shrinkage: Estimate of the inverse covariance: "gda", "ledoit_wolf", "oas" or "convex".
        rho: ρ, for shrinkage="convex".

    Example:
        >>> from dca.estimators import GDAHead
        >>> GDAHead().fit([[1, 0], [2, 0.1], [0, 1], [0.1, 3]], [0, 0, 1, 1]).predict([[0.2, 0.9]]).tolist()
        [1]
    """

    def __init__(
        self,
        text: Text = None,
        *,
        tau: float = 100.0,
        alpha: float = 1.0,
        shrinkage: Estimate = "gda",
        rho: float = 0.1,
    ) -> None:
        self.text = text
        self.tau = tau
        self.alpha = alpha
        self.shrinkage = shrinkage
        self.rho = rho

    def _make_head(self, features: Tensor, labels: Tensor) -> LinearHead:
        chosen = GDAOptions(shrinkage=self.shrinkage, rho=self.rho)
        W, b = gaussian_part(features, labels, len(self.classes_), chosen)
        return gda_head(text_vectors(self.text, self.classes_, features.shape[1]), W, b, self.tau, self.alpha)


class LinearProbeHead(FeatureHead):
    """Logistic regression, solved to its minimum: the head of the method `linear_probe`.

    Args:
        c: Weight of the data against ½‖W‖².
        features: "raw" as they are, or "unit".
        iterations: Most iterations of the solver.

    Example:
        >>> from dca.estimators import LinearProbeHead
        >>> LinearProbeHead(c=10.0).fit([[1, 0], [0, 1]], ["right", "up"]).predict([[0.9, 0.2]]).tolist()
        ['right']
    """

    def __init__(self, *, c: float = 0.316, features: Literal["raw", "unit"] = "raw", iterations: int = 1000) -> None:
        self.c = c
        self.features = features
        self.iterations = iterations

    def _make_head(self, features: Tensor, labels: Tensor) -> LinearHead:
        return LinearHead(*solve(features, labels, len(self.classes_), self.c, iterations=self.iterations))

    def _prepared(self, X: NDArray[np.float64]) -> Tensor:
        if self.features not in ("raw", "unit"):
            raise InputError(f"features is {self.features!r}", hint="'raw' or 'unit'")
        return torch.tensor(X) if self.features == "raw" else super()._prepared(X)
