"""Copies and pickles of a classifier, which hold what it learned and never the weights of the backbone."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from dca.model.classifier import Classifier

# What several copies may share: it is never changed.
_SHARED = ("method_", "_session", "backbone")


class Pickles:
    """The part of `Classifier` that `copy`, `pickle` and `joblib` use.

    A pickle holds the arguments and, if the classifier is fitted, the files of the saved model; the backbone is
    loaded by its name when it is read.
    """

    def __getstate__(self: Any) -> dict[str, Any]:
        params = self.get_params()
        params["backbone"] = getattr(self.backbone, "source", self.backbone)
        state: dict[str, Any] = {"params": params}
        if hasattr(self, "method_"):
            with tempfile.TemporaryDirectory() as folder:
                self.save_pretrained(Path(folder) / "model")
                state["files"] = {path.name: path.read_bytes() for path in (Path(folder) / "model").iterdir()}
            state["fitted"] = {"classes_": self.classes_, "history_": self.history_}
        return state

    def __setstate__(self: Any, state: dict[str, Any]) -> None:
        self.__init__(**state["params"])
        if "files" in state:
            self.__dict__.update({**_read(type(self), state).__dict__, **self.__dict__, **state["fitted"]})

    def __copy__(self) -> Self:
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        return new

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        new = self.__copy__()
        own = {name: value for name, value in self.__dict__.items() if name not in _SHARED}
        new.__dict__.update(copy.deepcopy(own, memo))
        return new


def _read(kind: type[Classifier], state: dict[str, Any]) -> Classifier:
    """The classifier of the files in a pickle."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in state["files"].items():
            (Path(folder) / name).write_bytes(data)
        params = state["params"]
        return kind.from_pretrained(folder, device=params["device"], precision=params["precision"])
