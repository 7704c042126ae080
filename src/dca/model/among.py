"""Which of a model's classes compete when it is measured: all of them, or only those of the data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from dca.core.errors import UserError, unknown_name
from dca.data.dataset import Dataset
from dca.methods.interface import Method
from dca.model.inputs import Matched

Among = Literal["all", "target"]


def competing(matched: Matched, dataset: Dataset, method: Method, among: str | None) -> list[int] | None:
    """The model's classes that compete, in the order of the data; None for all.

    among: "all", "target", or None: the data's own classes for another public dataset than the model's whose
    classes are known by WordNet id (ImageNet-A, ImageNet-R), as in the domain-shift protocol; otherwise all.
    """
    if among is not None and among not in get_args(Among):
        raise unknown_name("choice of classes", among, get_args(Among))
    if among is None:
        shifted = matched.by_id and dataset.public not in ("", method.problem.dataset)
        among = "target" if shifted else "all"
    if among == "all" or len(matched.classes) == len(method.problem.names):
        return None
    if len(matched.classes) < 2:
        raise UserError("the data have one class: among it alone every prediction is right", hint="let all compete")
    return list(matched.classes)


@torch.no_grad()
def narrowed(method: Method, classes: Sequence[int], dataset: Dataset) -> Method | None:
    """The finished method for these of its classes; None if its probabilities have to be narrowed instead."""
    if type(method).retarget is Method.retarget:
        return None
    names: dict[str, Any] = {"names": tuple(method.problem.names[c] for c in classes)}
    if dataset.public:
        names |= {"dataset": dataset.public, "template": dataset.template}
    return method.retarget(dataclasses.replace(method.problem, **names), list(classes))


def columns(probs: NDArray[np.float64], classes: Sequence[int]) -> NDArray[np.float64]:
    """Probabilities (N, C) given that the class is one of `classes`: (N, c). Exact for a single softmax."""
    kept: NDArray[np.float64] = probs[:, list(classes)]
    total = kept.sum(axis=1, keepdims=True)
    return np.where(total > 0, kept / np.where(total > 0, total, 1), 1 / len(classes))
