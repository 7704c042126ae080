"""Shared by methods whose head is made of class names alone: p(y | x) = softmax_y( τ f·t_y )."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Self

import torch
from torch import Tensor

from dca.methods.interface import Method, Problem, Support
from dca.methods.shared.frozen import shape_problems
from dca.methods.shared.heads import Head, LinearHead


class NameHeadMethod(Method):
    """A method that stores one unit text feature per class; `finish` makes them and needs no image."""

    results = MappingProxyType({"text_features": torch.float32})
    text_features: Tensor

    def finish(self, support: Support | None = None) -> None:
        """Make `text_features`, (C, D)."""
        raise NotImplementedError

    def retarget(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """The same sentences for other names."""
        other = self.copy_for(problem, sources)
        other.finish()
        return other.seal()

    def prompt_features(self) -> Tensor | None:
        """One per class."""
        return self.text_features[None]

    def make_head(self) -> Head:
        """Softmax of τ cos."""
        return LinearHead.cosine(self.text_features, self.clip.tau)

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """One text feature per class."""
        expected = (len(self.problem.names), self.clip.config.embed_dim)
        return shape_problems({"text_features": (state["text_features"], expected)})
