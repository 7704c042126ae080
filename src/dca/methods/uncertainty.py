"""What a finished method knows about its own errors, from training images that were left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from dca.methods.problem import HeldOut, Support


@dataclass(frozen=True)
class CurvePoint:
    """Accuracy with a number of training images.

    shots: images per class. accuracy: a fraction. expected: whether it is extrapolated rather than measured.
    """

    shots: float
    accuracy: float
    expected: bool = False


class Uncertainty:
    """The part of `Method` that says how often and where it errs; every function is optional."""

    estimates_itself: ClassVar[bool] = False
    calibrated: ClassVar[bool] = False

    def held_out(self, support: Support) -> HeldOut | None:
        """Predictions for the training images by models that have not seen them; called after `finish`.

        Args:
            support: The training images of `finish`.

        Returns:
            The predictions, without the temperature; None if the engine should cross-validate.
        """
        return None

    def settled(self, chosen: Any) -> Any:
        """Options for cross-validation: what was searched on validation images keeps the value that was found.

        A search in every fold would find other values, and probabilities on other scales.

        Args:
            chosen: The options of the fit.

        Returns:
            The options of the folds.
        """
        return chosen

    def p_values(self, features: Tensor) -> Tensor | None:
        """How usual images are among the training images; small for images of none of the classes.

        Args:
            features: Image features (B, D) of `encode`.

        Returns:
            p-values (B,), or None if the method has none of its own.
        """
        return None

    def prediction_sets(self, features: Tensor, coverage: float) -> Tensor | None:
        """Sets of classes that contain the right one with a stated probability.

        Args:
            features: Image features (B, D) of `encode`.
            coverage: 1 - α.

        Returns:
            Whether a class is in the set of an image, (B, C), or None if the method has none of its own.
        """
        return None

    def expected_gain(self) -> tuple[int, float] | None:
        """What more training images would bring.

        Returns:
            Images per class, and the expected change of the accuracy with so many; None if the method cannot tell.
        """
        return None

    def learning_curve(self) -> list[CurvePoint]:
        """Accuracy by number of training images, on images that were left out.

        Returns:
            Points in the order of their number of images; empty if the method cannot tell.
        """
        return []

    def notes(self) -> list[str]:
        """What the user should know about this fit, in full sentences.

        Returns:
            One text per note; usually none.
        """
        return []
