"""Checking a folder of images: unreadable files, copies, leaks, label conflicts, names."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from dca.core.errors import UserError
from dca.core.wording import counted
from dca.data.check.public import Finding, Level, Report, from_error, unreadable_finding
from dca.data.class_names import NAMES, name_advice, odd_names
from dca.data.dataset import Dataset, Item
from dca.data.decode import Unreadable, is_image
from dca.data.decode_many import Count, attempt
from dca.data.hashing import THUMB, copy_pairs, sha256_of, thumbnail
from dca.data.sources.folder import boundary_of, load_folder, split_folders, unused_names
from dca.data.sources.walk import Boundary, class_folders, files, image_files, is_named_image, links_besides

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEW = 4
SMALL = 32
LONG = 4.0
MOST_EXAMPLES = 5


@dataclass(frozen=True)
class _Seen:
    """What is kept of a readable image."""

    size: tuple[int, int]
    thumb: NDArray[np.uint8]


@dataclass(frozen=True)
class _Placed:
    """An image with its part, to say where copies are."""

    part: str
    item: Item


def check_folder(path: str | Path, *, open_images: bool = True, progress: Count | None = None) -> Report:
    """Read a folder or list as `load_folder` does and look for problems.

    open_images: open every image; otherwise only names and counts are checked.
    """
    path = Path(path).expanduser()
    try:
        dataset = load_folder(path)
    except UserError as error:
        return Report(path.name, str(path), {}, (from_error(error),))
    return check_dataset(dataset, path, open_images=open_images, progress=progress)


def check_dataset(dataset: Dataset, path: Path, *, open_images: bool = True, progress: Count | None = None) -> Report:
    """Look for problems in a dataset that could be read."""
    placed = [_Placed(part, item) for part in ("train", "val", "test") for item in getattr(dataset, part)]
    findings = [*_few_images(dataset), *_names(dataset), *_unused_names(dataset), *_left_out(dataset, path)]
    if open_images:
        findings = [*_images(dataset, placed, progress), *findings]
    have = Counter(item.label for item in dataset.train)
    facts: dict[str, object] = {
        "classes": len(dataset.labels),
        **dataset.counts(),
        "fewest_per_class": min(have.values(), default=0),
        "most_per_class": max(have.values(), default=0),
        "split": dataset.split,
    }
    order = {"blocker": 0, "warning": 1, "note": 2}
    return Report(dataset.name, str(path), facts, tuple(sorted(findings, key=lambda f: order[f.level])))


def _images(dataset: Dataset, placed: Sequence[_Placed], progress: Count | None) -> list[Finding]:
    """Findings for which every image is opened."""
    outcomes = attempt([p.item.image for p in placed], _look, progress=progress)
    readable = [(p, seen) for p, seen in zip(placed, outcomes, strict=True) if not isinstance(seen, Unreadable)]
    findings = unreadable_finding(outcomes, dataset)
    findings += _copies(dataset, [p for p, _ in readable], [seen.thumb for _, seen in readable])
    for level, what, test, advice in _SHAPES:
        lines = [f"{dataset.path_of(p.item)}: {s.size[0]}x{s.size[1]}" for p, s in readable if test(s.size)]
        if lines:
            text = f"{counted(len(lines), 'image', 'are')} {what}"
            findings.append(Finding(level, text, len(lines), tuple(lines[:MOST_EXAMPLES]), advice))
    return findings


def _look(image: Image.Image) -> _Seen:
    return _Seen(image.size, thumbnail(image))


_SHAPES: tuple[tuple[Level, str, Callable[[tuple[int, int]], bool], str], ...] = (
    ("note", f"smaller than {SMALL} px", lambda s: min(s) < SMALL, "larger originals would help"),
    (
        "note",
        f"more than {LONG:.0f} times longer than wide",
        lambda s: max(s) > LONG * min(s),
        "only the middle of a long image is seen; crop it to the object",
    ),
)


def _copies(dataset: Dataset, placed: Sequence[_Placed], thumbs: Sequence[NDArray[np.uint8]]) -> list[Finding]:
    """Images that occur twice: in train and test, under two labels, or within a part."""
    content = [sha256_of(p.item.image) for p in placed]
    same, near = copy_pairs(content, np.stack(thumbs) if thumbs else np.empty((0, THUMB, THUMB, 3), np.uint8))
    findings = []
    for pairs, how in ((same, "the same file"), (near, "nearly the same image")):
        kinds: dict[str, list[str]] = defaultdict(list)
        for a, b in pairs:
            first, second = placed[a], placed[b]
            kind = "leak" if "test" in (first.part, second.part) and first.part != second.part else "copy"
            kind = "conflict" if first.item.label != second.item.label else kind
            kinds[kind].append(f"{dataset.path_of(first.item)} ~ {dataset.path_of(second.item)}")
        for kind, (level, noun, where, advice) in _COPIES.items():
            if lines := kinds[kind]:
                text = f"{counted(len(lines), noun, 'are')} {how} {where}"
                findings.append(Finding(level, text, len(lines), tuple(lines[:MOST_EXAMPLES]), advice))
    return findings


_COPIES: dict[str, tuple[Level, str, str, str]] = {
    "conflict": (
        "warning",
        "image pair",
        "under different labels",
        "keep each image in one class only",
    ),
    "leak": (
        "warning",
        "test image",
        "as a training or validation image",
        "remove them from one side: the test accuracy will look too good",
    ),
    "copy": ("note", "image pair", "within a part", "copies count as one image; remove one of each"),
}


def _few_images(dataset: Dataset) -> list[Finding]:
    have = Counter(item.label for item in dataset.train)
    few = [f"{dataset.labels[y]}: {counted(n, 'image')}" for y, n in sorted(have.items()) if n < FEW]
    if not few:
        return []
    what = f"{counted(len(few), 'class', 'have', of=len(dataset.labels))} fewer than {FEW} training images"
    return [
        Finding("warning", what, len(few), tuple(few[:MOST_EXAMPLES]), "a class covariance needs at least 2, better 8")
    ]


def _names(dataset: Dataset) -> list[Finding]:
    """Class names that CLIP probably does not know."""
    odd = odd_names(dataset)
    if not odd:
        return []
    text = f"{counted(len(odd), 'class name', 'are', of=len(dataset.names))} not words CLIP knows"
    lines = tuple(f"'{name}' ({reason})" for _, name, reason in odd[:MOST_EXAMPLES])
    return [Finding("warning", text, len(odd), lines, name_advice(odd[0][0]))]


def _unused_names(dataset: Dataset) -> list[Finding]:
    """Entries of classnames.json without a class: a warning if they are probably misspelled."""
    unused, misspelled = unused_names(dataset)
    if not unused:
        return []
    text = f"{counted(len(unused), 'name')} in {NAMES} without a class"
    advice = "spell them as the classes are spelled, or remove them"
    return [Finding("warning" if misspelled else "note", text, len(unused), tuple(unused[:MOST_EXAMPLES]), advice)]


def _left_out(dataset: Dataset, path: Path) -> list[Finding]:
    """Files and links in the folder that are not used."""
    if not path.is_dir():
        return []
    places = list(split_folders(path).values()) or [path]
    classes = [sub for place in places for sub in class_folders(place)]
    boundary = boundary_of(places)
    used = {item.image for part in (dataset.train, dataset.val, dataset.test) for item in part}
    others = [f for sub in classes for f in files(sub, boundary) if f not in used and not is_named_image(f)]
    stray = [file for file in image_files(path, boundary) if file not in used]
    return [
        *_not_regular(path, classes, boundary),
        *_links(path, places, classes, boundary),
        *_not_named(path, sorted(others)),
        *_listed(path, stray, "note", "{} in no class and not used", "image", "move them into a class folder"),
    ]


def _not_regular(path: Path, classes: Sequence[Path], boundary: Boundary) -> list[Finding]:
    """Pipes, sockets and devices in the class folders."""
    special = sorted(file for sub in classes for file in files(sub, boundary, "special"))
    text = "{} not used: not a regular file (a pipe, socket or device)"
    return _listed(path, special, "warning", text, "file", "replace them by image files, or remove them")


def _links(path: Path, places: Sequence[Path], classes: Sequence[Path], boundary: Boundary) -> list[Finding]:
    """Links to folders that are not followed."""
    links = set(links_besides(path, [*places, *classes]))
    links |= {link for place in places for link in links_besides(place, classes)}
    links |= {link for sub in classes for link in files(sub, boundary, "link")}
    text = "{} not followed: they lead to another class or to a folder above"
    return _listed(path, sorted(links), "warning", text, "link", "remove them, or link to folders outside the dataset")


def _listed(path: Path, found: Sequence[Path], level: Level, text: str, noun: str, advice: str) -> list[Finding]:
    """One finding about these paths, if there are any."""
    if not found:
        return []
    lines = tuple(str(file.relative_to(path)) for file in found[:MOST_EXAMPLES])
    return [Finding(level, text.format(counted(len(found), noun, "are")), len(found), lines, advice)]


def _not_named(path: Path, found: Sequence[Path]) -> list[Finding]:
    """Files in the class folders that are left out because of their names, images first."""
    if not found:
        return []
    images = [file for file in found if is_image(file)]
    rest = [file for file in found if file not in images]
    lines = [f"{file.relative_to(path)} (an image)" for file in images] + [str(f.relative_to(path)) for f in rest]
    text = f"{counted(len(found), 'file', 'are')} not used: no image by the end of the name"
    if images:
        advice = "give the images their file extension, e.g. .jpg"
        return [Finding("warning", text, len(found), tuple(lines[:MOST_EXAMPLES]), advice)]
    return [Finding("note", text, len(found), tuple(lines[:MOST_EXAMPLES]))]
