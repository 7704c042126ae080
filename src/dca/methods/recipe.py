"""How methods are trained: options that all of them share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from dca.core import options
from dca.core.options import opt


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a method is trained; each method's options begin with these."""

    epochs: int | None = opt(None, "passes over the few-shot images", low=0)
    batch_size: int | None = opt(None, "images a step", low=1)
    learning_rate: float | None = opt(None, "rate after warm-up", low=0)
    optimizer: str = opt("sgd", "how gradients become updates", choices=("sgd", "adam", "adamw"), source="CoOp")
    momentum: float = opt(0.9, "of SGD", low=0, high=1, source="CoOp")
    adam_eps: float = opt(1e-8, "of Adam and AdamW", low=0, source="torch")
    weight_decay: float = opt(5e-4, "on every trained tensor", low=0, source="CoOp")
    warmup_epochs: int = opt(1, "first epochs at the warm-up rate", low=0, source="CoOp")
    warmup_rate: float = opt(1e-5, "constant rate of those epochs", low=0, source="CoOp")
    schedule: str = opt("epoch", "cosine falls once an epoch, or every step", choices=("epoch", "step"), source="CoOp")
    final_rate: float = opt(0.0, "where the cosine ends", low=0, source="CoOp")
    augment: bool = opt(True, "random resized crop (0.08, 1) and flip", source="CoOp")

    def __post_init__(self) -> None:
        options.check(self)

    def settled(self, **auto: Any) -> Self:
        """The same, with options that were left open (None) taken from `auto`."""
        return dataclasses.replace(self, **{name: v for name, v in auto.items() if getattr(self, name) is None})
