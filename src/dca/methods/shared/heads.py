"""Heads: text features and a metric (and class statistics) -> probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dca.methods.shared import gaussian, metric
from dca.methods.shared.gaussian import Gaussian
from dca.methods.shared.metric import Covariance
from dca.methods.shared.shots import Shots

# How many images a head takes at once: bounds memory, not results.
IMAGES = 2048


@dataclass(frozen=True)
class Head:
    """Probabilities of unit image features f under M·C unit text features.

    text: (M, C, D). tau, eps: scale and guard of the distance softmax. The rest is for the
    Mahalanobis metric. shots: the training features. gaussian: how covariances are made of them.
    center: "text" measures a class's spread about its text feature, "visual" about the mean of its
    images. fixed: covariances (C,) to use as they are instead of making them from shots.
    """

    text: Tensor
    tau: float
    metric: str = "cosine"
    score: str = "inverse"
    eps: float = 1e-6
    center: str = "text"
    shots: Shots | None = None
    gaussian: Gaussian | None = None
    fixed: Covariance | None = None

    def logits(self, f: Tensor) -> Tensor:
        """f: (N, D) -> what the softmax takes, (M, N, C)."""
        if self.metric == "cosine":
            return self.tau * (f @ self.text.mT)
        distance = metric.euclidean(f, self.text) if self.metric == "euclidean" else self.mahalanobis(f)
        return metric.scores(distance, self.tau, self.eps, self.score).transpose(-1, -2)

    def probabilities(self, f: Tensor) -> Tensor:
        """Mean over the prompts of each prompt's softmax: (N, D) -> (N, C)."""
        return torch.cat([self.logits(part).softmax(dim=-1).mean(dim=0) for part in torch.split(f, IMAGES)])

    def mahalanobis(self, f: Tensor) -> Tensor:
        """d_m of every image to every class under every prompt: (M, C, N)."""
        if self.fixed is not None:
            return metric.mahalanobis(self.fixed, f, self.text)
        assert self.shots is not None
        assert self.gaussian is not None
        centers = self.text if self.center == "text" else None
        return gaussian.distances(f, self.text, self.shots, self.gaussian, centers)
