"""Copies of images in one folder per predicted class."""

from __future__ import annotations

import filecmp
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from dca.core.errors import UserError
from dca.core.files import replacing, writing

# Characters that a folder's name cannot have on some system, and the path separators of all.
_UNSAFE = re.compile(r'[\x00-\x1f/\\:*?"<>|]')


class ImageFolders:
    """Copies images into FOLDER/LABEL/, never over another file.

    Args:
        folder: Where the folders of the classes are made.
        labels: All labels that images may get.
        taken: Copies that were made before, as paths relative to `folder`.
    """

    def __init__(self, folder: Path, labels: Sequence[str], taken: Iterable[str] = ()) -> None:
        self.folder = folder
        self._names = _folder_names(labels)
        self._taken = set(taken)

    def copy(self, image: Path, label: str) -> str:
        """Copy an image to the folder of its label; returns the path of the copy relative to the folder of all.

        An image of the same name as an earlier one gets a part of its path's hash behind its name. A file that is
        there with the same content is the copy of an interrupted run, and is kept.
        """
        hashed = hashlib.sha256(os.fsencode(image)).hexdigest()[:8]
        with writing(self.folder):
            for name in (image.name, f"{image.stem}-{hashed}{image.suffix}"):
                place = f"{self._names[label]}/{name}"
                target = self.folder / place
                if place in self._taken:
                    continue
                if not target.exists():
                    _copy(image, target)
                elif not filecmp.cmp(image, target, shallow=False):
                    continue
                self._taken.add(place)
                return place
        raise UserError(f"{self.folder / place} exists and is another image", hint="choose another folder to copy to")


def require_outside(folder: Path, sources: Sequence[str]) -> None:
    """Raise if `folder` is inside one of the folders of images, where its copies would be predicted again."""
    place = Path(os.path.realpath(folder))
    for source in sources:
        if os.path.isdir(source) and place.is_relative_to(os.path.realpath(source)):
            raise UserError(
                f"{folder} is inside {source}, so that the copies would be taken for new images",
                hint="choose a folder outside the images",
            )


def _copy(image: Path, target: Path) -> None:
    """Copy a file so that the target is never incomplete; times of the file are kept."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as unfinished:
        shutil.copy2(image, unfinished)


def _folder_names(labels: Sequence[str]) -> dict[str, str]:
    """A name for the folder of each label; labels that give the same one are numbered.

    >>> _folder_names(["cat", "../cat", "a/b", ".", "CAT"])
    {'cat': 'cat', '../cat': '.._cat', 'a/b': 'a_b', '.': '_', 'CAT': 'CAT (2)'}
    """
    found: dict[str, str] = {}
    used: dict[str, int] = {}
    for label in labels:
        # Windows drops dots and spaces at the end, and "." and ".." are no names.
        name = _UNSAFE.sub("_", label).rstrip(". ")[:100] or "_"
        count = used[name.casefold()] = used.get(name.casefold(), 0) + 1
        found[label] = name if count == 1 else f"{name} ({count})"
    return found
