"""The state of a server: the current model, images in memory, corrections, and the steps that can be undone."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import shlex
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dca
from dca.core.errors import UserError
from dca.core.text import format_bytes, normalize_name, pluralize
from dca.datasets.corrections import Correction, escape_label, remove_correction, write_correction
from dca.images.decode import StoredImage
from dca.model.classifier import Classifier
from dca.model.records import unreadable_names
from dca.model.refit import LabelledFeatures, Refitter
from dca.serve.encoder import ImageFeatures
from dca.serve.errors import RequestError
from dca.serve.options import ServeOptions
from dca.serve.predictions import AccuracyEstimate, RejectionState, ServedModel, estimated_accuracy

log = logging.getLogger(__name__)
# Bytes of the objects around the contents of an image in memory, about.
OBJECT_BYTES = 1500
# Longest label that a client may give, in characters, and its folder's name in bytes.
LABEL_LENGTH, NAME_BYTES = 80, 200
QUOTA_HINT = (
    "whoever runs the server can learn from the corrections with `dca fit` and then delete their files, or start it "
    "with a larger --max-corrections or --max-corrections-mb"
)
REFIT_HINT = "undo labels, or label other images with these classes"


@dataclass(frozen=True)
class LoadedImage:
    """An image in memory. source: its file as bytes, or the path of a file that the owner of the server named."""

    sha256: str
    width: int
    height: int
    suffix: str
    thumbnail: bytes
    features: ImageFeatures
    source: bytes | Path

    def read_file(self) -> bytes:
        """Read the image file."""
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()

    @property
    def memory(self) -> int:
        """Bytes that it takes."""
        source = len(self.source) if isinstance(self.source, bytes) else 0
        return len(self.thumbnail) + source + self.features.memory + OBJECT_BYTES


@dataclass(frozen=True)
class CorrectedImage:
    """An image with a corrected label: its file, the bytes of that, and what a refit needs of the image."""

    correction: Correction
    size: int
    thumbnail: bytes
    features: ImageFeatures

    @property
    def sha256(self) -> str:
        """Hash of the image file."""
        return self.correction.sha256

    @property
    def memory(self) -> int:
        """Bytes that it takes."""
        return len(self.thumbnail) + self.features.memory + OBJECT_BYTES

    @property
    def suffix(self) -> str:
        """Suffix of the image file, such as ".jpg"."""
        return self.correction.path.suffix

    def read_file(self) -> bytes:
        """Read the image file."""
        return self.correction.path.read_bytes()

    def to_example(self) -> LabelledFeatures:
        """The image as a refit takes it."""
        path = self.correction.path
        image = StoredImage(self.sha256, f"{path.parent.name}/{path.name}", self.thumbnail)
        return LabelledFeatures(image, self.correction.label, self.features.frozen.cpu())


class ImagePool:
    """Images in memory by their hash. The oldest recent images are evicted; those of the tray stay until removed.

    Args:
        recent_bytes: Memory for recent images.
        tray_bytes: Memory for the tray.
        tray_images: Most images in the tray.
    """

    def __init__(self, recent_bytes: int, tray_bytes: int, tray_images: int) -> None:
        self._recent: OrderedDict[str, LoadedImage] = OrderedDict()
        self._tray: dict[str, LoadedImage] = {}
        self._recent_bytes, self._tray_bytes, self._tray_images = recent_bytes, tray_bytes, tray_images
        self._recent_used = self._tray_used = 0

    @property
    def memory(self) -> int:
        """Bytes that all of them take."""
        return self._recent_used + self._tray_used

    def get(self, sha256: str) -> LoadedImage | None:
        """Return the image, or None if it is not in memory."""
        return self._tray.get(sha256) or self._recent.get(sha256)

    def keep_recent(self, image: LoadedImage) -> None:
        """Keep an image among the recent ones and evict the oldest beyond the memory limit."""
        if (earlier := self._recent.pop(image.sha256, None)) is not None:
            self._recent_used -= earlier.memory
        self._recent[image.sha256] = image
        self._recent_used += image.memory
        while self._recent_used > self._recent_bytes and len(self._recent) > 1:
            self._recent_used -= self._recent.popitem(last=False)[1].memory

    def put_in_tray(self, image: LoadedImage) -> None:
        """Put an image into the tray.

        Raises:
            RequestError: If the tray is full.
        """
        if image.sha256 in self._tray:
            return
        if len(self._tray) >= self._tray_images or self._tray_used + image.memory > self._tray_bytes:
            raise RequestError("tray-full", "the tray is full", "label or remove some of its images first")
        self._tray[image.sha256] = image
        self._tray_used += image.memory

    def remove_from_tray(self, sha256: str) -> bool:
        """Remove an image from the tray; returns False if it is not there."""
        image = self._tray.pop(sha256, None)
        self._tray_used -= image.memory if image else 0
        return image is not None

    def tray(self) -> list[LoadedImage]:
        """The images of the tray in the order in which they were added."""
        return list(self._tray.values())


@dataclass(frozen=True)
class CorrectionStep:
    """A correction that can be undone. previous: the corrected label of the image before it, if it had one."""

    image: CorrectedImage
    previous: str | None

    def __str__(self) -> str:
        return f"label '{self.image.correction.label}' of an image"


@dataclass(frozen=True)
class RefitStep:
    """A refit that can be undone. previous: the model before it."""

    previous: ServedModel

    def __str__(self) -> str:
        return "refit"


@dataclass(frozen=True)
class ClassState:
    """One class. images: training images of the current model. pending: corrections that wait for a refit.

    new: whether the current model does not know the class yet.
    """

    label: str
    images: int
    pending: int
    new: bool


@dataclass(frozen=True)
class RefitState:
    """Whether the model can be refitted here.

    reason, command: why not, and the command that does it elsewhere. failure: why the last refit failed, so that the
    corrections are not in the model; None if it did not.
    """

    reason: str = ""
    command: str = ""
    failure: RequestError | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        if self.reason:
            return {"possible": False, "reason": self.reason, "command": self.command}
        return {"possible": True, **({"failure": self.failure.to_dict()} if self.failure else {})}


@dataclass(frozen=True)
class QuotaState:
    """What may be kept of corrections.

    images, bytes: the limits. used_bytes: what the files of the corrections take. hint: what can be done when the quota
    is used up.
    """

    images: int
    bytes: int
    used_bytes: int
    hint: str = QUOTA_HINT


@dataclass(frozen=True)
class WorkspaceState:
    """What a page shows of the model and its corrections; the fields are those of `State` in openapi.json."""

    revision: int
    version: str
    model: str
    method: str
    backbone: str
    classes: tuple[ClassState, ...]
    corrections: int
    pending: int
    accuracy: AccuracyEstimate | None
    refit: RefitState
    rejection: RejectionState
    undo: str | None
    undo_steps: int
    quota: QuotaState

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(dataclasses.replace(self, refit=RefitState())), "refit": self.refit.to_dict()}


class Workspace:
    """A model folder that is being served. All changes go through it, one at a time.

    Args:
        folder: The model folder.
        model: The model of the folder.
        options: How it is served: the rate of false rejections, and limits on corrections and on steps to undo.

    Attributes:
        current: The model that predicts.
        revision: Grows with every change, so that a page can tell whether it is up to date.
        refits: Number of refits so far.
    """

    def __init__(self, folder: Path, model: Classifier, options: ServeOptions) -> None:
        self.folder, self._options = folder, options
        self.current = ServedModel(model, {}, options.reject)
        self.revision = 0
        self.refits = 0
        self._refitter = Refitter(model)
        self._corrected: dict[str, CorrectedImage] = {}
        self._refit_failure: RequestError | None = None
        # Bounded, because a refit keeps the model before it.
        self._steps: deque[CorrectionStep | RefitStep] = deque(maxlen=options.undo_steps)
        self._lock = asyncio.Lock()

    @property
    def corrections(self) -> dict[str, str]:
        """Label of each corrected image, by hash."""
        return {sha256: image.correction.label for sha256, image in self._corrected.items()}

    @property
    def pending(self) -> int:
        """Corrections, made or undone, that the current model does not know."""
        return len(set(self.corrections.items()) ^ set(self.current.applied.items()))

    def corrected_image(self, sha256: str) -> CorrectedImage | None:
        """The corrected image with this hash, if there is one."""
        return self._corrected.get(sha256)

    def corrected_images(self) -> list[CorrectedImage]:
        """All corrected images."""
        return list(self._corrected.values())

    def find_thumbnail(self, sha256: str) -> bytes | None:
        """A small JPEG of a training image; None if the model has none of it."""
        return self.current.find_thumbnail(sha256)

    async def keep_label(self, image: LoadedImage | CorrectedImage, label: str) -> str:
        """`correct`; returns the path of the file in the model folder."""
        return (await self.correct(image, label)).path.relative_to(self.folder).as_posix()

    def state(self) -> WorkspaceState:
        """The model and its corrections as they are now."""
        model, obstacle = self.current.model, self._refitter.obstacle
        return WorkspaceState(
            revision=self.revision,
            version=dca.__version__,
            model=self.folder.name,
            method=model.method,
            backbone=model.method_.encoder.source,
            classes=self._class_states(),
            corrections=len(self._corrected),
            pending=self.pending,
            accuracy=estimated_accuracy(model),
            refit=RefitState(obstacle, self.fit_command()) if obstacle else RefitState(failure=self._current_failure()),
            rejection=RejectionState.from_model(self.current),
            undo=str(self._steps[-1]) if self._steps else None,
            undo_steps=len(self._steps),
            quota=QuotaState(self._options.corrections, self._options.correction_bytes, self._correction_bytes()),
        )

    def _current_failure(self) -> RequestError | None:
        """Why the last refit failed, as long as corrections wait for one."""
        return self._refit_failure if self.pending else None

    def _correction_bytes(self) -> int:
        return sum(image.size for image in self._corrected.values())

    def _class_states(self) -> tuple[ClassState, ...]:
        """All classes; those that wait for a refit come last."""
        current = self.current
        images = Counter(image.label for image in current.model.training_images_)
        pending = Counter(dict(self.corrections.items() - current.applied.items()).values())
        new = [label for label in pending if label not in current.labels]
        known = [ClassState(label, images[c], pending[label], False) for c, label in enumerate(current.labels)]
        return (*known, *(ClassState(label, 0, pending[label], True) for label in new))

    async def load_corrections(self, images: Sequence[CorrectedImage]) -> None:
        """Take over the corrections that are in the folder, oldest first, and fit the model with them.

        Where they cannot be learned from, the model stays as it is, and the state says why.
        """
        for image in images:
            self._corrected[image.sha256] = image
            self._steps.append(CorrectionStep(image, None))
        if images and not self._refitter.obstacle:
            try:
                await self.refit()
            except RequestError as error:
                lines = [f"the corrections are not in the model: {error.message}", *error.details, f"fix: {error.hint}"]
                log.warning("\n  ".join(lines))

    def resolve_label(self, label: Any) -> str:
        """Return a client's label as text: that of a known class if it reads the same, else a new one.

        Raises:
            RequestError: If it is no readable text, or too long.
        """
        if not isinstance(label, str) or unreadable_names([label]) or not normalize_name(label):
            raise RequestError("invalid-label", "a label must be readable text")
        text = " ".join(label.split())
        if len(text) > LABEL_LENGTH or len(escape_label(text).encode()) > NAME_BYTES:
            raise RequestError("invalid-label", f"a label may have at most {LABEL_LENGTH} characters")
        known = {normalize_name(name): name for name in (*self.corrections.values(), *self.current.labels)}
        return known.get(normalize_name(text), text)

    async def correct(self, image: LoadedImage | CorrectedImage, label: str) -> Correction:
        """Keep an image under a label; when this returns, it is on disk.

        Args:
            image: The image.
            label: A label of `resolve_label`.

        Returns:
            The correction.

        Raises:
            RequestError: If its file is gone, or the quota of corrections is used up.
            UserError: If it cannot be written.
        """
        async with self._lock:
            sha256 = image.sha256
            try:
                data = await asyncio.to_thread(image.read_file)
            except OSError as error:
                message = f"the file of this image cannot be read any more: {error.strerror}"
                raise RequestError("image-unknown", message, "send it to /api/predict again") from None
            self._check_quota(sha256, len(data))
            correction = await asyncio.to_thread(write_correction, self.folder, label, data, sha256, image.suffix)
            earlier = self._corrected.pop(sha256, None)
            corrected = self._corrected[sha256] = CorrectedImage(correction, len(data), image.thumbnail, image.features)
            self._steps.append(CorrectionStep(corrected, earlier.correction.label if earlier else None))
            self.revision += 1
            return correction

    def _check_quota(self, sha256: str, size: int) -> None:
        """Raise unless there is room for one more correction; another label of the same image always has room."""
        if sha256 in self._corrected:
            return
        most, most_bytes = self._options.corrections, self._options.correction_bytes
        if len(self._corrected) >= most:
            raise RequestError("corrections-full", f"there are {pluralize(most, 'correction')}, the most", QUOTA_HINT)
        if self._correction_bytes() + size > most_bytes:
            message = f"the corrections would take more than {format_bytes(most_bytes)}"
            raise RequestError("corrections-full", message, QUOTA_HINT)

    async def refit(self) -> float:
        """Fit the model on its training images and all corrections.

        Returns:
            The time it took, in seconds.

        Raises:
            RequestError: If the model cannot be refitted here, nothing has changed, or a class has no images left.
        """
        async with self._lock:
            if reason := self._refitter.obstacle:
                command = self.fit_command()
                message, hint = f"this model cannot be refitted here: {reason}", "run the command where the photos are"
                raise RequestError("refit-impossible", message, hint, command=command)
            if not self.pending:
                raise RequestError("no-corrections", "there are no new corrections", "correct an image first")
            start, applied = time.monotonic(), self.corrections
            examples = [image.to_example() for image in self._corrected.values()]
            try:
                model = await asyncio.to_thread(self._refitter.refit, examples)
            except UserError as error:
                self._refit_failure = RequestError.from_user_error(error, "refit-refused", REFIT_HINT)
                raise self._refit_failure from error
            except Exception as error:  # a bug must not keep a server from starting
                log.exception("the refit failed")
                hint = "undo the last label; the log of the server says more"
                self._refit_failure = RequestError("bug", "the refit failed by an error of the server", hint)
                raise self._refit_failure from error
            self._refit_failure = None
            self._steps.append(RefitStep(self.current))
            self.current = dataclasses.replace(self.current, model=model, applied=applied)
            self.revision += 1
            self.refits += 1
            return time.monotonic() - start

    async def undo(self, revision: int | None = None) -> str:
        """Take back the last refit or correction.

        Args:
            revision: The revision that the client has seen; None does not check.

        Returns:
            What was undone, in words.

        Raises:
            RequestError: If there is nothing to undo, or something has changed since `revision`.
        """
        async with self._lock:
            if revision is not None and revision != self.revision:
                raise RequestError(
                    "changed-meanwhile", "something has changed in the meantime", "look again, then undo"
                )
            if not self._steps:
                raise RequestError("nothing-to-undo", "there is nothing to undo")
            step = self._steps[-1]
            match step:
                case RefitStep(previous):
                    self.current = previous
                case CorrectionStep(image, previous):
                    await asyncio.to_thread(self._undo_correction, image, previous)
            self._steps.pop()
            self.revision += 1
            return str(step)

    def _undo_correction(self, image: CorrectedImage, previous: str | None) -> None:
        """Give an image its previous label, or remove its file."""
        sha256 = image.sha256
        if previous is None:
            remove_correction(self.folder, sha256)
            del self._corrected[sha256]
            return
        data = self._corrected[sha256].read_file()
        correction = write_correction(self.folder, previous, data, sha256, self._corrected[sha256].suffix)
        self._corrected[sha256] = CorrectedImage(correction, len(data), image.thumbnail, image.features)

    def fit_command(self) -> str:
        """The command line that fits the model with its corrections, where the training images are."""
        model = self.current.model
        options = [f"--set {name}={value}" for name, value in model.method_options.items()]
        words = ["dca fit PHOTOS/", f"-o {shlex.quote(self.folder.name)}", f"--method {model.method}", *options]
        return " ".join([*words, "--overwrite"])


def describe_model(model: Classifier) -> str:
    """Describe a model in one line, for the screen."""
    images = pluralize(len(model.training_images_), "training image")
    return f"{model.method}, {pluralize(len(model.classes_), 'class')}, {images}, {model.method_.encoder.source}"
