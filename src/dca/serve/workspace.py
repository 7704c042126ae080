"""The state of a server: the current model, the corrections, and how to undo the last action."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dca
from dca.core.wording import counted, fold
from dca.data.corrections import Correction, folder_name, remove_correction, write_correction
from dca.data.dataset import StoredImage
from dca.model.classifier import Classifier
from dca.model.record_checks import unreadable_names
from dca.model.refit import Example, Refitter
from dca.serve.errors import RequestError
from dca.serve.images import Held
from dca.serve.model_view import Encoded, Snapshot

# Longest label that a client may give, in characters, and its folder's name in bytes.
LABEL_LENGTH, NAME_BYTES = 80, 200


@dataclass(frozen=True)
class Kept:
    """A corrected image: its file and label, and what a refit needs of it."""

    correction: Correction
    thumbnail: bytes
    encoded: Encoded

    @property
    def example(self) -> Example:
        """The image as a refit takes it."""
        path = self.correction.path
        name = f"{path.parent.name}/{path.name}"
        image = StoredImage(self.correction.sha256, name, self.thumbnail)
        return Example(image, self.correction.label, self.encoded.frozen.cpu())


@dataclass(frozen=True)
class Labelled:
    """A correction was made. before: the image's corrected label before that, if it had one."""

    kept: Kept
    before: str | None


@dataclass(frozen=True)
class Refitted:
    """The model was fitted again. before: the model before that."""

    before: Snapshot


class Workspace:
    """A model folder that is being served. All changes go through it, one at a time.

    Args:
        folder: The model folder.
        model: Its model.

    Attributes:
        current: The model that answers.
        revision: Grows with every change, so that several pages can tell whether they are up to date.
        refits: Number of refits so far.
    """

    def __init__(self, folder: Path, model: Classifier) -> None:
        self.folder = folder
        self.current = Snapshot(model, {})
        self.revision = 0
        self.refits = 0
        self._refitter = Refitter(model)
        self._kept: dict[str, Kept] = {}
        self._steps: list[Labelled | Refitted] = []
        self._lock = asyncio.Lock()

    @property
    def corrections(self) -> dict[str, str]:
        """Label of each corrected image, by hash."""
        return {sha256: kept.correction.label for sha256, kept in self._kept.items()}

    @property
    def pending(self) -> int:
        """Corrections that the current model does not know, made or undone."""
        return len(set(self.corrections.items()) ^ set(self.current.applied.items()))

    def kept(self, sha256: str) -> Kept | None:
        """A corrected image."""
        return self._kept.get(sha256)

    async def adopt(self, kept: list[Kept]) -> None:
        """Take over the corrections that are in the folder, oldest first, and fit the model with them."""
        for one in kept:
            self._kept[one.correction.sha256] = one
            self._steps.append(Labelled(one, None))
        if kept and not self._refitter.obstacle:
            await self.refit()

    def checked_label(self, label: Any) -> str:
        """A client's label as text: that of a known class if it reads the same, else a new one.

        Raises:
            RequestError: If it is no readable text, or too long.
        """
        if not isinstance(label, str) or unreadable_names([label]) or not fold(label):
            raise RequestError(422, "a label must be readable text")
        text = " ".join(label.split())
        if len(text) > LABEL_LENGTH or len(folder_name(text).encode()) > NAME_BYTES:
            raise RequestError(422, f"a label may have at most {LABEL_LENGTH} characters")
        known = {fold(name): name for name in (*self.corrections.values(), *self.current.labels)}
        return known.get(fold(text), text)

    async def correct(self, image: Held | Kept, label: str) -> Correction:
        """Keep an image under a label; when this returns, it is on disk.

        Args:
            image: The image.
            label: A label of `checked_label`.

        Returns:
            The correction.

        Raises:
            UserError: If it cannot be written.
        """
        async with self._lock:
            sha256, content, suffix = _file_of(image)
            made = await asyncio.to_thread(write_correction, self.folder, label, content, sha256, suffix)
            before = self._kept.pop(sha256, None)
            self._kept[sha256] = Kept(made, image.thumbnail, image.encoded)
            self._steps.append(Labelled(self._kept[sha256], before.correction.label if before else None))
            self.revision += 1
            return made

    async def refit(self) -> float:
        """Fit the model on its training images and all corrections.

        Returns:
            The time it took, in seconds.

        Raises:
            RequestError: If the model cannot be fitted again here, or nothing has changed.
            UserError: If the images cannot be learned from.
        """
        async with self._lock:
            if reason := self._refitter.obstacle:
                raise RequestError(
                    409, f"this model cannot be refitted here: {reason}", self._advice(), command=self.command()
                )
            if not self.pending:
                raise RequestError(409, "there are no new corrections", "correct an image first")
            began, applied = time.monotonic(), self.corrections
            examples = [kept.example for kept in self._kept.values()]
            model = await asyncio.to_thread(self._refitter.refit, examples)
            self._steps.append(Refitted(self.current))
            self.current = Snapshot(model, applied)
            self.revision += 1
            self.refits += 1
            return time.monotonic() - began

    async def undo(self, revision: int | None = None) -> str:
        """Take back the last refit or correction.

        Args:
            revision: What the client believes to be current; None does not check.

        Returns:
            What was undone, in words.

        Raises:
            RequestError: If there is nothing to undo, or something has changed since `revision`.
        """
        async with self._lock:
            if revision is not None and revision != self.revision:
                raise RequestError(409, "something has changed in the meantime", "look again, then undo")
            if not self._steps:
                raise RequestError(409, "there is nothing to undo")
            words = _words(self._steps[-1])
            match self._steps[-1]:
                case Refitted(before):
                    self.current = before
                case Labelled(kept, before):
                    await asyncio.to_thread(self._take_back, kept, before)
            self._steps.pop()
            self.revision += 1
            return words

    def _take_back(self, kept: Kept, before: str | None) -> None:
        """Give an image its label of before, or remove its file."""
        sha256, path = kept.correction.sha256, self._kept[kept.correction.sha256].correction.path
        if before is None:
            remove_correction(self.folder, sha256)
            del self._kept[sha256]
            return
        made = write_correction(self.folder, before, path.read_bytes(), sha256, path.suffix)
        self._kept[sha256] = Kept(made, kept.thumbnail, kept.encoded)

    def command(self) -> str:
        """The command line that fits the model with its corrections, where the training images are."""
        model = self.current.model
        given = [f"--set {name}={value}" for name, value in model.settings.items()]
        words = ["dca fit PHOTOS/", f"-o {shlex.quote(self.folder.name)}", f"--method {model.method}", *given]
        return " ".join([*words, "--overwrite"])

    def _advice(self) -> str:
        return f"the corrections are kept; where the training images are, run: {self.command()}"

    def state(self) -> dict[str, Any]:
        """Everything that a page shows of the model and its corrections, as plain values."""
        model, obstacle = self.current.model, self._refitter.obstacle
        refit = {"possible": False, "reason": obstacle, "command": self.command()} if obstacle else {"possible": True}
        return {
            "revision": self.revision,
            "version": dca.__version__,
            "model": self.folder.name,
            "method": model.method,
            "backbone": model.method_.clip.source,
            "classes": self._classes(),
            "corrections": len(self._kept),
            "pending": self.pending,
            "accuracy": accuracy(model),
            "refit": refit,
            "undo": _words(self._steps[-1]) if self._steps else None,
        }

    def _classes(self) -> list[dict[str, Any]]:
        """Label, training images and waiting corrections of each class; classes that wait for a refit come last."""
        current = self.current
        images = Counter(row["label"] for row in current.model.draw_)
        waiting = Counter(dict(self.corrections.items() - current.applied.items()).values())
        new = [label for label in waiting if label not in current.labels]
        counts = [(label, images[c]) for c, label in enumerate(current.labels)] + [(label, 0) for label in new]
        return [
            {"label": label, "images": count, "pending": waiting[label], "new": label in new} for label, count in counts
        ]


def accuracy(model: Classifier) -> dict[str, Any] | None:
    """The estimated accuracy of a model on new images, if it is known."""
    found = model.estimate_
    if found is None:
        return None
    return {"value": found.accuracy, "low": found.low, "high": found.high, "images": found.n, "how": found.how}


def _words(step: Labelled | Refitted) -> str:
    """A step in words."""
    if isinstance(step, Refitted):
        return "refit"
    return f"label '{step.kept.correction.label}' of an image"


def _file_of(image: Held | Kept) -> tuple[str, bytes, str]:
    """Hash, content and suffix of an image file."""
    if isinstance(image, Kept):
        path = image.correction.path
        return image.correction.sha256, path.read_bytes(), path.suffix
    return image.sha256, image.content(), image.suffix


def describe(model: Classifier) -> str:
    """A model in one line, for the screen."""
    images = counted(len(model.draw_), "training image")
    return f"{model.method}, {counted(len(model.classes_), 'class')}, {images}, {model.method_.clip.source}"
