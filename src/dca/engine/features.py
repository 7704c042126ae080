"""Features of the frozen backbone, stored per image and view.

A feature belongs to an image's content and a view of it, not to a run: runs with other seeds, folds, shots and
methods share it; an image that is read without its EXIF rotation is another content. View "evaluation" is the
backbone's own crop; augmented view v of an image is one random crop, drawn from a stream that only the image's content
and v decide, with the smallest share of the image in its key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
from PIL import Image
from torch import Tensor

from dca.clip import CLIP
from dca.data.augment import LOW
from dca.data.dataset import ImageLike
from dca.data.decode import Unreadable
from dca.data.decode_many import Count, in_order
from dca.data.feature_store import Features
from dca.data.image_store import in_batches, view_crops
from dca.engine.kept_crops import AHEAD, KeptCrops
from dca.methods.recipe import VIEW_CROP_LOW

# Ranges of the augmented views that methods ask for by default.
CROPS = (LOW, VIEW_CROP_LOW)
# Images that pass the tower at once: the least number, and on a GPU the most and the pixels of all together. A GPU
# encodes a small image faster than a batch is prepared and its result is fetched, so small images come in many.
BATCH, MOST_ON_GPU, PIXELS_ON_GPU = 128, 1024, 128 * 224**2


def batch_size(clip: CLIP) -> int:
    """Images that pass the image tower at once.

    >>> batch_size(CLIP.from_pretrained("mini"))
    128
    """
    if clip.device.type == "cpu":
        return BATCH
    return max(BATCH, min(PIXELS_ON_GPU // clip.preprocess.size**2, MOST_ON_GPU))


@dataclass(frozen=True)
class Views:
    """Which views of every image are encoded.

    numbers: of augmented views; None for the evaluation view. mirrored: flip the views left to right. crop_low:
    smallest share of the image in an augmented view.
    """

    numbers: range | None = None
    mirrored: bool = False
    crop_low: float = LOW

    def __len__(self) -> int:
        return 1 if self.numbers is None else len(self.numbers)

    def keys(self, content: str) -> list[str]:
        """One key of 64 hexadecimal digits per view of the image with this content hash."""
        if self.numbers is None:
            return [_key(content, "mirrored")] if self.mirrored else [content]
        kind = "mirrored view" if self.mirrored else "view"
        # Without a word about the usual range: features that were stored before it could be chosen stay valid.
        crop = "" if self.crop_low == LOW else f" from {self.crop_low!r}"
        return [_key(content, f"{kind} {number}{crop}") for number in self.numbers]

    def crops(self, size: int, content: str, places: Sequence[int], image: Image.Image) -> Tensor:
        """The augmented views at `places` of an opened image, not mirrored: uint8 (V, 3, size, size)."""
        assert self.numbers is not None
        return view_crops(image, size, [self.numbers[place] for place in places], content, self.crop_low)


def _key(content: str, view: str) -> str:
    return hashlib.sha256(f"{content} {view}".encode()).hexdigest()


def facts_of(clip: CLIP) -> dict[str, object]:
    """The facts that decide the features of an image; `display` is for lists of the store and decides nothing."""
    return {"backbone": clip.digest, "precision": str(clip.dtype), "display": {"source": clip.source}}


def load(
    store: Features,
    clip: CLIP,
    images: Sequence[ImageLike],
    contents: Sequence[str],
    views: Views,
    count: Count,
    *,
    upright: bool = True,
    kept: KeptCrops | None = None,
    keep: bool = False,
) -> Tensor:
    """Features (V · N, D) of V views of N images, view after view; what the store lacks is computed and stored.

    contents: the content key of each image, `Session.contents`. count: called with the images done and their total.
    upright: apply EXIF rotations. kept: evaluation crops in memory. keep: put those that are made now there.
    """
    keys = [key for content in contents for key in views.keys(content)]
    source = _Source(clip, images, contents, views, count, upright, kept or KeptCrops(), keep)
    rows = store.rows(facts_of(clip), keys, source.missing)
    if not images:
        return torch.zeros(0, clip.config.embed_dim)
    return rows.view(len(images), len(views), -1).transpose(0, 1).flatten(0, 1)


def known(store: Features, clip: CLIP, contents: Sequence[str]) -> set[str]:
    """The contents of which the evaluation view or the first augmented view is stored."""
    found = set()
    for views in (Views(), *(Views(range(1), crop_low=low) for low in CROPS)):
        keys = {views.keys(content)[0]: content for content in contents}
        found |= {keys[key] for key in store.known(facts_of(clip), list(keys))}
    return found


@dataclass(frozen=True)
class _Source:
    """Where features come from that are not stored; the arguments of `load`."""

    clip: CLIP
    images: Sequence[ImageLike]
    contents: Sequence[str]
    views: Views
    count: Count
    upright: bool
    kept: KeptCrops
    keep: bool

    @torch.no_grad()
    def missing(self, places: Sequence[int]) -> Iterator[Tensor]:
        """Features at these places of the N · V views, image after image, in batches; every image is opened once."""
        views = len(self.views)
        wanted = [(n, [place % views for place in own]) for n, own in groupby(places, lambda p: p // views)]
        clip, pin = self.clip, self.clip.device.type == "cuda"
        for crops in in_batches(self._crops(wanted), len(wanted), batch_size(clip), self.count, pin=pin):
            yield clip.encode_image(clip.preprocess.normalize(crops.to(clip.device, non_blocking=True))).cpu()

    def _crops(self, wanted: Sequence[tuple[int, Sequence[int]]]) -> Iterator[Tensor | Unreadable]:
        """Crops (V, 3, S, S) of the wanted views of each wanted image, or why it cannot be read."""
        images, contents = [self.images[n] for n, _ in wanted], [self.contents[n] for n, _ in wanted]
        preprocess = self.clip.preprocess
        if self.views.numbers is None:
            opened = self.kept.of(images, contents, preprocess, upright=self.upright, keep=self.keep)
        else:
            pairs = zip(contents, wanted, strict=True)
            cut = [partial(self.views.crops, preprocess.size, content, numbers) for content, (_, numbers) in pairs]
            opened = in_order(images, cut, ahead=AHEAD, upright=self.upright)
        for crops in opened:
            mirrored = self.views.mirrored and isinstance(crops, Tensor)
            yield crops.flip(-1) if mirrored else crops  # type: ignore[union-attr]
