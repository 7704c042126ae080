"""Class names of public datasets, as lists in this package. Methods may read them, too."""

from __future__ import annotations

from importlib import resources


def class_list(name: str) -> tuple[tuple[str, str], ...]:
    """Key and name of every class of a public dataset; empty if there is no list."""
    file = resources.files("dca.data.sources") / "classnames" / f"{name}.txt"
    if not file.is_file():
        return ()
    pairs = (line.split("\t") for line in file.read_text(encoding="utf-8").splitlines() if line)
    return tuple((key, name) for key, name in pairs)
