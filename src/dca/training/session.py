"""What many runs share: backbones, content hashes, decoded images and stored features."""

from __future__ import annotations

import copy
import logging
import os
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dca.backbones.clip import CLIP
from dca.core.choices import DEFAULT_METHOD, Rules
from dca.core.device import compute_dtype, resolve_device, start_gpu_libraries
from dca.core.errors import UserError
from dca.core.files import json_digest
from dca.core.progress import Progress, silent, stage_progress
from dca.core.text import format_long_duration
from dca.features.store import Features, FeatureStore
from dca.images.crops import BUDGET, LOW, DecodedImages
from dca.images.decode import (
    ImageLike,
    StoredImage,
    Unreadable,
    decode_all,
    may_have_rotation,
    thumbnail_or_image,
    unreadable_error,
)
from dca.images.hashing import THUMB, sha256_of, thumbnail
from dca.training import features
from dca.training.features import CropCache

log = logging.getLogger(__name__)

# Seconds after which hashing shows its progress.
SLOW = 0.5


# Training that takes longer, in seconds, is announced.
LONG = 60.0
# The pace is known after this many steps and seconds; where steps are slow, after two steps PATIENCE seconds apart.
LEAST_STEPS, LEAST_SECONDS, PATIENCE = 3, 2.0, 10.0


class TimeNotice:
    """Says how long training will take and what is faster; at most once, however many fits share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.given = clock, False

    def pace(self, progress: Progress, fits: int = 1) -> Pace:
        """Watches the steps of one fit.

        progress: where it is silent, nothing is said. fits: fits of this length to come, this one included.
        """
        return Pace(self, fits, quiet=progress is silent)


class Pace:
    """Measures the steps of one fit until their pace is known; see `TimeNotice.pace`."""

    def __init__(self, notice: TimeNotice, fits: int, *, quiet: bool) -> None:
        self._notice, self._fits, self._known = notice, fits, quiet
        self._began = notice.clock()
        self._first: tuple[int, float] | None = None

    def step(self, done: int, total: int) -> None:
        """Steps have ended. done, total: of the whole fit; done is negative for trial steps."""
        if self._known or self._notice.given:
            return
        now = self._notice.clock()
        if self._first is None:  # takes longer than the others, and may follow long preparations
            self._first = done, now
            return
        steps, since = done - self._first[0], now - self._first[1]
        if since < (LEAST_SECONDS if steps + 1 >= LEAST_STEPS else PATIENCE):
            return
        self._known = True
        left = since / steps * (total - done)
        expected = self._fits * (now - self._began + left)
        if expected > LONG:
            self._notice.given = True
            log.warning(
                "training will take about %s; %s, the default method, trains nothing and is much faster",
                format_long_duration(expected),
                DEFAULT_METHOD,
            )


class Session:
    """Shares backbones, hashes, decoded images and features between runs.

    A session is cheap to make. Runs that share one load a backbone once, read and hash each image file once
    while it does not change, and keep recently decoded training images in memory.

    Args:
        device: "auto", "cpu", "cuda", "cuda:1", ...
        store: Where features of the frozen backbone are kept on disk; the user's cache by default.
        progress: Receives the progress of long work.
        keep_crops: Keep evaluation crops in memory, up to 2 GiB; for tests of many models on the same images.

    Raises:
        UserError: If the device cannot be used.

    Example:
        >>> from dca import Session
        >>> session = Session(device="cpu")
        >>> session.backbone("mini") is session.backbone("mini")
        True
    """

    def __init__(
        self,
        *,
        device: str = "auto",
        store: Features | None = None,
        progress: Progress = silent,
        keep_crops: bool = False,
    ) -> None:
        self.device = resolve_device(device)
        start_gpu_libraries(self.device)
        self.store: Features = store if store is not None else FeatureStore()
        self.progress = progress
        self.keep_crops = keep_crops
        self.upright = True
        self.time_notice = TimeNotice()
        self._backbones: dict[str, CLIP] = {}
        self._hashes: dict[tuple[str, int, int], str] = {}
        self._in_memory: dict[int, tuple[weakref.ref[Image.Image], str]] = {}
        self._decoded: OrderedDict[str, DecodedImages] = OrderedDict()
        self._readable: set[str] = set()
        self._crops = CropCache()
        self._thumbnails: dict[str, NDArray[np.uint8]] = {}
        self._turning: dict[str, bool] = {}

    def with_progress(self, progress: Progress) -> Self:
        """The same session with another receiver of progress.

        Args:
            progress: Receives the progress of long work.

        Returns:
            A session that shares everything else with this one.
        """
        other = copy.copy(self)
        other.progress = progress
        return other

    def reading(self, public: str, rules: Rules) -> Self:
        """The same session for the images of one dataset, with or without their EXIF rotation.

        The official loaders of the public datasets ignore it, so those are read as they are stored where an
        experiment follows the papers. All other images are turned upright.

        Args:
            public: Name of the public dataset, or "".
            rules: "paper" or "strict".

        Returns:
            A session that shares everything else with this one.
        """
        other = copy.copy(self)
        other.upright = not (public and rules == "paper")
        return other

    def backbone(self, source: str | Path | CLIP, precision: str = "auto") -> CLIP:
        """The frozen backbone on this session's device.

        Args:
            source: A short name, a hub id, a path, or a CLIP that is loaded already.
            precision: Compute type of its towers: "auto", "fp32" or "bf16".

        Returns:
            The backbone; calls with the same source share its weights.

        Raises:
            UserError: If there is no such backbone, or the precision is unknown.
        """
        dtype = compute_dtype(self.device, precision)
        if isinstance(source, CLIP):
            return source.on(self.device).with_dtype(dtype)
        if str(source) not in self._backbones:
            self.progress("backbone", 0, 1, str(source))
            self._backbones[str(source)] = CLIP.from_pretrained(source).on(self.device)
            self.progress("backbone", 1, 1, str(source))
        clip = self._backbones[str(source)]
        return clip if clip.dtype == dtype else clip.with_dtype(dtype)

    def sha256(self, image: ImageLike) -> str:
        """Hash of an image's content, computed again only if the size or the time of a file has changed.

        Args:
            image: A file or an image in memory.

        Returns:
            64 hexadecimal digits.

        Raises:
            UserError: If the file cannot be read.
        """
        if isinstance(image, Path):
            key = _file_key(image)
            if key not in self._hashes:
                self._hashes[key] = sha256_of(image)
            return self._hashes[key]
        if isinstance(image, StoredImage):
            return image.sha256
        known = self._in_memory.get(id(image))
        if known is None or known[0]() is not image:
            forget = partial(self._in_memory.pop, id(image))  # called with the dead reference, the default of pop
            known = self._in_memory[id(image)] = (weakref.ref(image, forget), sha256_of(image))
        return known[1]

    def sha256_all(self, images: Sequence[ImageLike]) -> list[str]:
        """`sha256` of many images, several files at a time.

        Args:
            images: N files or images in memory.

        Returns:
            N hashes.

        Raises:
            UserError: If a file cannot be read.
        """
        began = time.monotonic()
        new = [image for image in images if not self._is_hashed(image)]
        with ThreadPoolExecutor() as pool:
            for done, _ in enumerate(pool.map(self.sha256, new), 1):
                if time.monotonic() - began > SLOW:
                    self.progress("hashing", done, len(new), "")
        return [self.sha256(image) for image in images]

    def _is_hashed(self, image: ImageLike) -> bool:
        """Whether a file was hashed before as it is now; images in memory are hashed by `sha256` alone."""
        return not isinstance(image, Path) or _file_key(image) in self._hashes

    def content(self, image: ImageLike) -> str:
        """What decides the pixels of an image as this session reads it, for keys of stored values.

        Args:
            image: A file or an image in memory.

        Returns:
            `sha256`, or another 64 digits where an EXIF rotation may be left out.

        Raises:
            UserError: If the file cannot be read.
        """
        key = self.sha256(image)
        if self.upright:
            return key
        if key not in self._turning:
            self._turning[key] = may_have_rotation(image)
        return json_digest([key, "as stored"]) if self._turning[key] else key

    def contents(self, images: Sequence[ImageLike]) -> list[str]:
        """`content` of many images, several files at a time.

        Args:
            images: N files or images in memory.

        Returns:
            N keys.

        Raises:
            UserError: If a file cannot be read.
        """
        if self.upright:
            return self.sha256_all(images)
        with ThreadPoolExecutor() as pool:
            return list(pool.map(self.content, images))

    def image_store(self, images: Sequence[ImageLike], clip: CLIP) -> DecodedImages:
        """Decoded training images; recently used sets stay in memory, up to the budget of one store.

        Args:
            images: The images.
            clip: The backbone whose preprocessing and size are used.

        Returns:
            The images on this session's device.

        Raises:
            UserError: If images cannot be read; it names all of them.
        """
        key = json_digest([self.contents(images), clip.preprocess.to_dict(), str(self.device)])
        if key not in self._decoded:
            count = stage_progress(self.progress, "reading")
            size, crop = clip.preprocess.size, clip.preprocess.crop
            made = DecodedImages(images, size, crop, progress=count, upright=self.upright)
            self._decoded[key] = made.to(self.device)
        self._decoded.move_to_end(key)
        while len(self._decoded) > 1 and sum(store.nbytes for store in self._decoded.values()) > BUDGET:
            self._decoded.popitem(last=False)
        return self._decoded[key]

    def crops(self, images: Sequence[ImageLike], clip: CLIP) -> Iterator[Tensor | Unreadable]:
        """Evaluation crops of images, from memory where they are kept.

        Args:
            images: The images.
            clip: The backbone whose preprocessing is used.

        Returns:
            Per image uint8 (1, 3, S, S), or why it cannot be read.

        Raises:
            UserError: If a file cannot be read.
        """
        contents = self.contents(images)
        return self._crops.of(images, contents, clip.preprocess, upright=self.upright, keep=self.keep_crops)

    def read_ahead(self, images: Sequence[ImageLike], clip: CLIP) -> None:
        """Decode images that will be asked for while a GPU trains; on a CPU, which trains with all cores, do nothing.

        Args:
            images: The images.
            clip: The backbone whose preprocessing is used.

        Raises:
            UserError: If a file cannot be read.
        """
        if self.device.type == "cuda":
            self._crops.read_ahead(images, self.contents(images), clip.preprocess, upright=self.upright)

    def thumbnails(self, images: Sequence[ImageLike]) -> NDArray[np.uint8]:
        """Images at 16 x 16 pixels, for finding near-copies; each content is decoded once per session.

        Args:
            images: N images.

        Returns:
            Pixels (N, 16, 16, 3).

        Raises:
            UserError: If images cannot be read; it names all of them.
        """
        contents = self.contents(images)
        new = {c: thumbnail_or_image(i) for c, i in zip(contents, images, strict=True) if c not in self._thumbnails}
        count = stage_progress(self.progress, "comparing")
        made = decode_all(list(new.values()), thumbnail, progress=count, upright=self.upright)
        self._thumbnails.update(zip(new, made, strict=True))
        found = np.empty((len(images), THUMB, THUMB, 3), dtype=np.uint8)
        for row, content in enumerate(contents):
            found[row] = self._thumbnails[content]
        return found

    def frozen_features(
        self,
        clip: CLIP,
        images: Sequence[ImageLike],
        *,
        views: int = 0,
        mirrored: bool = False,
        crop_low: float = LOW,
        stage: str = "features",
    ) -> Tensor:
        """Features of the frozen backbone, not normalised, encoding only what is not stored.

        Args:
            clip: The backbone.
            images: N images.
            views: 0 for the evaluation view; otherwise that many augmented views of each image.
            mirrored: Flip the evaluation view left to right.
            crop_low: Smallest share of the image in an augmented view.
            stage: Name of this work in progress reports.

        Returns:
            Features (N, D), or (views · N, D) view after view, float32, on the CPU.

        Raises:
            UserError: If images cannot be read; it names all of them.
        """
        wanted = features.Views(range(views) if views else None, mirrored, crop_low)
        contents, count = self.contents(images), stage_progress(self.progress, stage)
        return features.load_features(
            self.store,
            clip,
            images,
            contents,
            wanted,
            count,
            upright=self.upright,
            kept=self._crops,
            keep=self.keep_crops,
        )

    def unreadable_images(self, clip: CLIP, images: Sequence[ImageLike]) -> list[Unreadable]:
        """The images that cannot be read; those that were not opened before are opened.

        Args:
            clip: The backbone; an image with stored features is known to be readable.
            images: The images.

        Returns:
            One entry per image that cannot be read, with the reason.
        """
        contents = [self._hash_or_none(image) for image in images]
        known = self._readable | features.stored_contents(
            self.store, clip, [content for content in contents if content]
        )
        unknown = [(image, content) for image, content in zip(images, contents, strict=True) if content not in known]
        faults = [outcome for outcome in self._checked(clip, unknown) if isinstance(outcome, Unreadable)]
        if not faults:
            self._readable.update(content for content in contents if content)
        return faults

    def _checked(self, clip: CLIP, unknown: Sequence[tuple[ImageLike, str | None]]) -> Iterator[Tensor | Unreadable]:
        """Open images, with their hashes, and keep their crops, since they are checked in order to be used."""
        images = [image for image, _ in unknown]
        contents = [content or f"not hashed {n}" for n, (_, content) in enumerate(unknown)]
        count = stage_progress(self.progress, "checking")
        found = self._crops.of(images, contents, clip.preprocess, upright=True, keep=True)
        for done, outcome in enumerate(found, 1):
            count(done, len(images))
            yield outcome

    def require_readable(self, clip: CLIP, images: Sequence[ImageLike]) -> None:
        """Open images that were not opened before, so that unreadable ones are reported before training.

        Args:
            clip: The backbone; an image with stored features is known to be readable.
            images: The images.

        Raises:
            UserError: If images cannot be read; it names all of them.
        """
        if faults := self.unreadable_images(clip, images):
            raise unreadable_error(faults, len(images))

    def _hash_or_none(self, image: ImageLike) -> str | None:
        try:
            return self.sha256(image)
        except UserError:
            return None


def _file_key(path: Path) -> tuple[str, int, int]:
    """Path, size and time of a file: while they are the same, so is its content."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    return str(path), found.st_size, found.st_mtime_ns
