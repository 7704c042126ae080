"""Datasets: which images there are, and which of them are used. Independent of models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dca.datasets.dataset import Dataset, LabelledImage
    from dca.datasets.load import load_dataset

__all__ = ["Dataset", "LabelledImage", "load_dataset"]

# Public name -> module that defines it, loaded on first use.
_MODULES = {"Dataset": "dataset", "LabelledImage": "dataset", "load_dataset": "load"}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
