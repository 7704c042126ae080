"""Walk through folders of images: which files count as images, and which links are followed.

A link to a folder is followed, so that images may be kept elsewhere. Left out are links that would
bring in the images of other classes: those to a folder above, and those to the folder of another class.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Literal

from dca.core.errors import UserError
from dca.images.decode import FORMATS

IMAGE_SUFFIXES = frozenset(chain.from_iterable(FORMATS.values()))
Kind = Literal["file", "special", "link"]


class LinkFilter:
    """Decides which links the walk through the folder of one class follows: none into another class.

    classes: folders of all classes of one dataset, in all its parts.
    """

    def __init__(self, classes: Sequence[Path] = ()) -> None:
        self._classes = classes

    @cached_property
    def _real(self) -> frozenset[str]:
        return frozenset(os.path.realpath(folder) for folder in self._classes)

    @cached_property
    def _above(self) -> frozenset[str]:
        return frozenset(parent for folder in self._real for parent in _ancestors(folder)[1:])

    def excludes(self, target: str, own: str) -> bool:
        """Whether the walk through `own` must not follow a link to `target`; both are real paths."""
        if target in self._above or target in _ancestors(own)[1:]:
            return True
        return any(folder in self._real and folder != own for folder in _ancestors(target))


def list_images(folder: Path, link_filter: LinkFilter | None = None) -> list[Path]:
    """All images under a folder, also in folders inside it, sorted.

    A file counts as an image by the end of its name. Hidden files, pipes, sockets, devices and links
    that the filter excludes are left out.
    """
    return [file for file in list_files(folder, link_filter) if is_named_image(file)]


def list_files(folder: Path, link_filter: LinkFilter | None = None, kind: Kind = "file") -> list[Path]:
    """Everything of one kind under a folder, sorted; hidden entries are left out.

    kind: "file" (regular files, and broken links, which are errors of the user's), "special" (pipes,
    sockets, devices) or "link" (links to folders that are not followed).
    """
    return sorted(path for path, its_kind in _walk(folder, link_filter or LinkFilter()) if its_kind == kind)


def _walk(folder: Path, link_filter: LinkFilter) -> Iterator[tuple[Path, Kind]]:
    own = os.path.realpath(folder)

    def walk(inner: Path, above: frozenset[str], real: str) -> Iterator[tuple[Path, Kind]]:
        inside = above | {real}
        for entry in scan_folder(inner):
            path, linked = Path(entry.path), entry.is_symlink()
            if is_hidden(entry.name):
                continue
            if not entry.is_dir():
                yield path, "file" if entry.is_file() or not os.path.exists(path) else "special"
                continue
            target = os.path.realpath(path) if linked else os.path.join(real, entry.name)
            if linked and link_filter.excludes(target, own):
                yield path, "link"
            elif target not in inside:  # a link to a folder that is being walked adds nothing
                yield from walk(path, inside, target)

    return walk(folder, frozenset(), own)


def list_class_folders(folder: Path) -> list[Path]:
    """The folders inside a folder, one per class, sorted by name; links to one of the others are left out."""
    subfolders = list_subfolders(folder)
    links, own = {sub for sub in subfolders if sub.is_symlink()}, os.path.realpath(folder)
    real = {os.path.join(own, sub.name) for sub in subfolders if sub not in links}
    return [sub for sub in subfolders if sub not in links or real.isdisjoint(_ancestors(os.path.realpath(sub)))]


def list_subfolders(folder: Path) -> list[Path]:
    """The folders inside a folder, sorted by name; hidden ones and links to the folder or above are left out."""
    above = _ancestors(os.path.realpath(folder))
    entries = [e for e in _folders(folder) if not e.is_symlink() or os.path.realpath(e.path) not in above]
    return sorted((Path(entry.path) for entry in entries), key=lambda path: path.name)


def list_links(folder: Path, but: Sequence[Path]) -> list[Path]:
    """Links to folders directly inside a folder that are not among `but`."""
    return [path for e in _folders(folder) if e.is_symlink() and (path := Path(e.path)) not in but]


def _folders(folder: Path) -> list[os.DirEntry[str]]:
    return [entry for entry in scan_folder(folder) if entry.is_dir() and not is_hidden(entry.name)]


def is_named_image(file: Path) -> bool:
    """Whether the name of a file ends like that of an image."""
    return file.suffix.lower() in IMAGE_SUFFIXES


def is_hidden(name: str) -> bool:
    """Whether a file or folder belongs to the system (.DS_Store, ._cat.jpg, __MACOSX, Thumbs.db)."""
    return name.startswith(".") or name in ("__MACOSX", "Thumbs.db", "desktop.ini")


def scan_folder(folder: Path) -> list[os.DirEntry[str]]:
    """What a folder holds. Raises UserError if it may not be read."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except PermissionError as error:
        raise UserError(f"{folder}: no permission to read this folder.") from error


def _ancestors(path: str) -> list[str]:
    """The path itself and all folders above it."""
    return [path, *map(str, Path(path).parents)]
