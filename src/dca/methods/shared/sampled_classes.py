"""Some of very many classes in a training step: an approximation that costs less text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SampledClasses:
    """Classes that compete in one step.

    Attributes:
        places: Their indices, ascending.
        labels: Place in `places` of the class of each image, (B,).
        total: Number of all classes.
    """

    places: list[int]
    labels: Tensor
    total: int

    @classmethod
    def draw(cls, labels: Tensor, total: int, count: int, generator: torch.Generator) -> SampledClasses:
        """The classes of a batch, and others at random up to `count` in all.

        Args:
            labels: Class of each image, (B,).
            total: Number of all classes.
            count: Classes that compete, more if the batch has more.
            generator: Draws the others.

        Returns:
            The classes.
        """
        present = torch.unique(labels).cpu()
        others = torch.ones(total, dtype=torch.bool)
        others[present] = False
        left = others.nonzero().flatten()
        drawn = left[torch.randperm(len(left), generator=generator)[: max(count - len(present), 0)]]
        places = torch.cat([present, drawn]).sort().values
        return cls(places.tolist(), torch.searchsorted(places, labels.cpu()).to(labels.device), total)

    def spread(self, probabilities: Tensor) -> Tensor:
        """Probabilities (B, n) of the classes that compete -> (B, total), zero for the others."""
        whole = probabilities.new_zeros(len(probabilities), self.total)
        whole[:, self.places] = probabilities
        return whole
