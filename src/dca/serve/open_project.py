"""A project that is open: its photos with their features, its model, and the fits that follow every change.

Photos are read and encoded as they arrive, also those that appear in the folder by other ways. A fit begins when
nothing has changed for a moment; when photos change meanwhile, the next one follows. A fit never blocks a change.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.nn import functional as F

import dca
from dca.core.errors import UserError
from dca.core.files import InUseError, exclusive_lock
from dca.core.processes import work_in_background
from dca.core.text import format_bytes
from dca.images.decode import open_bytes
from dca.images.reading import encode_jpeg
from dca.model import checkpoint
from dca.model.classifier import Classifier
from dca.model.findings import recall_by_class
from dca.projects.fitting import (
    PhotoContent,
    ProjectFindings,
    find_in_project,
    find_other_model,
    fit_project,
    learnable_photos,
    same_images,
)
from dca.projects.project import Photo, Project, ProjectError
from dca.projects.steps import Step
from dca.serve.decoder import DecodedImage
from dca.serve.encoder import ImageFeatures
from dca.serve.errors import RequestError
from dca.serve.intake import EncodedImage, Intake
from dca.serve.options import ServeOptions
from dca.serve.predictions import AccuracyEstimate, RejectionState, ServedModel, estimated_accuracy
from dca.serve.workspace import CorrectedImage, LoadedImage
from dca.training.session import Session

log = logging.getLogger(__name__)
T = TypeVar("T")
# Seconds without a change before a fit begins. While changes keep coming one begins after this many seconds, or so many
# times as long as the last fit took, and when there are so many times as many photos: fits on the way then take no more
# time than the one at the end.
QUIET_SECONDS, PATIENCE_SECONDS, PATIENCE_FITS, GROWTH = 0.6, 8.0, 4.0, 2.0
# Photos of a folder that are read at a time, and seconds between two looks at the folder.
READ_AHEAD, RESCAN_SECONDS = 16, 3.0
# Photos that `find_similar` returns.
MOST_SIMILAR = 12
NO_CHANGE = "nothing has changed since the last fit"


@dataclass(frozen=True)
class FitState:
    """How the fit stands.

    status: "waiting" for a moment of quiet, "fitting", "done", or "impossible". seconds: how long the last one took, or
    the present one has taken so far. expected: seconds that it will take, about; None where that is not known. reason:
    why it is impossible or failed; "" otherwise.
    """

    status: str
    seconds: float
    expected: float | None
    reason: str


@dataclass(frozen=True)
class ProjectClass:
    """A class of a project.

    version: grows when its photos change. recall: how many of its photos were recognised, and of how many; None where
    that is not known of its photos as they are now.
    """

    label: str
    images: int
    version: int
    recall: tuple[int, int] | None


@dataclass(frozen=True)
class ProjectState:
    """What a page shows of a project; the fields are those of `ProjectState` in openapi.json.

    reading: photos that are waiting to be read. unreadable: those that cannot be. fitted: whether the model knows all
    photos as they are now.
    """

    revision: int
    version: str
    project: str
    folder: str
    model: str
    method: str
    backbone: str
    classes: tuple[ProjectClass, ...]
    photos: int
    reading: int
    unreadable: int
    most_photos: int
    fitted: bool
    fit: FitState
    accuracy: AccuracyEstimate | None
    rejection: RejectionState | None
    doubtful: int
    copies: int
    undo: str | None
    undo_steps: int
    redo: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


class OpenProject:
    """A project that is open; it is where labels go, and has the model that predicts.

    Args:
        root: The folder of the project.
        intake: Decodes and encodes images.
        session: Has loaded the backbone.
        backbone: The name of the backbone and its precision, as they were given.
        options: Limits.

    Attributes:
        current: The model that predicts; None while there is none.
        revision: Grows with every change, of photos or of the model.
        findings: What the last fit says of the photos.
    """

    def __init__(
        self, root: Path, intake: Intake, session: Session, backbone: tuple[str, str], options: ServeOptions
    ) -> None:
        self.project = Project(root)
        self.current: ServedModel | None = None
        self.findings = ProjectFindings()
        self.revision = 0
        self._intake, self._session, self._backbone, self._options = intake, session, backbone, options
        self._contents: dict[str, PhotoContent] = {}
        self._unreadable: dict[str, str] = {}  # hash -> why
        self._versions: Counter[str] = Counter()
        self._edited = 0  # the revision after the last change that a person made
        self._fitted: frozenset[tuple[str, str, str]] | None = None
        self._fitted_photos = 0  # how many were read when the last fit began
        self._fit = FitState("waiting", 0.0, None, "")
        self._began: float | None = None
        self._changed_at = self._waiting_since = time.monotonic()
        self._adding: tuple[str, Step] | None = None
        self._lock, self._wake = asyncio.Lock(), asyncio.Event()
        self._fit_lock = asyncio.Lock()
        self._encoding = set[str]()  # hashes of photos that are being encoded in the background
        self._encoding_slots = asyncio.Semaphore(options.uploads)
        self._encodings = set[asyncio.Task[None]]()
        # Of its own, so that a fit leaves the cores to uploads and to the page.
        self._fit_thread = ThreadPoolExecutor(1, thread_name_prefix="dca-fit", initializer=work_in_background)
        self._tasks: list[asyncio.Task[None]] = []
        self._held = ExitStack()
        self.used = time.monotonic()

    async def open(self) -> None:
        """Read the folder and its model, and begin to follow both.

        Raises:
            RequestError: If another process has it open.
            UserError: If it cannot be read.
        """
        try:
            self._held.enter_context(exclusive_lock(self.project.root, "server"))
        except InUseError as error:
            raise RequestError("project-in-use", error.problem, "close it there first", details=error.details) from None
        try:
            await asyncio.to_thread(self.project.open)
            await asyncio.to_thread(self._load_model)
        except BaseException:
            self._held.close()
            raise
        self._tasks = [asyncio.create_task(self._read_and_watch()), asyncio.create_task(self._fit_when_quiet())]
        self._note_change()

    async def close(self) -> None:
        """Stop following the folder; a fit that is under way is waited for."""
        tasks = [*self._tasks, *self._encodings]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with self._fit_lock, self._lock:
            with suppress(UserError):  # it only saves time
                await asyncio.to_thread(self.project.save_index)
        self._fit_thread.shutdown(wait=False)
        self._held.close()

    # What others read.

    @property
    def corrections(self) -> dict[str, str]:
        """Label of each photo, by hash."""
        return {photo.sha256: photo.label for photo in self.project.list_photos()}

    def corrected_image(self, sha256: str) -> CorrectedImage | None:
        """None: the photos of a project are found by their keys."""
        return None

    def find_thumbnail(self, sha256: str) -> bytes | None:
        """A small JPEG of a photo, or of a training image of the model."""
        if (content := self._contents.get(sha256)) is not None:
            return content.preview
        return None if self.current is None else self.current.find_thumbnail(sha256)

    def list_photos(self, label: str) -> Sequence[Photo]:
        """The photos of a class."""
        return self.project.photos.get(label, ())

    def is_read(self, photo: Photo) -> bool:
        """Whether a photo is read and encoded."""
        return photo.sha256 in self._contents

    def why_unreadable(self, photo: Photo) -> str:
        """Why a photo cannot be read; "" if it can, or has not been yet."""
        return self._unreadable.get(photo.sha256, "")

    @property
    def unreadable(self) -> list[Photo]:
        """The photos that cannot be read."""
        return [photo for photo in self.project.list_photos() if photo.sha256 in self._unreadable]

    def doubtful(self) -> list[Any]:
        """The doubtful labels that nobody has confirmed or changed since."""
        there = {photo.path: photo for photo in self.project.list_photos()}
        return [
            row
            for row in self.findings.doubtful
            if there.get(row.photo.path) == row.photo and not self.project.is_confirmed(row.photo)
        ]

    def copies(self) -> list[tuple[Photo, ...]]:
        """The groups of copies that are still there."""
        there = set(self.project.list_photos())
        groups = (tuple(photo for photo in group if photo in there) for group in self.findings.copies)
        return [group for group in groups if len(group) > 1]

    def state(self) -> ProjectState:
        """The project as it is now."""
        project, current, photos = self.project, self.current, self.project.list_photos()
        waiting = [p for p in photos if p.sha256 not in self._contents and p.sha256 not in self._unreadable]
        changed = {label for label, *_ in _fit_key(self._learnable()) ^ (self._fitted or frozenset())}
        recall = {row.label: (row.right, row.n) for row in self._recall if row.label not in changed}
        fit, last, first = self._fit, project.journal.last_done, project.journal.first_undone
        if self._began is not None:
            fit = FitState("fitting", round(time.monotonic() - self._began, 1), fit.seconds or None, "")
        return ProjectState(
            revision=self.revision,
            version=dca.__version__,
            project=project.name,
            folder=str(project.root),
            model=project.model_folder.name,
            method="" if current is None else current.model.method,
            backbone=self._intake.encoder.source,
            classes=tuple(
                ProjectClass(label, len(own), self._versions[label], recall.get(label))
                for label, own in project.photos.items()
            ),
            photos=len(photos),
            reading=len(waiting),
            unreadable=len(self.unreadable),
            most_photos=self._options.project_photos,
            fitted=self._fitted is not None and not changed,
            fit=fit,
            accuracy=None if current is None else estimated_accuracy(current.model),
            rejection=None if current is None else RejectionState.from_model(current),
            doubtful=len(self.doubtful()),
            copies=len(self.copies()),
            undo=None if last is None else str(last),
            undo_steps=project.journal.done,
            redo=None if first is None else str(first),
        )

    @property
    def _recall(self) -> Sequence[Any]:
        if self.current is None:
            return ()
        model = self.current.model
        return [row for row in recall_by_class(model.training_images_, model.classes_.tolist()) if row.n]

    @property
    def _is_fitted(self) -> bool:
        if self._fitted is None:
            return False
        photos = self._learnable()
        return len(self._fitted) == sum(map(len, photos.values())) and self._fitted == _fit_key(photos)

    def _learnable(self) -> dict[str, tuple[Photo, ...]]:
        return learnable_photos(self.project.photos, self._contents)

    def find_similar(self, features: ImageFeatures, but: str = "") -> list[tuple[Photo, float]]:
        """The photos that look most like an image, with their cosine similarities. but: hash of one to leave out."""
        photos = [p for p in self.project.list_photos() if p.sha256 in self._contents and p.sha256 != but]
        if not photos:
            return []
        rows = torch.stack([self._contents[photo.sha256].features for photo in photos])
        cosines = F.normalize(rows.float(), dim=-1) @ F.normalize(features.frozen.float().cpu(), dim=-1)
        values, order = cosines.topk(min(MOST_SIMILAR, len(photos)))
        return [(photos[n], round(float(v), 4)) for n, v in zip(order.tolist(), values.tolist(), strict=True)]

    def features_of(self, photo: Photo) -> ImageFeatures:
        """The features of a photo.

        Raises:
            RequestError: If it is not read yet, or cannot be.
        """
        content = self._contents.get(photo.sha256)
        if content is None:
            raise RequestError("image-unknown", "this photo is not read yet", "try again in a moment")
        return ImageFeatures(content.features, None)

    # Changes.

    def resolve_label(self, label: Any) -> str:
        """Return a client's label as that of a known class, or a new one.

        Raises:
            RequestError: If no class can have it.
        """
        if not isinstance(label, str):
            raise RequestError("invalid-label", "a label must be readable text")
        try:
            return self.project.resolve_label(label)
        except ProjectError as error:
            raise RequestError.from_user_error(error, error.code) from None

    async def change(self, act: Callable[[Project], T], revision: int | None = None) -> T:
        """Make a change of the folder; when this returns, it is on disk.

        Args:
            act: Makes it.
            revision: What the client has seen; refused if a person has changed something since.

        Returns:
            What `act` returns.

        Raises:
            RequestError: If the state does not allow it.
            UserError: If it cannot be written.
        """
        async with self._lock:
            if revision is not None and revision < self._edited:
                raise RequestError(
                    "changed-meanwhile", "something has changed in the meantime", "look again, then undo"
                )
            self._adding = None
            return await self._act(act)

    async def _act(self, act: Callable[[Project], T]) -> T:
        before = self.project.photos
        try:
            return await asyncio.to_thread(act, self.project)
        except ProjectError as error:
            raise RequestError.from_user_error(error, error.code) from None
        finally:
            self._note_photos(before)
            self._edited = self.revision

    async def add(
        self, image: DecodedImage | LoadedImage, sha256: str, data: bytes, label: str, drop: str, name: str
    ) -> Photo | None:
        """Keep an image as a photo of a class; None if the class has it already.

        It is on disk when this returns, and encoded in the background, together with others: so batches are larger than
        the few uploads that browsers make at a time.

        Args:
            image: What is known of it.
            sha256: Its hash.
            data: Its file.
            label: Its class.
            drop: Photos with the same name of a drop are one step, as long as nothing else is changed.
            name: What the client calls it.

        Raises:
            RequestError: If the project is full.
            UserError: If it cannot be written.
        """
        if isinstance(image, LoadedImage):
            await asyncio.to_thread(self._remember, sha256, image)
        else:
            await self._encode_later(image, sha256, label)
        async with self._lock:
            self._check_quota(len(data))
            if self._adding is None or not drop or self._adding[0] != drop:
                self._adding = drop, await asyncio.to_thread(self.project.begin_adding)
            step = self._adding[1]
            return await self._act(lambda project: project.add_photo(step, label, data, sha256, image.suffix, name))

    async def _encode_later(self, image: DecodedImage, sha256: str, label: str) -> None:
        """Encode an image in the background; waits while too many others are waiting for it."""
        if sha256 in self._contents or sha256 in self._encoding:
            return
        self._encoding.add(sha256)
        try:
            await self._encoding_slots.acquire()
        except asyncio.CancelledError:
            self._encoding.discard(sha256)
            raise
        task = asyncio.create_task(self._encode(image, sha256, label))
        self._encodings.add(task)
        task.add_done_callback(self._encodings.discard)

    async def _encode(self, image: DecodedImage, sha256: str, label: str) -> None:
        try:
            encoded, _ = await self._intake.encode_decoded(image)
            await asyncio.to_thread(self._remember, sha256, encoded)
        except Exception:  # the next look at the folder finds the photo, and reads it again
            log.exception("a photo could not be encoded")
        finally:
            self._encoding.discard(sha256)
            self._encoding_slots.release()
        self._versions[label] += 1
        self._note_change()

    def _check_quota(self, size: int) -> None:
        """Raise unless there is room for one more photo."""
        photos, most, most_bytes = self.project.list_photos(), self._options.project_photos, self._options.project_bytes
        hint = "whoever runs the server can start it with a larger --max-photos or --max-photos-mb"
        if len(photos) >= most:
            raise RequestError("project-full", f"there are {most:,} photos, the most", hint)
        if sum(photo.size for photo in photos) + size > most_bytes:
            raise RequestError("project-full", f"the photos would take more than {format_bytes(most_bytes)}", hint)

    async def keep_label(self, image: LoadedImage | CorrectedImage, label: str) -> str:
        """Keep an image that was predicted as a photo of a class; returns its path in the project."""
        assert isinstance(image, LoadedImage)
        known = [photo for photo in self.project.list_photos() if photo.sha256 == image.sha256]
        if known:
            await self.change(lambda project: project.move_photos(known, label))
        else:
            data = await asyncio.to_thread(image.read_file)
            await self.add(image, image.sha256, data, label, "", "")
        found = [p.path for p in self.project.list_photos() if p.sha256 == image.sha256 and p.label == label]
        return found[0]

    async def undo(self, revision: int | None = None) -> str:
        """Take back the last step.

        Raises:
            RequestError: If there is none, or a person has changed something since `revision`.
        """
        undone = await self.change(lambda project: project.undo(), revision)
        if undone is None:
            raise RequestError("nothing-to-undo", "there is nothing to undo")
        return undone

    async def redo(self) -> str:
        """Make the step again that was undone last.

        Raises:
            RequestError: If there is none.
        """
        redone = await self.change(lambda project: project.redo())
        if redone is None:
            raise RequestError("nothing-to-redo", "there is nothing to redo")
        return redone

    def _remember(self, sha256: str, image: EncodedImage | LoadedImage) -> None:
        """Keep what a fit needs of an image."""
        if sha256 not in self._contents:
            preview = encode_jpeg(open_bytes(image.thumbnail))
            self._contents[sha256] = PhotoContent(image.features.frozen.cpu(), preview)
        self._unreadable.pop(sha256, None)

    def _note_photos(self, before: Mapping[str, Sequence[Photo]]) -> None:
        """Note which classes have changed."""
        after = self.project.photos
        for label in {*before, *after}:
            if before.get(label) != after.get(label):
                self._versions[label] += 1
        self._note_change()

    def _note_change(self) -> None:
        now, fitted = time.monotonic(), self._is_fitted
        if fitted or self._fit.status in ("done", "impossible"):
            self._waiting_since = now
        self.revision += 1
        self._changed_at = now
        if self._fit.status in ("done", "impossible") and not fitted:
            self._fit = dataclasses.replace(self._fit, status="waiting", reason="")
        self._wake.set()

    # What goes on by itself.

    def _load_model(self) -> None:
        """Take over the model beside the project, with what it knows of the photos."""
        folder = self.project.model_folder
        if not checkpoint.holds_model(folder) or find_other_model(folder, self._intake.encoder):
            return
        model = Classifier.from_pretrained(folder, backbone=self._intake.encoder, session=self._session)
        gallery = model.gallery()
        if gallery is None:
            return
        rows = zip(gallery.sha256, gallery.features, gallery.jpegs, strict=True)
        self._contents.update({sha256: PhotoContent(row, jpeg) for sha256, row, jpeg in rows})
        self._take_model(model, self._learnable())

    def _take_model(self, model: Classifier, photos: Mapping[str, Sequence[Photo]]) -> None:
        """Predict with a model; photos: those that it was fitted on, if it was."""
        self.findings = find_in_project(model, photos, self._contents, self._session)
        self.current = ServedModel(model, {}, self._options.reject)
        if same_images(model, photos):
            self._fitted = _fit_key(photos)
            self._fit = dataclasses.replace(self._fit, status="done", reason="")

    async def _read_and_watch(self) -> None:
        """Read photos that are not known yet, and look for changes of the folder that others make."""
        while True:
            await self._read_unknown()
            await asyncio.sleep(RESCAN_SECONDS)
            async with self._lock:
                before = self.project.photos
                try:
                    changed = await asyncio.to_thread(self.project.rescan)
                except UserError as error:
                    log.warning("%s", error)
                    continue
                if changed:
                    self._adding = None
                    self._note_photos(before)

    async def _read_unknown(self) -> None:
        """Read and encode the photos that are not known yet, a few at a time."""
        tried = set[str]()
        while True:
            todo = {
                photo.sha256: photo
                for photo in self.project.list_photos()
                if photo.sha256 not in self._contents and photo.sha256 not in self._unreadable
            }
            todo = {sha256: photo for sha256, photo in todo.items() if sha256 not in tried | self._encoding}
            batch = list(todo.values())[:READ_AHEAD]
            if not batch:
                return
            tried |= {photo.sha256 for photo in batch}
            await asyncio.gather(*map(self._read_photo, batch))
            self._versions.update({photo.label for photo in batch})
            self._note_change()

    async def _read_photo(self, photo: Photo) -> None:
        """Read one photo; it has the limits of an upload."""
        try:
            if photo.size > self._options.upload_bytes:
                raise RequestError("image-large", f"larger than {self._options.upload_bytes:,} bytes")
            async with self._intake.uploads:
                data = await asyncio.to_thread(self.project.path_of(photo).read_bytes)
                image, _ = await self._intake.encode(data)
        except OSError:
            return  # it was moved or deleted: the next look at the folder sees it
        except RequestError as error:
            if error.status != 503:
                self._unreadable[photo.sha256] = error.message
            return
        await asyncio.to_thread(self._remember, photo.sha256, image)

    async def read_large(self, photo: Photo) -> bytes:
        """A JPEG of a photo that is large enough to be looked at."""
        async with self._intake.uploads:
            data = await asyncio.to_thread(self.project.path_of(photo).read_bytes)
            return (await self._intake.decode(data)).thumbnail

    async def _fit_when_quiet(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (pause := self._pause()) > 0:
                await asyncio.sleep(pause)
            if not self._is_fitted:
                await self._fit_once()

    def _pause(self) -> float:
        """Seconds to wait before the next fit may begin."""
        now = time.monotonic()
        quiet = QUIET_SECONDS if self._encoding else self._changed_at + QUIET_SECONDS - now
        if len(self._contents) < GROWTH * self._fitted_photos:
            return quiet
        patience = max(PATIENCE_SECONDS, PATIENCE_FITS * self._fit.seconds)
        return min(quiet, self._waiting_since + patience - now)

    async def refit(self) -> float:
        """Fit now; returns the seconds it took.

        Raises:
            RequestError: If it is not possible, or nothing has changed.
        """
        if self._is_fitted:
            raise RequestError("no-corrections", NO_CHANGE, "change a photo first")
        await self._fit_once()
        if self._fit.status == "impossible":
            raise RequestError("refit-impossible", self._fit.reason, "look at the classes")
        return self._fit.seconds

    async def _fit_once(self) -> None:
        """Fit on the photos as they are now."""
        async with self._fit_lock:
            photos, contents, project = self._learnable(), dict(self._contents), self.project
            self._fitted_photos = len(contents)
            if reason := await asyncio.to_thread(self._find_obstacle, photos):
                self.current, self.findings, self._fitted = None, ProjectFindings(), None
                self._fit = FitState("impossible", 0.0, None, reason)
                self.revision += 1
                return
            self._began, self._waiting_since = time.monotonic(), time.monotonic()
            self.revision += 1
            arguments = (project.root, project.model_folder, photos, contents, self._session, *self._backbone)
            try:
                loop = asyncio.get_running_loop()
                model = await loop.run_in_executor(self._fit_thread, fit_project, *arguments)
                seconds = time.monotonic() - self._began
                self._fit = FitState("done", round(seconds, 2), round(seconds, 2), "")
                await asyncio.to_thread(self._take_model, model, photos)
                self._fitted = _fit_key(photos)
            except UserError as error:
                self._fit = FitState("impossible", 0.0, None, "; ".join([error.problem, *error.details[:3]]))
            except Exception:
                log.exception("the fit failed")
                reason = "the fit failed by an error of the server; its log says more"
                self._fit = FitState("impossible", 0.0, None, reason)
            finally:
                self._began = None
                self.revision += 1
        if not self._is_fitted and self._fit.status == "done":  # photos have changed meanwhile
            self._fit = dataclasses.replace(self._fit, status="waiting")
            self._wake.set()

    def _find_obstacle(self, photos: Mapping[str, Sequence[Photo]]) -> str:
        """Why these photos cannot be fitted; "" if they can."""
        if not photos:
            return "there are no photos yet"
        if len(photos) < 2:
            return "photos of at least two classes are needed"
        folder = self.project.model_folder
        if other := find_other_model(folder, self._intake.encoder):
            return f"{other}; rename {folder.name}, and the page makes a new one"
        return ""


def _fit_key(photos: Mapping[str, Sequence[Photo]]) -> frozenset[tuple[str, str, str]]:
    """What a fit depends on."""
    return frozenset((label, photo.path, photo.sha256) for label, own in photos.items() for photo in own)
