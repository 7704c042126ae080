"""What the catalog knows about one public dataset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dca.data.class_lists import class_list
from dca.data.dataset import Dataset


class Layout(Protocol):
    """How a dataset is arranged on disk."""

    def recognises(self, folder: Path) -> bool:
        """Whether this folder certainly holds the dataset."""

    def build(self, entry: Entry, folder: Path) -> Dataset:
        """Read the folder; images are listed, not opened. Raises UserError."""

    def tree(self) -> tuple[str, ...]:
        """What the folder should hold, one line each."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One public dataset: facts about it, and how to read it.

    Settings that papers use for a dataset belong to the methods, not here.

    classes: number of classes. sizes: official numbers of train, val and test images.
    folder: its usual name under the data root.
    notes: how its split or names differ from what one would expect.
    test_per_class: test images of every class, where that is one number.
    names: name of the dataset whose list of classes it shares; its own if empty.
    aliases: other names that it is found by.
    """

    name: str
    title: str
    folder: str
    layout: Layout
    classes: int
    sizes: tuple[int, int, int]
    split: str
    home: str
    licence: str
    citation: str
    template: str = "a photo of a {}."
    aliases: tuple[str, ...] = ()
    notes: str = ""
    names: str = ""
    test_per_class: int = 0

    def class_list(self) -> tuple[tuple[str, str], ...]:
        """Key (folder, WordNet id, number) and name of every class, in label order."""
        return class_list(self.names or self.name)

    def build(self, folder: Path) -> Dataset:
        """Read the dataset from its folder. Raises UserError."""
        return self.layout.build(self, folder)

    def describe(self) -> dict[str, object]:
        """The facts, ready for JSON."""
        facts: dict[str, object] = {key: getattr(self, key) for key in _FACTS}
        facts["sizes"] = dict(zip(("train", "val", "test"), self.sizes, strict=True))
        facts["layout"] = list(self.layout.tree())
        return facts


_FACTS = ("name", "title", "folder", "classes", "split", "template", "home", "licence", "citation", "aliases", "notes")
