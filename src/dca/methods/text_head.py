"""Methods that end in one text feature a class, and DCA's distances for them.

They are trained as their papers say; the finished model may still measure as DCA does. That is
how the DCA paper shows that covariances help other methods too ("baseline + d_m").
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor

from dca.methods.base import Method, Recipe, Support, Task
from dca.methods.heads import Head, Shots, gammas, naming_classes, shots_problems, shrinkages
from dca.methods.metric import METRICS
from dca.options import opt


@dataclass(frozen=True, kw_only=True)
class TextHeadOptions(Recipe):
    """A recipe, and how the finished model compares image with text."""

    test_metric: str = opt("cosine", "how the finished model compares image and text", choices=METRICS)
    center: str = opt("text", "what a class's covariance is centred on", choices=("text", "visual"), source="DCA")
    gamma1: float | None = opt(None, "γ1, shrinkage toward the identity; auto: by shots", low=0, source="DCA")
    gamma2: float | None = opt(None, "γ2, shrinkage of the off-diagonal; auto: by shots", low=0, source="DCA")


class TextHead(Method):
    """A method with one unit text feature a class; it adds its parameters, `encode_text` and `step`."""

    results = MappingProxyType(
        {"text_features": torch.float32, "shot_features": torch.float32, "shot_counts": torch.int64}
    )
    options: TextHeadOptions
    text_features: Tensor
    shot_features: Tensor
    shot_counts: Tensor

    @classmethod
    def resolve(cls, chosen: Any, task: Task) -> Any:
        """Settle γ1 and γ2, which depend on the shots."""
        gamma1, gamma2 = gammas(task.shots)
        return chosen.settled(gamma1=gamma1, gamma2=gamma2)

    @abstractmethod
    def encode_text(self) -> Tensor:
        """Unit text features (C, D)."""

    def finish(self, support: Support) -> None:
        """Text features and, for covariances, the training images as the finished model sees them."""
        C, text = len(self.task.classes), self.encode_text().detach()
        shots = Shots(text.new_zeros(C, 0, text.shape[-1]), torch.zeros(C, dtype=torch.int64, device=text.device))
        if self.options.test_metric == "mahalanobis":
            shots = Shots.group(self.encode_all(support), support.labels, C)
        self.text_features, self.shot_features, self.shot_counts = text, shots.features, shots.counts
        with naming_classes(self.task.classes):
            self.classify(text[:1])

    def retarget(self, task: Task, sources: Sequence[int | None]) -> Self:
        """Text features of the new names; covariances by class, or Euclidean distances where one is missing."""
        other = self.moved(task, sources)
        other.text_features = other.encode_text().detach()
        other.shot_features, other.shot_counts = self.shot_features[:0], self.shot_counts[:0]
        if self.options.test_metric == "mahalanobis":
            shots = Shots(self.shot_features, self.shot_counts).carried(sources)
            if shots is None:
                other.options = dataclasses.replace(self.options, test_metric="euclidean")
            else:
                other.shot_features, other.shot_counts = shots.features, shots.counts
        return other

    def head(self) -> Head:
        """The finished model's head."""
        chosen = self.options
        assert chosen.gamma1 is not None
        assert chosen.gamma2 is not None
        own, pooled = shrinkages(chosen.gamma1, chosen.gamma2, self.task.shots)
        return Head(
            self.text_features[None],
            self.clip.tau,
            chosen.test_metric,
            center=chosen.center,
            shots=Shots(self.shot_features, self.shot_counts),
            shrinkage=own,
            pooled=pooled,
        )

    def classify(self, features: Tensor) -> Tensor:
        """Softmax of τ cos, or of τ / (d + ε) with the chosen distance: (B, C)."""
        return self.head().probabilities(features)

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """One text feature a class; training images where the metric needs them."""
        expected = C, D = len(self.task.classes), self.clip.config.embed_dim
        found = tuple(state["text_features"].shape)
        problems = [] if found == expected else [f"text_features: shape {found}, expected {expected}"]
        if self.options.test_metric == "mahalanobis":
            return problems + shots_problems(state, C, D)
        kept = state["shot_features"].numel() + int(state["shot_counts"].abs().sum())
        return problems + (["shot_features: none expected"] if kept else [])
