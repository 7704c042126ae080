"""What many fits share: backbones, content hashes, decoded images and stored features."""

from __future__ import annotations

import copy
import logging
import os
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dca.backbones.encoder import Encoder
from dca.backbones.loading import load_encoder, split_names
from dca.backbones.pool import Pool
from dca.core.choices import DEFAULT_METHOD, Rules
from dca.core.device import compute_dtype, feature_dtype, resolve_device, split_device, start_gpu_libraries
from dca.core.errors import UserError
from dca.core.files import json_digest
from dca.core.parallel import map_in_order
from dca.core.progress import Progress, silent, stage_progress
from dca.core.text import format_long_duration
from dca.features.store import Features, FeatureStore
from dca.images.crops import BUDGET, LOW, DecodedImages
from dca.images.decode import (
    USUAL_PIXELS,
    AsStored,
    Decodable,
    ImageLike,
    StoredImage,
    Unreadable,
    decode_all,
    depends_on_limit,
    may_have_rotation,
    thumbnail_or_image,
    unreadable_error,
    unwrap,
    worker_count,
)
from dca.images.hashing import THUMB, group_copies, make_thumbnail, sha256_of
from dca.images.reading import ImageSummary, encode_jpeg, read_images
from dca.methods.base import Method
from dca.methods.registry import choose_encoder
from dca.training import features
from dca.training.features import CropCache
from dca.training.pipeline import Source

log = logging.getLogger(__name__)

# Seconds after which hashing shows its progress, and files that are hashed ahead.
SLOW, HASH_AHEAD = 0.5, 256
# Bytes of previews that are kept in memory, and of one of them, about.
PREVIEW_BYTES, PREVIEW_SIZE = 2**26, 3000
# Lists of images whose copies are remembered: those of a fit and of its folds.
MOST_GROUPED = 8


# Training that takes longer, in seconds, is announced.
LONG = 60.0
# The pace is known after this many steps and seconds; where steps are slow, after two steps PATIENCE seconds apart.
LEAST_STEPS, LEAST_SECONDS, PATIENCE = 3, 2.0, 10.0


class TimeNotice:
    """Says how long training will take and what is faster; at most once, however many fits share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.given = clock, False

    def start_timer(self, progress: Progress, fits: int = 1) -> PaceWatcher:
        """Watches the steps of one fit.

        progress: where it is silent, nothing is said. fits: fits of this length to come, this one included.
        """
        return PaceWatcher(self, fits, quiet=progress is silent)


class PaceWatcher:
    """Measures the steps of one fit until their pace is known; see `TimeNotice.start_timer`."""

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
        device: "auto", "cpu", "cuda", "cuda:1", "mps", ... Apple's GPU makes frozen features, and methods stay on the
            CPU: it has no float64.
        store: Where features of the frozen backbone are kept on disk; the user's cache by default.
        progress: Receives the progress of long work.
        keep_crops: Keep evaluation crops in memory, up to 2 GiB; for tests of many models on the same images.

    Raises:
        UserError: If the device cannot be used.

    Example:
        >>> from dca import Session
        >>> session = Session(device="cpu")
        >>> session.load_backbone("mini") is session.load_backbone("mini")
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
        self.device, self.feature_device = split_device(resolve_device(device))
        start_gpu_libraries(self.device)
        self.store: Features = store if store is not None else FeatureStore()
        self.progress = progress
        self.keep_crops = keep_crops
        self.upright = True
        self.time_notice = TimeNotice()
        self._backbones: dict[str, Encoder] = {}
        self._pools: dict[tuple[int, ...], Pool] = {}
        self._elsewhere: dict[tuple[str, str], Encoder] = {}
        self._hashes: dict[tuple[str, int, int], str] = {}
        self._in_memory: dict[int, tuple[weakref.ref[Image.Image], str]] = {}
        self._decoded: OrderedDict[str, DecodedImages] = OrderedDict()
        self._readable: set[str] = set()
        self._crops = CropCache()
        self._thumbnails: dict[str, NDArray[np.uint8]] = {}
        self._previews: dict[str, bytes] = {}
        self._rotated: dict[str, bool] = {}
        self._limited: dict[tuple[str, int | None], bool] = {}
        self._groups: OrderedDict[str, NDArray[np.int64]] = OrderedDict()

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

    def with_store(self, store: Features) -> Self:
        """The same session with other stored features.

        Args:
            store: Where features of the frozen backbone are kept.

        Returns:
            A session that shares everything else with this one.
        """
        other = copy.copy(self)
        other.store = store
        return other

    def for_dataset(self, public: str, rules: Rules) -> Self:
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

    def _decodable(self, images: Sequence[ImageLike]) -> Sequence[Decodable]:
        """The images as this session reads them, for functions that open them."""
        if self.upright:
            return images
        return [image if isinstance(image, StoredImage) else AsStored(image) for image in images]

    def load_backbone(
        self, source: str | Path | Encoder, precision: str = "auto", *, kind: type[Method] | None = None
    ) -> Encoder:
        """The frozen backbone on this session's device.

        Args:
            source: A short name, a hub id, a path, several of these with commas between them, "auto", or an encoder
                that is loaded already.
            precision: Compute type of its towers: "auto", "fp32" or "bf16". On a CPU with instructions for bfloat16,
                "auto" is bfloat16 for frozen features of full-size towers, and float32 for all else.
            kind: The method that it is for: of a pool that lacks what the method needs, the first member that has it.

        Returns:
            The backbone; calls with the same source share its weights.

        Raises:
            UserError: If there is no such backbone, it lacks what the method needs, or the precision is unknown.
        """
        if isinstance(source, Encoder):
            encoder = self._with_precision(source.to_device(self.device), precision)
        else:
            members = [self._with_precision(self._load_encoder(name), precision) for name in split_names(source)]
            encoder = self._pool(members)
        return encoder if kind is None else choose_encoder(kind, encoder)

    def _with_precision(self, encoder: Encoder, precision: str) -> Encoder:
        """The same weights in the compute types of a precision."""
        dtype, features = compute_dtype(self.device, precision), feature_dtype(self.device, precision)
        return encoder.with_dtype(dtype, features=features if encoder.is_full_size else dtype)

    def _load_encoder(self, name: str) -> Encoder:
        """One encoder, which is loaded once."""
        if name not in self._backbones:
            self.progress("backbone", 0, 1, name)
            self._backbones[name] = load_encoder(name).to_device(self.device)
            self.progress("backbone", 1, 1, name)
        return self._backbones[name]

    def _pool(self, members: Sequence[Encoder]) -> Encoder:
        """The pool of these encoders, the same for the same ones; one encoder is no pool."""
        if len(members) == 1:
            return members[0]
        key = tuple(map(id, members))
        if key not in self._pools:
            self._pools[key] = Pool(members)
        return self._pools[key]

    def hash_image(self, image: ImageLike) -> str:
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

    def hash_images(self, images: Sequence[ImageLike]) -> list[str]:
        """`hash_image` of many images, several files at a time.

        Args:
            images: N files or images in memory.

        Returns:
            N hashes.

        Raises:
            UserError: If a file cannot be read.
        """
        began = time.monotonic()
        new = [image for image in images if not self._is_hashed(image)]
        hashes = map_in_order(self.hash_image, new, workers=worker_count(), ahead=HASH_AHEAD, name="dca-hash")
        for done, _ in enumerate(hashes, 1):
            if time.monotonic() - began > SLOW:
                self.progress("hashing", done, len(new), "")
        return [self.hash_image(image) for image in images]

    def _is_hashed(self, image: ImageLike) -> bool:
        """Whether a file was hashed before as it is now; images in memory are hashed by `hash_image` alone."""
        return not isinstance(image, Path) or _file_key(image) in self._hashes

    def content_key(self, image: ImageLike) -> str:
        """What decides the pixels of an image as this session reads it, for keys of stored values.

        Args:
            image: A file or an image in memory.

        Returns:
            `hash_image`, or another 64 digits where an EXIF rotation may be left out, or where the image is refused or
            read at another size because of a limit on pixels that is not the usual one.

        Raises:
            UserError: If the file cannot be read.
        """
        return self._content_key_of(image, self.hash_image(image))

    def _content_key_of(self, image: ImageLike, sha256: str) -> str:
        """`content_key` of an image whose hash is known."""
        facts, limit = list[str](), Image.MAX_IMAGE_PIXELS
        if not self.upright:
            if sha256 not in self._rotated:
                self._rotated[sha256] = may_have_rotation(image)
            if self._rotated[sha256]:
                facts.append("as stored")
        if limit != USUAL_PIXELS:
            if (sha256, limit) not in self._limited:
                self._limited[sha256, limit] = depends_on_limit(image)
            if self._limited[sha256, limit]:
                facts.append(f"at most {limit} pixels")
        return json_digest([sha256, *facts]) if facts else sha256

    def content_keys(self, images: Sequence[ImageLike]) -> list[str]:
        """`content_key` of many images, several files at a time.

        Args:
            images: N files or images in memory.

        Returns:
            N keys.

        Raises:
            UserError: If a file cannot be read.
        """
        if self.upright and Image.MAX_IMAGE_PIXELS == USUAL_PIXELS:
            return self.hash_images(images)
        return list(map_in_order(self.content_key, images, workers=worker_count(), ahead=HASH_AHEAD, name="dca-hash"))

    def decode_images(self, images: Sequence[ImageLike], encoder: Encoder) -> DecodedImages:
        """Decoded training images; recently used sets stay in memory, up to the budget of one store.

        Args:
            images: The images.
            encoder: The backbone whose preprocessing and size are used.

        Returns:
            The images on this session's device.

        Raises:
            UserError: If images cannot be read; it names all of them.
        """
        key = json_digest([self.content_keys(images), encoder.preprocess.to_dict(), str(self.device)])
        if key not in self._decoded:
            count = stage_progress(self.progress, "reading")
            size, crop = encoder.preprocess.size, encoder.preprocess.crop
            made = DecodedImages(self._decodable(images), size, crop, progress=count)
            self._decoded[key] = made.to(self.device)
        self._decoded.move_to_end(key)
        while len(self._decoded) > 1 and sum(store.nbytes for store in self._decoded.values()) > BUDGET:
            self._decoded.popitem(last=False)
        return self._decoded[key]

    def crop_sources(self, images: Sequence[ImageLike], encoder: Encoder, *, cached: bool = True) -> list[Source]:
        """Where the evaluation crops of images come from: memory, where they are kept, or the images.

        Args:
            images: The images.
            encoder: The backbone whose preprocessing is used.
            cached: Look for crops in memory, by the hashes of the images; otherwise nothing is hashed.

        Returns:
            One source per image, for `pipeline.encode_batches`.

        Raises:
            UserError: If a file cannot be read.
        """
        if not cached:
            return [Source(image, encoder.preprocess.crop) for image in self._decodable(images)]
        return self._crops.crop_sources(self._decodable(images), self.content_keys(images), encoder.preprocess)

    def cache_crops(self, images: Sequence[ImageLike], crops: Sequence[Tensor | Unreadable], encoder: Encoder) -> None:
        """Keep the evaluation crops of images, if this session keeps crops and they fit into memory.

        Args:
            images: The images.
            crops: uint8 (1, 3, S, S) of each, or why it cannot be read.
            encoder: The backbone whose preprocessing was used.
        """
        if self.keep_crops and self._crops.reserve(len(images), encoder.preprocess):
            for content, crop in zip(self.content_keys(images), crops, strict=True):
                if isinstance(crop, Tensor):
                    self._crops.put(content, encoder.preprocess, crop)

    def read_ahead(self, images: Sequence[ImageLike], encoder: Encoder) -> None:
        """Decode images that will be asked for while a GPU trains; on a CPU, which trains with all cores, do nothing.

        Args:
            images: The images.
            encoder: The backbone whose preprocessing is used.

        Raises:
            UserError: If a file cannot be read.
        """
        if self.device.type == "cuda":
            self._crops.read_ahead(self._decodable(images), self.content_keys(images), encoder.preprocess)

    def thumbnails(self, images: Sequence[ImageLike]) -> NDArray[np.uint8]:
        """Images at 16 x 16 pixels, for finding near-copies; each content is decoded once per session.

        Args:
            images: N images.

        Returns:
            Pixels (N, 16, 16, 3).

        Raises:
            UserError: If images cannot be read; it names all of them.
        """
        contents = self.content_keys(images)
        new = {c: thumbnail_or_image(i) for c, i in zip(contents, images, strict=True) if c not in self._thumbnails}
        count = stage_progress(self.progress, "comparing")
        made = decode_all(self._decodable(list(new.values())), make_thumbnail, progress=count)
        self._thumbnails.update(zip(new, made, strict=True))
        found = np.empty((len(images), THUMB, THUMB, 3), dtype=np.uint8)
        for row, content in enumerate(contents):
            found[row] = self._thumbnails[content]
        return found

    def group_copies(self, images: Sequence[ImageLike], *, decode: bool = True) -> NDArray[np.int64]:
        """Group copies and near-copies; the parts of a fit that ask for the same images compare them once.

        Args:
            images: N images.
            decode: Decode images whose thumbnails are not kept. Without, only exact copies are grouped if one is
                missing.

        Returns:
            (N,) a number that copies share; copies of copies count as copies.

        Raises:
            UserError: If images cannot be read.
        """
        contents = self.content_keys(images)
        if not decode and not all(content in self._thumbnails for content in contents):
            return np.unique(contents, return_inverse=True)[1].astype(np.int64)
        key = json_digest(contents)
        groups = self._groups.get(key)
        if groups is None:
            groups = self._groups[key] = group_copies(contents, self.thumbnails(images))
            if len(self._groups) > MOST_GROUPED:
                self._groups.popitem(last=False)
        return groups

    def frozen_features(
        self,
        encoder: Encoder,
        images: Sequence[ImageLike],
        *,
        views: int = 0,
        mirrored: bool = False,
        crop_low: float = LOW,
        stage: str = "features",
    ) -> Tensor:
        """Features of the frozen backbone, not normalised, encoding only what is not stored.

        Args:
            encoder: The backbone.
            images: N images; a list, also of one.
            views: 0 for the evaluation view; otherwise that many augmented views of each image.
            mirrored: Flip the evaluation view left to right.
            crop_low: Smallest share of the image in an augmented view.
            stage: Name of this work in progress reports.

        Returns:
            Features (N, D), or (views · N, D) view after view, float32, on the CPU.

        Raises:
            UserError: If images cannot be read; it names all of them.
        """
        if not isinstance(encoder, Encoder):
            raise UserError(f"{encoder!r} is no loaded encoder", hint="session.load_backbone(name) loads one")
        if isinstance(images, str | bytes | os.PathLike):
            raise UserError(f"{images!r} is one image", hint="give a list, such as [image]")
        wanted = features.Views(range(views) if views else None, mirrored, crop_low)
        contents, count = self.content_keys(images), stage_progress(self.progress, stage)
        rows = [
            features.load_features(
                self.store,
                self._on_feature_device(member),
                self._decodable(images),
                contents,
                wanted,
                count,
                cache=self._crops,
                keep=self.keep_crops,
            )
            for member in encoder.members
        ]
        return encoder.join(rows) if isinstance(encoder, Pool) else rows[0]

    def _on_feature_device(self, encoder: Encoder) -> Encoder:
        """The encoder where frozen features are made; as it is, with a warning, where an operation has no route there.

        Encoders are tried on one image, once: what Apple's GPU lacks differs between versions of torch.
        """
        if self.feature_device == self.device or encoder.device != self.device:
            return encoder
        key = encoder.digest, encoder.precision
        if key not in self._elsewhere:
            self._elsewhere[key] = encoder
            size = encoder.preprocess.size
            try:
                moved = encoder.to_device(self.feature_device)
                moved.encode_image(torch.zeros(1, 3, size, size))
                self._elsewhere[key] = moved
            except (NotImplementedError, RuntimeError, TypeError) as error:
                log.warning(
                    "%s stays on the CPU: %s has no route for it (%s)", encoder.source, self.feature_device, error
                )
        return self._elsewhere[key]

    def encode_previews(self, images: Sequence[ImageLike]) -> list[bytes]:
        """Small JPEG files of images, to show them with a model.

        Args:
            images: N images.

        Returns:
            N files; those of images that were read are in memory, and a stored image has its own.

        Raises:
            UserError: If images cannot be read; it names all of them.
        """
        contents = self.content_keys(images)
        made = {c: image.thumbnail for c, image in zip(contents, images, strict=True) if isinstance(image, StoredImage)}
        known = self._previews | made
        missing = {c: image for c, image in zip(contents, images, strict=True) if c not in known}
        known |= zip(missing, decode_all(list(missing.values()), encode_jpeg), strict=True)
        return [known[content] for content in contents]

    def unreadable_images(
        self, encoder: Encoder, images: Sequence[ImageLike], *, summaries: bool = False
    ) -> list[Unreadable]:
        """Read images that were not read before, each once, and return those that cannot be read.

        What reading an image gives is kept: its hash, its evaluation crop, a thumbnail and a preview. An image whose
        features are stored is known to be readable and not decoded.

        Args:
            encoder: The backbone whose preprocessing makes the crops.
            images: The images.
            summaries: Thumbnails and previews will be wanted, so all images are decoded.

        Returns:
            One entry per image that cannot be read, with the reason.
        """
        todo = [image for image in images if not self._is_read(image, summaries)]
        keep = self._crops.reserve(len(todo), encoder.preprocess)
        count, faults = stage_progress(self.progress, "reading"), list[Unreadable]()
        known = partial(self._known_contents, encoder, summaries)
        outcomes = read_images(self._decodable(todo), encoder.preprocess.crop, known=known)
        for done, (image, outcome) in enumerate(zip(todo, outcomes, strict=True), 1):
            count(done, len(todo))
            if isinstance(outcome.summary, Unreadable):
                faults.append(outcome.summary)
            else:
                self._remember(image, outcome.sha256, outcome.summary, encoder, keep=keep)
        return faults

    def _is_read(self, image: ImageLike, summaries: bool) -> bool:
        """Whether what `unreadable_images` finds out about an image is known."""
        if isinstance(image, StoredImage):
            return False
        if isinstance(image, Path):
            try:
                sha256 = self._hashes.get(_file_key(image))
            except UserError:  # there is no such file, which reading it says better
                return False
        else:
            known = self._in_memory.get(id(image))
            sha256 = known[1] if known is not None and known[0]() is image else None
        if sha256 is None:
            return False
        return self._content_key_of(image, sha256) in (self._thumbnails if summaries else self._readable)

    def _known_contents(
        self, encoder: Encoder, summaries: bool, images: Sequence[Decodable], hashes: Sequence[str]
    ) -> set[str]:
        """The hashes of images that are known to be readable: they were read, or their features are stored.

        summaries: only of images that have no pixels to summarize.
        """
        wanted = dict[str, str]()
        for image, sha256 in zip(map(unwrap, images), hashes, strict=True):
            if sha256 and (isinstance(image, StoredImage) or not summaries):
                wanted[self._content_key_of(image, sha256)] = sha256
        found = self._readable.intersection(wanted) | features.find_stored_contents(self.store, encoder, list(wanted))
        return {wanted[key] for key in found}

    def _remember(
        self, image: ImageLike, sha256: str, summary: ImageSummary | None, encoder: Encoder, *, keep: bool
    ) -> None:
        """Keep what reading an image has given."""
        if isinstance(image, Path):
            self._hashes[_file_key(image)] = sha256
        elif isinstance(image, Image.Image):
            self._in_memory[id(image)] = (weakref.ref(image, partial(self._in_memory.pop, id(image))), sha256)
        content = self._content_key_of(image, sha256)
        self._readable.add(content)
        if summary is None:
            return
        self._thumbnails[content] = summary.thumbnail
        if len(self._previews) * PREVIEW_SIZE < PREVIEW_BYTES:
            self._previews[content] = summary.preview
        if keep:
            self._crops.put(content, encoder.preprocess, torch.from_numpy(summary.crop))

    def require_readable(self, encoder: Encoder, images: Sequence[ImageLike], *, summaries: bool = False) -> None:
        """Read images once, so that unreadable ones are reported before training.

        Args:
            encoder: The backbone whose preprocessing makes the crops.
            images: The images.
            summaries: As for `unreadable_images`.

        Raises:
            UserError: If images cannot be read; it names all of them.
        """
        if faults := self.unreadable_images(encoder, images, summaries=summaries):
            raise unreadable_error(faults, len(images))


def _file_key(path: Path) -> tuple[str, int, int]:
    """Path, size and time of a file: while they are the same, so is its content."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    return str(path), found.st_size, found.st_mtime_ns
