"""What a served model says about images: encoded once, answered by whichever model is current.

The images that a server holds: recent ones, which may be corrected, and the tray of unlabelled ones.

The state of a server: the current model, the corrections, and how to undo the last action.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import dca
from dca.core.text import normalize_name, pluralize
from dca.datasets.corrections import Correction, folder_name, remove_correction, write_correction
from dca.images.decode import StoredImage
from dca.methods.base import Method
from dca.model.classifier import Classifier
from dca.model.predict import predict_features
from dca.model.records import unreadable_names
from dca.model.refit import LabelledFeatures, Refitter
from dca.serve.errors import RequestError

NEAREST, TOP = 5, 5


@dataclass(frozen=True)
class Encoded:
    """Features of an image.

    frozen: (D,), of the frozen backbone. own: (D,), of the method, if it changes the image tower; such a method is
    never refitted here, so that they stay valid.
    """

    frozen: Tensor
    own: Tensor | None


@dataclass(frozen=True)
class Answer:
    """What a model says about one image.

    labels: of all classes. probabilities: (C,). p_value: small for images of none of the classes; None if the model
    cannot tell. nearest: hash, label and similarity of the nearest training images.
    """

    labels: tuple[str, ...]
    probabilities: NDArray[np.float64]
    p_value: float | None
    nearest: tuple[tuple[str, str, float], ...]

    @property
    def best(self) -> str:
        """The most probable label."""
        return self.labels[int(self.probabilities.argmax())]

    def to_dict(self, reject: float, top: int = TOP) -> dict[str, Any]:
        """Plain values: the `top` most probable classes, and "none of these" if the p-value is below `reject`."""
        order = (-self.probabilities).argsort(kind="stable")[:top]
        return {
            "top": [{"label": self.labels[c], "probability": float(self.probabilities[c])} for c in order],
            "p_value": self.p_value,
            "none_of_these": self.p_value is not None and self.p_value < reject,
            "nearest": [{"image": i, "label": label, "similarity": s} for i, label, s in self.nearest],
        }


@dataclass(frozen=True)
class ServedModel:
    """A model that is being served. applied: the labels of the corrections that it was fitted with, by image."""

    model: Classifier
    applied: Mapping[str, str]

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels as text, in the order of the classes."""
        return tuple(map(str, self.model.classes_.tolist()))

    def answers(self, images: Sequence[Encoded]) -> list[Answer]:
        """What the model says about some images."""
        if not images:
            return []
        features = _method_features(self.model.method_, images)
        found = predict_features(self.model, features)
        p_values = [None] * len(images) if found.p_values is None else found.p_values.tolist()
        nearest = self._nearest(torch.stack([image.frozen for image in images]))
        rows = zip(found.probabilities, p_values, nearest, strict=True)
        return [Answer(self.labels, row, p, near) for row, p, near in rows]

    def _nearest(self, features: Tensor) -> list[tuple[tuple[str, str, float], ...]]:
        gallery = self.model.gallery()
        if gallery is None or not len(gallery):
            return [()] * len(features)
        labels = self.labels
        places, values = gallery.nearest(features.cpu(), NEAREST)
        return [
            tuple((gallery.sha256[n], labels[gallery.labels[n]], round(s, 4)) for n, s in zip(row, near, strict=True))
            for row, near in zip(places.tolist(), values.tolist(), strict=True)
        ]


@torch.no_grad()
def _method_features(method: Method, images: Sequence[Encoded]) -> Tensor:
    """Features (B, D) as `method.encode` gives them."""
    own = [image.own for image in images if image.own is not None]
    return torch.stack(own) if own else method.adapt_features(torch.stack([image.frozen for image in images]))


@dataclass(frozen=True)
class Held:
    """One image. source: its file as bytes, or the place of a file that the owner of the server named."""

    sha256: str
    width: int
    height: int
    suffix: str
    thumbnail: bytes
    encoded: Encoded
    source: bytes | Path

    def content(self) -> bytes:
        """The image file."""
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()

    @property
    def memory(self) -> int:
        """Bytes that it takes."""
        return len(self.thumbnail) + (len(self.source) if isinstance(self.source, bytes) else 0)


class HeldImages:
    """Images by their hash. Recent ones are forgotten as others come; those of the tray stay until they are removed.

    Args:
        recent_bytes: Memory for recent images.
        tray_bytes: Memory for the tray.
        tray_images: Most images in the tray.
    """

    def __init__(self, recent_bytes: int, tray_bytes: int, tray_images: int) -> None:
        self._recent: OrderedDict[str, Held] = OrderedDict()
        self._tray: dict[str, Held] = {}
        self._recent_bytes, self._tray_bytes, self._tray_images = recent_bytes, tray_bytes, tray_images
        self._recent_taken = self._tray_taken = 0

    def get(self, sha256: str) -> Held | None:
        """The image, if it is held."""
        return self._tray.get(sha256) or self._recent.get(sha256)

    def keep_recent(self, image: Held) -> None:
        """Hold an image for a while; the oldest ones are forgotten."""
        if (before := self._recent.pop(image.sha256, None)) is not None:
            self._recent_taken -= before.memory
        self._recent[image.sha256] = image
        self._recent_taken += image.memory
        while self._recent_taken > self._recent_bytes and len(self._recent) > 1:
            self._recent_taken -= self._recent.popitem(last=False)[1].memory

    def put_in_tray(self, image: Held) -> None:
        """Hold an image in the tray.

        Raises:
            RequestError: If the tray is full.
        """
        if image.sha256 in self._tray:
            return
        if len(self._tray) >= self._tray_images or self._tray_taken + image.memory > self._tray_bytes:
            raise RequestError(409, "the tray is full", "label or remove some of its images first")
        self._tray[image.sha256] = image
        self._tray_taken += image.memory

    def remove_from_tray(self, sha256: str) -> bool:
        """Take an image out of the tray; False if it is not there."""
        image = self._tray.pop(sha256, None)
        self._tray_taken -= image.memory if image else 0
        return image is not None

    def tray(self) -> list[Held]:
        """The images of the tray in the order in which they came."""
        return list(self._tray.values())


# Longest label that a client may give, in characters, and its folder's name in bytes.
LABEL_LENGTH, NAME_BYTES = 80, 200


@dataclass(frozen=True)
class Kept:
    """A corrected image: its file and label, and what a refit needs of it."""

    correction: Correction
    thumbnail: bytes
    encoded: Encoded

    @property
    def example(self) -> LabelledFeatures:
        """The image as a refit takes it."""
        path = self.correction.path
        name = f"{path.parent.name}/{path.name}"
        image = StoredImage(self.correction.sha256, name, self.thumbnail)
        return LabelledFeatures(image, self.correction.label, self.encoded.frozen.cpu())


@dataclass(frozen=True)
class Labelled:
    """A correction was made. before: the image's corrected label before that, if it had one."""

    kept: Kept
    before: str | None


@dataclass(frozen=True)
class Refitted:
    """The model was fitted again. before: the model before that."""

    before: ServedModel


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
        self.current = ServedModel(model, {})
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
        if not isinstance(label, str) or unreadable_names([label]) or not normalize_name(label):
            raise RequestError(422, "a label must be readable text")
        text = " ".join(label.split())
        if len(text) > LABEL_LENGTH or len(folder_name(text).encode()) > NAME_BYTES:
            raise RequestError(422, f"a label may have at most {LABEL_LENGTH} characters")
        known = {normalize_name(name): name for name in (*self.corrections.values(), *self.current.labels)}
        return known.get(normalize_name(text), text)

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
            self.current = ServedModel(model, applied)
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
        images = Counter(image.label for image in current.model.training_images_)
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
    images = pluralize(len(model.training_images_), "training image")
    return f"{model.method}, {pluralize(len(model.classes_), 'class')}, {images}, {model.method_.clip.source}"
