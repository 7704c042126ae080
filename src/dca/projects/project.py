"""A project: a folder `NAME/<class>/<photo>` that `dca fit` reads, with its model `NAME.dca` beside it.

Nothing else is needed to go on with it: photos may be added, moved and deleted by hand, and `rescan` sees it. The
hidden folder `NAME/.dca` serves the page alone: steps that can be undone, the trash, and hashes of files.
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from bisect import insort
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dca.core.errors import UserError
from dca.core.files import explain_write_errors, read_json, write_bytes, write_json
from dca.core.text import name_fault, normalize_name, pluralize, to_printable
from dca.datasets.corrections import escape_label
from dca.datasets.folder import SPLIT_NAMES, class_link_filter, split_folders
from dca.datasets.walk import is_hidden, is_named_image, list_class_folders, list_images, list_subfolders, scan_folder
from dca.images.decode import ImageRefusedError
from dca.images.hashing import sha256_of
from dca.projects.steps import Journal, Move, Step

PRIVATE, INDEX, CONFIRMED = ".dca", "index.json", "confirmed"
# Changes that can be undone, and bytes of deleted photos that are kept for it.
MOST_STEPS, TRASH_BYTES = 100, 10**9
# Characters of a label, bytes of the name of its folder, and characters of a photo's name without its ending.
LABEL_LENGTH, FOLDER_BYTES, STEM_LENGTH = 80, 200, 60
# Names that Windows gives to devices.
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


@dataclass(frozen=True)
class Photo:
    """A photo of a project. path: relative to the project, with "/". label: its class."""

    path: str
    label: str
    sha256: str
    size: int

    @property
    def key(self) -> str:
        """Its name for clients, who get to know no path: 16 hexadecimal digits."""
        return hashlib.sha256(self.path.encode("utf-8", "surrogateescape")).hexdigest()[:16]

    @property
    def name(self) -> str:
        """Its file name as text."""
        return to_printable(self.path.rpartition("/")[2])


class ProjectError(UserError):
    """A change that the state of a project does not allow. code: which, for programs.

    The codes are those of `dca.serve.errors`.
    """

    def __init__(self, code: str, problem: str, hint: str = "") -> None:
        super().__init__(problem, hint=hint)
        self.code = code


class Project:
    """The photos of a project, and all changes of them.

    Its holder has the lock of the folder (`exclusive_lock`), and calls one method at a time.

    Args:
        root: The folder.
        most_steps, trash_bytes: What is kept to undo.

    Attributes:
        photos: The photos of each class, by label, sorted; classes may be empty.
    """

    def __init__(self, root: Path, *, most_steps: int = MOST_STEPS, trash_bytes: int = TRASH_BYTES) -> None:
        self.root = root
        self.photos: dict[str, tuple[Photo, ...]] = {}
        self._folders: dict[str, str] = {}  # label -> name of its folder
        self._stats: dict[str, tuple[int, int]] = {}  # path -> size and time of the file that was hashed
        self._index: dict[str, list[Any]] = {}  # path -> size, time and hash, as the last holder has left them
        self._private = root / PRIVATE
        self.journal = Journal(root, self._private, most=most_steps, trash_bytes=trash_bytes)
        self._confirmed: set[tuple[str, str]] = set()

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.root.name

    @property
    def model_folder(self) -> Path:
        """Where `dca fit` writes the model of these photos."""
        return self.root.with_name(f"{self.root.name}.dca")

    def open(self) -> None:
        """Complete what a kill has interrupted, and read the folder.

        Raises:
            UserError: If it is divided into train/ and test/, which the page does not edit, or cannot be read.
        """
        if parts := split_folders(self.root):
            first = next(iter(parts.values()))
            raise UserError(f"{self.root} is divided into parts", hint=f"open its training photos instead: {first}")
        self.journal.open()
        with suppress(UserError):  # it only saves time
            stored = read_json(self._private / INDEX)
            self._index = {str(path): row for path, row in stored.items() if isinstance(row, list) and len(row) == 3}
        self.rescan()

    def rescan(self) -> bool:
        """Read the folder again; files whose size and time are unchanged are not. Returns whether anything changed."""
        folders = list_class_folders(self.root)
        link_filter = class_link_filter([self.root])
        known = {photo.path: photo for photo in self.list_photos()}
        found: dict[str, tuple[Photo, ...]] = {}
        names: dict[str, str] = {}
        for folder in folders:
            label = to_printable(folder.name)
            rows = [self._look_at(file, label, known) for file in list_images(folder, link_filter)]
            found[label], names[label] = tuple(row for row in rows if row is not None), folder.name
        changed = found != self.photos
        self.photos, self._folders = found, names
        confirmed = self._read_confirmed()
        changed, self._confirmed = changed or confirmed != self._confirmed, confirmed
        return changed

    def _look_at(self, file: Path, label: str, known: Mapping[str, Photo]) -> Photo | None:
        """The photo in a file; None if it is gone, or too large to be opened."""
        path = file.relative_to(self.root).as_posix()
        try:
            stat = file.stat()
            mark = (stat.st_size, stat.st_mtime_ns)
            earlier, row = known.get(path), self._index.get(path)
            if earlier is not None and self._stats.get(path) == mark:
                return earlier
            sha256 = str(row[2]) if row is not None and tuple(row[:2]) == mark else sha256_of(file)
        except (OSError, UserError, ImageRefusedError):
            return None
        self._stats[path] = mark
        return Photo(path, label, sha256, stat.st_size)

    def save_index(self) -> None:
        """Write the hashes of all files, so that they are not read again the next time."""
        rows = {p.path: [*self._stats[p.path], p.sha256] for p in self.list_photos() if p.path in self._stats}
        with explain_write_errors(self._private):
            self._private.mkdir(exist_ok=True)
        write_json(self._private / INDEX, rows)

    def list_photos(self) -> list[Photo]:
        """All photos, class by class."""
        return [photo for photos in self.photos.values() for photo in photos]

    def find(self, keys: Sequence[str]) -> list[Photo]:
        """The photos with these keys.

        Raises:
            ProjectError: If one is not there (any more).
        """
        by_key = {photo.key: photo for photo in self.list_photos()}
        if any(key not in by_key for key in keys):
            raise ProjectError("photo-unknown", "a photo is not there any more", "look again: it was moved or deleted")
        return [by_key[key] for key in keys]

    def path_of(self, photo: Photo) -> Path:
        """The file of a photo."""
        return self.root / photo.path

    # Changes; each is one step that can be undone.

    def resolve_label(self, text: str) -> str:
        """The label of the class that reads like this, or the text itself for a new one.

        Raises:
            ProjectError: If no class can have it.
        """
        label = " ".join(text.split())
        if fault := label_fault(label):
            raise ProjectError("invalid-label", fault)
        same = {normalize_name(known): known for known in self.photos}
        return same.get(normalize_name(label), label)

    def create_class(self, text: str) -> str:
        """Create an empty class; returns its label."""
        label = self._new_label(text)
        self.journal.make(f"creating the class {label}", [Move(None, label)])
        self.rescan()
        return label

    def rename_class(self, label: str, text: str) -> str:
        """Rename a class; returns its new label."""
        folder = self._folder_of(label)
        new = self._new_label(text, instead_of=label)
        if new != label:
            self.journal.make(f"renaming {label} to {new}", [Move(folder, new)])
            self.rescan()
        return new

    def delete_class(self, label: str) -> None:
        """Delete a class with its photos."""
        folder = self._folder_of(label)
        photos = pluralize(len(self.photos[label]), "photo")
        self.journal.make(f"deleting the class {label} ({photos})", [Move(folder, self.journal.trash_path(folder))])
        self.rescan()

    def merge_class(self, label: str, into: str) -> None:
        """Move all photos of a class into another one, and delete it."""
        folder = self._folder_of(label)
        self._folder_of(into)
        if label == into:
            raise ProjectError("class-exists", "a class cannot be merged with itself", "choose another class")
        moves = [*self._moves_to(self.photos[label], into), Move(folder, self.journal.trash_path(folder))]
        self.journal.make(f"merging {label} into {into}", moves)
        self.rescan()

    def move_photos(self, photos: Sequence[Photo], text: str) -> str:
        """Move photos to a class, which is created if need be; returns its label."""
        label = self.resolve_label(text)
        moving = [photo for photo in photos if photo.label != label]
        made = [] if label in self.photos else [Move(None, label)]
        if moving:
            self.journal.make(
                f"moving {pluralize(len(moving), 'photo')} to {label}", [*made, *self._moves_to(moving, label)]
            )
            self.rescan()
        return label

    def delete_photos(self, photos: Sequence[Photo]) -> None:
        """Delete photos."""
        moves = [Move(p.path, self.journal.trash_path(p.name, ahead=n)) for n, p in enumerate(photos)]
        if moves:
            self.journal.make(f"deleting {pluralize(len(photos), 'photo')}", moves)
            self.rescan()

    def confirm(self, photo: Photo) -> None:
        """Note that the label of a photo is right, however doubtful it looks; it is noted as an empty file."""
        if self.is_confirmed(photo):
            return
        mark = f"{PRIVATE}/{CONFIRMED}/{escape_label(photo.label)}/{photo.sha256}"
        waiting = self.journal.trash_path(photo.sha256)
        with explain_write_errors(self.root / waiting):
            (self.root / waiting).parent.mkdir(parents=True, exist_ok=True)
            (self.root / waiting).touch()
        self.journal.make(f"confirming that a photo is {photo.label}", [Move(waiting, mark)])
        self.rescan()

    def is_confirmed(self, photo: Photo) -> bool:
        """Whether the label of a photo was confirmed."""
        return (escape_label(photo.label), photo.sha256) in self._confirmed

    def _read_confirmed(self) -> set[tuple[str, str]]:
        folder = self._private / CONFIRMED
        if not folder.is_dir():
            return set()
        return {
            (label.name, file.name)
            for label in scan_folder(folder)
            if label.is_dir()
            for file in scan_folder(Path(label.path))
        }

    def begin_adding(self) -> Step:
        """Begin a step that adds photos."""
        return self.journal.begin_adding("adding")

    def add_photo(self, step: Step, text: str, data: bytes, sha256: str, suffix: str, name: str = "") -> Photo | None:
        """Write a photo into a class, which is created if need be; it is on disk when this returns.

        Args:
            step: A step of `begin_adding`, which is the last one.
            text: The class.
            data: The file.
            sha256: Hash of `data`.
            suffix: What its format ends with, such as ".jpg".
            name: What a client calls it: only letters, digits and a few signs of it are kept.

        Returns:
            The photo; None if the class has it already.
        """
        label = self.resolve_label(text)
        if any(photo.sha256 == sha256 for photo in self.photos.get(label, ())):
            return None
        if label not in self.photos:
            self.journal.add(step, Move(None, label))
            with explain_write_errors(self.root / label):
                (self.root / label).mkdir(exist_ok=True)
            self._folders[label] = label
        folder = self._folders[label]
        path = self._free_path(folder, clean_stem(name) or sha256[:16], suffix, taken=set())
        trash = f"{PRIVATE}/trash/{step.number:06}/{step.photos}-{path.rpartition('/')[2]}"
        self.journal.add(step, Move(trash, path))
        write_bytes(self.root / path, data)
        stat = (self.root / path).stat()
        self._stats[path] = (stat.st_size, stat.st_mtime_ns)
        photo = Photo(path, label, sha256, len(data))
        own = list(self.photos.get(label, ()))
        insort(own, photo, key=lambda one: Path(one.path))
        # Another mapping: who has the earlier one sees what has changed.
        changed = {**self.photos, label: tuple(own)}
        self.photos = dict(sorted(changed.items(), key=lambda item: self._folders[item[0]]))
        return photo

    def undo(self) -> str | None:
        """Take back the last step; returns what it was, None if there is none."""
        step = self.journal.undo()
        self.rescan()
        return None if step is None else str(step)

    def redo(self) -> str | None:
        """Make the step again that was undone last; returns what it is, None if there is none."""
        step = self.journal.redo()
        self.rescan()
        return None if step is None else str(step)

    def _new_label(self, text: str, *, instead_of: str | None = None) -> str:
        """A label that no class has but perhaps the one that is renamed."""
        label = " ".join(text.split())
        known = self.resolve_label(label)
        if known in self.photos and known != instead_of:
            raise ProjectError("class-exists", f"there is a class {known}", "choose another name, or merge the two")
        return label

    def _folder_of(self, label: str) -> str:
        if label not in self._folders:
            raise ProjectError("class-unknown", "there is no such class", "look again: it was renamed or deleted")
        return self._folders[label]

    def _moves_to(self, photos: Sequence[Photo], label: str) -> list[Move]:
        """Moves of photos into the folder of a class, under names that are free there."""
        folder, taken, moves = self._folders.get(label, label), set[str](), list[Move]()
        for photo in photos:
            stem, _, ending = photo.path.rpartition("/")[2].rpartition(".")
            path = self._free_path(folder, stem, f".{ending}", taken)
            taken.add(path.casefold())
            moves.append(Move(photo.path, path))
        return moves

    def _free_path(self, folder: str, stem: str, suffix: str, taken: set[str]) -> str:
        """A path in a folder that nothing has."""
        number = 1
        while True:
            path = f"{folder}/{stem}{f'-{number}' if number > 1 else ''}{suffix}"
            if path.casefold() not in taken and not os.path.lexists(self.root / path):
                return path
            number += 1


def label_fault(label: str) -> str:
    """Why no class can have this label, which is the name of its folder; "" if one can.

    >>> label_fault("hot air balloon"), label_fault("a/b"), label_fault("test")
    ('', "'a/b' cannot be the name of a folder", "'test' is what a part of the photos is called")
    """
    if fault := name_fault(label):
        return fault
    if len(label) > LABEL_LENGTH or len(label.encode()) > FOLDER_BYTES:
        return f"a class name may have at most {LABEL_LENGTH} characters"
    if escape_label(label) != label or is_hidden(label) or _DEVICES.fullmatch(label):
        return f"'{label}' cannot be the name of a folder"
    if label.lower() in SPLIT_NAMES:
        return f"'{label}' is what a part of the photos is called"
    return ""


def clean_stem(name: str) -> str:
    r"""The name of a photo without its ending, reduced to what is safe in a file name anywhere.

    >>> clean_stem("../IMG 12.JPG"), clean_stem("C:\\x\\sea?.png"), clean_stem(".htaccess"), clean_stem("NUL.jpg")
    ('IMG 12', 'sea', 'htaccess', 'NUL_')
    """
    last = re.split(r"[/\\]", unicodedata.normalize("NFC", name))[-1]
    stem = last.rpartition(".")[0] or last
    kept = "".join(c for c in stem if c.isalnum() or c in " _-()+")[:STEM_LENGTH].strip()
    return f"{kept}_" if _DEVICES.fullmatch(kept) else kept


def find_projects(workspace: Path) -> list[Path]:
    """The projects in a workspace, those that were used last first.

    A project is a folder that the page has opened before, or that has a model beside it or class folders with photos.
    """
    found = [folder for folder in list_subfolders(workspace) if is_project(folder)]
    return sorted(found, key=lambda folder: -_last_use(folder))


def is_project(folder: Path) -> bool:
    """Whether a folder is a project, or looks like one."""
    if folder.suffix in (".dca", ".partial"):
        return False
    if (folder / PRIVATE).is_dir():
        return True
    return any(has_photo(sub) for sub in list_class_folders(folder)) and not split_folders(folder)


def has_photo(folder: Path) -> bool:
    """Whether photos lie directly in a folder."""
    with suppress(UserError, OSError):
        return any(
            entry.is_file() and not is_hidden(entry.name) and is_named_image(Path(entry.name))
            for entry in scan_folder(folder)
        )
    return False


def _last_use(folder: Path) -> float:
    """When a project was used last."""
    times = [folder.stat().st_mtime]
    with suppress(OSError):
        times.append((folder / PRIVATE / INDEX).stat().st_mtime)
    return max(times)


def create_project(workspace: Path, text: str) -> Path:
    """Create an empty project; returns its folder.

    Raises:
        ProjectError: If it cannot have this name, or there is something with this name.
    """
    name = " ".join(text.split())
    if fault := label_fault(name):
        raise ProjectError("invalid-label", fault.replace("a class name", "the name of a project"))
    if name.endswith(".dca") or name.endswith(".partial"):
        raise ProjectError("invalid-label", f"'{name}' is the name of a model", "leave out its ending")
    root = workspace / name
    same = {normalize_name(entry.name) for entry in scan_folder(workspace)}
    if normalize_name(name) in same:
        raise ProjectError("project-exists", f"there is something called {name}", "choose another name")
    with explain_write_errors(root):
        (root / PRIVATE).mkdir(parents=True)
    return root
