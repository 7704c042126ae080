"""Options of the training recipe, which all methods share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, Self

from dca.core import options
from dca.core.options import opt

OptimizerName = Literal["sgd", "adam", "adamw"]
ScheduleUnit = Literal["epoch", "step"]
LastBatch = Literal["drop", "keep"]
# Smallest share of an image that a random crop covers, unless an option says otherwise.
CROP_LOW = 0.08
# The same for augmented views of methods over frozen features, as in the code of Tip-Adapter and ProLIP.
VIEW_CROP_LOW = 0.5


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The training recipe: options that all methods share. Options of a method are a dataclass derived from it.

    Args:
        epochs: Passes over the training images; None if the method decides.
        batch_size: Images per step; None if the method decides.
        learning_rate: Learning rate after warm-up; None takes it from the gradient.
        optimizer: "sgd", "adam" or "adamw".
        momentum: Momentum of SGD.
        adam_eps: ε of Adam and AdamW.
        weight_decay: Weight decay of every trained tensor.
        warmup_epochs: Epochs of warm-up.
        warmup_rate: Constant learning rate of the warm-up.
        schedule: Whether the cosine schedule advances per "epoch" or per "step".
        final_rate: Learning rate at the end of the cosine schedule.
        augment: Train on random resized crops and flips.
        crop_low: Smallest share of the image in a random crop, in training and in augmented views.
        last_batch: Whether an epoch ends with the images that are too few for a batch ("keep") or leaves them
            out ("drop"), unless they are all there are.

    Raises:
        UserError: If a value is outside its limits; one error lists all of them.

    Example:
        >>> from dca import Recipe
        >>> Recipe(epochs=10).settled(epochs=50, batch_size=32)  # doctest: +ELLIPSIS
        Recipe(epochs=10, batch_size=32, learning_rate=None, ...)
    """

    epochs: int | None = opt(None, "passes over the training images", low=0)
    batch_size: int | None = opt(None, "images per step", low=1)
    learning_rate: float | None = opt(None, "learning rate after warm-up", low=0)
    optimizer: OptimizerName = opt("sgd", "optimiser", source="CoOp")
    momentum: float = opt(0.9, "momentum of SGD", low=0, high=1, source="CoOp")
    adam_eps: float = opt(1e-8, "ε of Adam and AdamW", low=0, source="torch")
    weight_decay: float = opt(5e-4, "weight decay of every trained tensor", low=0, source="CoOp")
    warmup_epochs: int = opt(1, "epochs of warm-up", low=0, source="CoOp")
    warmup_rate: float = opt(1e-5, "constant learning rate of the warm-up", low=0, source="CoOp")
    schedule: ScheduleUnit = opt("epoch", "whether the cosine schedule advances per epoch or per step", source="CoOp")
    final_rate: float = opt(0.0, "learning rate at the end of the cosine schedule", low=0, source="CoOp")
    augment: bool = opt(True, "random resized crops and flips", source="CoOp")
    crop_low: float = opt(
        CROP_LOW, "smallest share of the image in a random crop; the largest is 1", low=0.001, high=1, source="CoOp"
    )
    last_batch: LastBatch = opt(
        "drop", "a short last batch of an epoch; drop: unless it is the only one", source="CoOp"
    )

    def __post_init__(self) -> None:
        options.check(self)

    def settled(self, **auto: Any) -> Self:
        """The same options with values in place of None.

        Args:
            **auto: Values by name, for options that are None.

        Returns:
            The new options; values that were given are kept.
        """
        return dataclasses.replace(self, **{name: v for name, v in auto.items() if getattr(self, name) is None})
