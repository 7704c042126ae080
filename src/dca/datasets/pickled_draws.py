"""CoOp's pickled few-shot draws (`split_fewshot/shot_K-seed_S.pkl`), read without executing anything in them.

Such a file is {"train": [Datum, ...], "val": [Datum, ...]}, where a `Datum` of Dassl holds the path of an image, its
label and the name of its class. `dca.core.pickles` says how it is kept from running anything; the only class that is
known is one called `Datum`, of whatever module, and it becomes a plain record of ours.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

from dca.core.errors import UserError
from dca.core.hints import write_draw
from dca.core.pickles import scan_pickle

# ImageNet's 16,000 images take 3 MB.
MAX_BYTES = 64 * 2**20
FIELDS = ("_impath", "_label", "_classname")


class _Datum:
    """What is left of a `Datum`: its fields, as they are in the file."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise pickle.UnpicklingError("a Datum whose fields are no dictionary")
        self.fields = {name: state.get(name) for name in FIELDS}


class _DatumUnpickler(pickle.Unpickler):
    """An unpickler whose only class is `_Datum`."""

    def find_class(self, module: str, name: str) -> Any:
        """`_Datum` for a Datum."""
        if name != "Datum":
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _Datum


def is_pickle(path: Path) -> bool:
    """Whether a file begins as a pickle of protocol 2 or later does, or is named like one."""
    if path.suffix in (".pkl", ".pickle"):
        return True
    try:
        with path.open("rb") as file:
            return file.read(1) == b"\x80"
    except OSError:
        return False


def read_pickled_draw(path: Path) -> dict[str, Any]:
    """Read a pickled draw as plain data.

    Args:
        path: The file.

    Returns:
        {"train": {"data": [{"impath", "classname", "label"}, ...]}, "val": ...}, in the order of the file.

    Raises:
        UserError: If the file cannot be read, or holds anything but such a draw.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).", hint=write_draw()) from error
    try:
        scan_pickle(content, MAX_BYTES)
        found = _DatumUnpickler(io.BytesIO(content)).load()
        if not isinstance(found, dict) or "train" not in found:
            raise ValueError("no dictionary with 'train'")
        return {part: {"data": [_plain(row) for row in _rows(found, part)]} for part in ("train", "val")}
    except Exception as error:  # damaged and hostile pickles raise almost anything
        raise UserError(
            f"{path}: not a draw of CoOp ({error}). Nothing in it was executed.",
            hint=["only numbers, texts, lists, dictionaries and Datum are read from a pickle", write_draw()],
        ) from error


def _rows(found: dict[Any, Any], part: str) -> list[Any]:
    rows = found.get(part, [])
    if not isinstance(rows, list):
        raise ValueError(f"'{part}' is no list")
    return rows


def _plain(row: Any) -> dict[str, Any]:
    """Path, class name and label of a `Datum`, of the right types."""
    if not isinstance(row, _Datum):
        raise ValueError(f"{type(row).__name__} instead of a Datum")
    path, label, name = (row.fields.get(field) for field in FIELDS)
    if type(path) is not str or type(label) is not int or type(name) is not str:
        raise ValueError("a Datum without path, label and class name")
    return {"impath": path.replace("\\", "/"), "classname": name, "label": label}
