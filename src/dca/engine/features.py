"""Features of the frozen backbone, stored per image and view.

A feature belongs to an image's content and a view of it, not to a run: runs with other seeds, folds, shots and
methods share it; an image that is read without its EXIF rotation is another content. View "evaluation" is the
backbone's own crop; augmented view v of an image is one random crop, drawn from a stream that only the image's content
and v decide, with the smallest share of the image in its key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
from PIL import Image
from torch import Tensor

from dca.clip import CLIP
from dca.data.augment import LOW
from dca.data.dataset import ImageLike
from dca.data.decode import Count, Unreadable, in_order, unreadable
from dca.data.feature_store import Features
from dca.data.image_store import view_crops

# Images that pass the tower at once, and images decoded ahead of it.
BATCH, AHEAD = 128, 256


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

    def crops(self, image: Image.Image, clip: CLIP, content: str, places: Sequence[int]) -> Tensor:
        """The views at `places` of an opened image: uint8 (V, 3, S, S)."""
        if self.numbers is None:
            crops = torch.from_numpy(clip.preprocess.crop(image))[None]
        else:
            numbers = [self.numbers[place] for place in places]
            crops = view_crops(image, clip.preprocess.size, numbers, content, self.crop_low)
        return crops.flip(-1) if self.mirrored else crops


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
) -> Tensor:
    """Features (V · N, D) of V views of N images, view after view; what the store lacks is computed and stored.

    contents: the content key of each image, `Session.contents`. count: called with the images done and their total.
    upright: apply EXIF rotations.
    """
    keys = [key for content in contents for key in views.keys(content)]
    rows = store.rows(facts_of(clip), keys, partial(_missing, clip, images, contents, views, count, upright))
    if not images:
        return torch.zeros(0, clip.config.embed_dim)
    return rows.view(len(images), len(views), -1).transpose(0, 1).flatten(0, 1)


def known(store: Features, clip: CLIP, contents: Sequence[str]) -> set[str]:
    """The contents of which the evaluation view or the first augmented view is stored."""
    found = set()
    for views in (Views(), Views(range(1))):
        keys = {views.keys(content)[0]: content for content in contents}
        found |= {keys[key] for key in store.known(facts_of(clip), list(keys))}
    return found


@torch.no_grad()
def _missing(
    clip: CLIP,
    images: Sequence[ImageLike],
    contents: Sequence[str],
    views: Views,
    count: Count,
    upright: bool,
    places: Sequence[int],
) -> Iterator[Tensor]:
    """Features at these places of the N · V views, image after image, in batches; every image is opened once."""
    wanted = [(n, [place % len(views) for place in own]) for n, own in groupby(places, lambda p: p // len(views))]
    wanted_images = [images[n] for n, _ in wanted]
    functions = [partial(_crops, clip, contents[n], views, numbers) for n, numbers in wanted]
    for crops in _batches(wanted_images, functions, count, upright):
        yield clip.encode_image(clip.preprocess.normalize(crops.to(clip.device, non_blocking=True))).cpu()


def _crops(clip: CLIP, content: str, views: Views, places: Sequence[int], image: Image.Image) -> Tensor:
    return views.crops(image, clip, content, places)


def _batches(
    images: Sequence[ImageLike], functions: Sequence[Callable[[Image.Image], Tensor]], count: Count, upright: bool
) -> Iterator[Tensor]:
    """Crops of all images in batches; one error names every image that cannot be read, after all were tried."""
    faults: list[Unreadable] = []
    waiting: list[Tensor] = []
    opened = in_order(images, functions, workers=None, ahead=AHEAD, upright=upright)
    for done, outcome in enumerate(opened, 1):
        count(done, len(images))
        if isinstance(outcome, Unreadable):
            faults.append(outcome)
            continue
        waiting.append(outcome)
        if not faults and sum(map(len, waiting)) >= BATCH:
            yield torch.cat(waiting)
            waiting = []
    if faults:
        raise unreadable(faults, len(images))
    if waiting:
        yield torch.cat(waiting)
