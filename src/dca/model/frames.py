"""Data frames that list images: of pandas, polars, or any library with columns and `frame[name]`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dca.core.errors import UserError
from dca.data.sources.table import LABEL_COLUMNS, PATH_COLUMNS


def is_frame(X: Any) -> bool:
    """Whether X is a data frame."""
    return hasattr(X, "columns") and hasattr(X, "__getitem__") and not isinstance(X, np.ndarray | str)


def frame_paths(frame: Any) -> list[Any]:
    """The images of a data frame: the column path, or another usual name of it."""
    return list(frame[_column(frame, PATH_COLUMNS, "image paths")])


def frame_columns(frame: Any, y: Any) -> tuple[list[Any], Iterable[Any]]:
    """Images and labels of a data frame.

    y: labels, the name of the column that has them, or None for the column label, or another usual name of it.
    """
    if y is None:
        y = _column(frame, LABEL_COLUMNS, "labels")
    if isinstance(y, str):
        y = list(frame[_column(frame, (y,), "labels")])
    return frame_paths(frame), y


def _column(frame: Any, names: Sequence[str], what: str) -> Any:
    """The first of these names that is a column, whatever its case."""
    found = {str(column).casefold(): column for column in frame.columns}
    for name in names:
        if name.casefold() in found:
            return found[name.casefold()]
    raise UserError(
        f"the data frame has no column with {what}: its columns are {', '.join(map(str, frame.columns))}",
        hint=f"name the column '{names[0]}', or give lists instead",
    )
