"""What the catalog knows about one public dataset."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Protocol

from dca.data.dataset import Dataset


@dataclass(frozen=True)
class Recipe:
    """The DCA paper's settings for one dataset."""

    alpha: float
    beta: float
    learning_rate: float
    batch_size: int = 32


@dataclass(frozen=True)
class Fault:
    """Something that a folder lacks or has wrong: how much, with examples."""

    what: str
    count: int = 1
    examples: tuple[str, ...] = ()


class Layout(Protocol):
    """How a dataset lies on disk."""

    def recognises(self, folder: Path) -> bool:
        """Whether this folder surely holds the dataset."""

    def build(self, entry: Entry, folder: Path) -> Dataset:
        """Read the folder; images are named, not opened. Raises UserError."""

    def tree(self) -> tuple[str, ...]:
        """What the folder should hold, one line each."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One public dataset: facts about it, and how to read it.

    sizes: official numbers of train, val and test images.
    folder: its usual name under the data root.
    notes: how its split or names differ from what one would expect.
    test_per_class: test images of every class, where that is one number.
    names: whose list of class names it shares; its own if empty.
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
    recipe: Recipe | None = None
    aliases: tuple[str, ...] = ()
    notes: str = ""
    names: str = ""
    test_per_class: int = 0

    def class_list(self) -> tuple[tuple[str, str], ...]:
        """Key (folder, WordNet id, number) and words of every class, in label order."""
        return class_list(self.names or self.name)

    def build(self, folder: Path) -> Dataset:
        """Read the dataset where it lies."""
        return self.layout.build(self, folder)

    def describe(self) -> dict[str, object]:
        """The facts, ready for JSON."""
        facts: dict[str, object] = {key: getattr(self, key) for key in _FACTS}
        facts["sizes"] = dict(zip(("train", "val", "test"), self.sizes, strict=True))
        facts["recipe"] = asdict(self.recipe) if self.recipe else None
        facts["layout"] = list(self.layout.tree())
        return facts


_FACTS = ("name", "title", "folder", "classes", "split", "template", "home", "licence", "citation", "aliases", "notes")


def class_list(name: str) -> tuple[tuple[str, str], ...]:
    """Keys and words of a dataset's classes from the package's own lists; empty if it has none."""
    file = resources.files("dca.data.sources") / "classnames" / f"{name}.txt"
    if not file.is_file():
        return ()
    pairs = (line.split("\t") for line in file.read_text(encoding="utf-8").splitlines() if line)
    return tuple((key, words) for key, words in pairs)
