"""Settings among which a fit selects on validation images."""

from __future__ import annotations

from typing import Any

from dca.methods.problem import Problem


class Grid:
    """The part of `TrainedMethod` that selects its settings; a method without a search has one candidate."""

    @classmethod
    def candidates(cls, chosen: Any, problem: Problem) -> list[Any]:
        """The settings that a fit tries, each by a whole training, if there are validation images.

        Args:
            chosen: Options of `choose`.
            problem: Classes, shots and dataset.

        Returns:
            Options, of which the first with the highest `validation_accuracy` is kept.
        """
        return [chosen]

    @property
    def validation_accuracy(self) -> float:
        """Accuracy of the finished model on the validation images; needed where there are several candidates."""
        raise NotImplementedError
