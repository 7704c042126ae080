"""Looking over anyone's own images: readability, copies, leaks, label conflicts, names."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from dca.core.errors import UserError, counted
from dca.data.check.public import Finding, Level, Report, from_error, unreadable_finding
from dca.data.dataset import Dataset, Item
from dca.data.decode import Progress, Unreadable, attempt
from dca.data.hashing import near_copies, sha256_of, thumbnail
from dca.data.sources.folder import NAMES, idle_names, image_files, load_folder, split_folders, unnamed_files

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEW = 4
SMALL = 32
LONG = 4.0
MOST_EXAMPLES = 5


@dataclass(frozen=True)
class _Seen:
    """What one pass over a readable picture keeps."""

    size: tuple[int, int]
    thumb: NDArray[np.uint8]


@dataclass(frozen=True)
class _Placed:
    """A picture with its part, for telling where copies lie."""

    part: str
    item: Item


def check_folder(path: str | Path, *, open_images: bool = True, progress: Progress | None = None) -> Report:
    """Read a folder or list as `load_folder` does and look for what will hurt.

    open_images: open every picture; without it only names and counts are looked at.
    """
    path = Path(path).expanduser()
    try:
        dataset = load_folder(path)
    except UserError as error:
        return Report(path.name, str(path), {}, (from_error(error),))
    return check_dataset(dataset, path, open_images=open_images, progress=progress)


def check_dataset(
    dataset: Dataset, path: Path, *, open_images: bool = True, progress: Progress | None = None
) -> Report:
    """Look over a dataset that could be read."""
    placed = [_Placed(part, item) for part in ("train", "val", "test") for item in getattr(dataset, part)]
    findings = [*_few_images(dataset), *_names(dataset), *_idle_names(dataset), *_strays(dataset, path)]
    if open_images:
        findings = [*_pictures(dataset, placed, progress), *findings]
    have = Counter(item.label for item in dataset.train)
    facts: dict[str, object] = {
        "classes": len(dataset.classes),
        **dataset.counts(),
        "fewest_per_class": min(have.values()),
        "most_per_class": max(have.values()),
        "split": dataset.split,
    }
    order = {"blocker": 0, "warning": 1, "note": 2}
    return Report(dataset.name, str(path), facts, tuple(sorted(findings, key=lambda f: order[f.level])))


def _pictures(dataset: Dataset, placed: Sequence[_Placed], progress: Progress | None) -> list[Finding]:
    """Findings that need every picture opened."""
    outcomes = attempt([p.item.picture for p in placed], _look, progress=progress)
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
    """Pictures that are there twice: across train and test, under two labels, or merely repeated."""
    content = [sha256_of(p.item.picture) for p in placed]
    exact: dict[str, list[int]] = defaultdict(list)
    for position, digest in enumerate(content):
        exact[digest].append(position)
    same = [(group[0], other) for group in exact.values() for other in group[1:]]
    near = sorted(near_copies(np.stack(thumbs))) if thumbs else []
    near = [(a, b) for a, b in near if content[a] != content[b]]
    findings = []
    for pairs, how in ((same, "the same file"), (near, "nearly the same picture")):
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
        "keep each picture in one class only",
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
    few = [f"{dataset.keys[y]}: {counted(n, 'image')}" for y, n in sorted(have.items()) if n < FEW]
    if not few:
        return []
    what = f"{counted(len(few), 'class', 'have', of=len(dataset.classes))} fewer than {FEW} training images"
    return [
        Finding("warning", what, len(few), tuple(few[:MOST_EXAMPLES]), "a class covariance needs at least 2, better 8")
    ]


def _names(dataset: Dataset) -> list[Finding]:
    """Class names that CLIP has not read about."""
    keyed = zip(dataset.keys or dataset.classes, dataset.classes, strict=True)
    odd = [(key, name, reason) for key, name in keyed if (reason := odd_name(name))]
    if not odd:
        return []
    example = json.dumps({odd[0][0]: "bike rack"}, ensure_ascii=False)
    advice = f"say what it is in English in {NAMES}, e.g. {example}"
    text = f"{counted(len(odd), 'class name', 'are', of=len(dataset.classes))} not words CLIP knows"
    lines = tuple(f"'{name}' ({reason})" for _, name, reason in odd[:MOST_EXAMPLES])
    return [Finding("warning", text, len(odd), lines, advice)]


def _idle_names(dataset: Dataset) -> list[Finding]:
    """Entries of classnames.json that change nothing: slips, unless every class has an entry of its own."""
    idle, slips = idle_names(dataset)
    if not idle:
        return []
    text = f"{counted(len(idle), 'name')} in {NAMES} without a class"
    advice = "spell them as the classes are spelled, or remove them"
    return [Finding("warning" if slips else "note", text, len(idle), tuple(idle[:MOST_EXAMPLES]), advice)]


def odd_name(name: str) -> str:
    """Why CLIP will not understand a class name; empty if it should.

    >>> odd_name("n01440764"), odd_name("bkr"), odd_name("sea lake"), odd_name("737-800")
    ('a code', 'not a word', '', '')
    """
    words = re.findall(r"[^\W\d_]+", name)
    letters = "".join(words)
    if not letters:
        # Aircraft are called 737-800; a bare number is most likely a label.
        return "" if re.fullmatch(r"\d+-\d+", name) else "a number"
    if not letters.isascii() and not any(word.isascii() and len(word) > 2 for word in words):
        return "" if _latin(letters) else "not in Latin letters; CLIP reads English"
    if re.fullmatch(r"(class|label|category|cat|folder|group|type|c|id)[ -]*\d+", name, re.IGNORECASE):
        return "a number, not a name"
    if re.fullmatch(r"[a-z]{1,3}[ -]?\d{4,}\w*", name, re.IGNORECASE):
        return "a code"
    if len(letters) == 1 and not re.search(r"\d{3}", name):
        return "one letter"
    if len(words) == 1 and letters.islower() and not re.search(r"[aeiouyåäöüéè]", letters):
        return "not a word"
    return ""


def _latin(letters: str) -> bool:
    return all(ord(letter) < 0x250 for letter in letters)


def _strays(dataset: Dataset, path: Path) -> list[Finding]:
    """Files that look as if they should be used and are not."""
    if not path.is_dir():
        return []
    taken = {item.picture for part in (dataset.train, dataset.val, dataset.test) for item in part}
    loose = [str(file.relative_to(path)) for file in image_files(path) if file not in taken]
    places = list(split_folders(path).values()) or [path]
    findings = _unnamed(path, [file for place in places for file in unnamed_files(place) if file not in taken])
    if not loose:
        return findings
    text = f"{counted(len(loose), 'image', 'are')} in no class and not used"
    return [*findings, Finding("note", text, len(loose), tuple(loose[:MOST_EXAMPLES]), "move them into a class folder")]


def _unnamed(path: Path, files: Sequence[Path]) -> list[Finding]:
    """Files in the class folders that are left out for their names, pictures first."""
    if not files:
        return []
    pictures = [file for file in files if _is_picture(file)]
    rest = [file for file in files if file not in pictures]
    lines = [f"{file.relative_to(path)} (a picture)" for file in pictures] + [str(f.relative_to(path)) for f in rest]
    text = f"{counted(len(files), 'file', 'are')} not used: no image by the ending of the name"
    if pictures:
        advice = "give the pictures their ending, e.g. .jpg"
        return [Finding("warning", text, len(files), tuple(lines[:MOST_EXAMPLES]), advice)]
    return [Finding("note", text, len(files), tuple(lines[:MOST_EXAMPLES]))]


def _is_picture(file: Path) -> bool:
    """Whether a file begins like a picture, whatever it is called."""
    try:
        with Image.open(file):
            return True
    except Exception:  # whatever a decoder does with bytes that are no picture
        return False
