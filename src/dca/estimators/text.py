"""Text vectors as an argument: none, one row per class, or one vector per label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional as F

from dca.estimators.base import InputError

Text = ArrayLike | Mapping[Any, ArrayLike] | None


def text_vectors(text: Text, classes: NDArray[Any], D: int) -> Tensor:
    """Unit text vectors (C, D) in float64, in the order of the classes; zero where there is no text."""
    if text is None:
        return torch.zeros(len(classes), D, dtype=torch.float64)
    rows = np.asarray(_by_class(text, classes) if isinstance(text, Mapping) else text, dtype=np.float64)
    if rows.shape != (len(classes), D):
        raise InputError(
            f"text has shape {rows.shape}, but {len(classes)} classes and {D} features need {(len(classes), D)}",
            hint=["give one row per class, in the order of the sorted labels", "give a dictionary: label to vector"],
        )
    if not np.isfinite(rows).all():
        raise InputError("text has values that are NaN or infinite")
    return F.normalize(torch.tensor(rows), dim=-1)


def _by_class(text: Mapping[Any, ArrayLike], classes: NDArray[Any]) -> list[ArrayLike]:
    """The vector of each class."""
    if missing := [label for label in classes.tolist() if label not in text]:
        raise InputError("text has no vector for some labels of y", details=[repr(label) for label in missing])
    return [text[label] for label in classes.tolist()]
