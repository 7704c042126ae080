"""Check data before training: public datasets, folders, lists and the sample.

For a public dataset: what is missing or differs from the official one. For anyone's own images: unreadable files,
copies, the same image in training and test, conflicting labels, class names that CLIP does not know, unused files.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from PIL import Image

from dca.core.errors import UserError
from dca.core.hints import Audience, Hint, render_hint
from dca.core.text import pluralize
from dca.datasets import catalog
from dca.datasets.catalog import NOT_THE_PUBLIC_SPLIT, CatalogEntry
from dca.datasets.classes import CLASS_NAMES_FILE, explain_renaming, find_odd_names, unused_names
from dca.datasets.dataset import Dataset, LabelledImage
from dca.datasets.draws import draw_few_shot
from dca.datasets.folder import class_link_filter, load_folder, split_folders
from dca.datasets.load import SAMPLE, find_dataset_folder, load_dataset
from dca.datasets.walk import LinkFilter, is_named_image, list_class_folders, list_files, list_images, list_links
from dca.images.decode import Count, Unreadable, is_image, try_decode_all
from dca.images.hashing import THUMB, find_copy_pairs, make_thumbnail, sha256_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

Level = Literal["blocker", "warning", "note"]
PARTS = ("train", "val", "test")
# The draws of published work: images per class, and seeds.
SHOTS = (1, 2, 4, 8, 16)
SEEDS = (1, 2, 3)
MOST_EXAMPLES = 5
# Training images per class, pixels of the shorter side, and ratio of the sides from which on nothing is noted.
FEW = 4
SMALL = 32
LONG = 4.0


@dataclass(frozen=True)
class Finding:
    """One kind of problem.

    Attributes:
        level: "blocker" (training cannot start), "warning" or "note".
        what: The problem, in one clause.
        count: How often it occurs.
        examples: The first places.
        advice: What to do.
    """

    level: Level
    what: str
    count: int = 1
    examples: tuple[str, ...] = ()
    advice: Hint = ""


@dataclass(frozen=True)
class CheckReport:
    """All findings about one dataset.

    Attributes:
        name: Name of the dataset.
        path: The folder or list that was checked.
        facts: Its counts, ready for JSON.
        findings: What was found.
    """

    name: str
    path: str
    facts: dict[str, object]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether training can start."""
        return not any(finding.level == "blocker" for finding in self.findings)

    def describe(self, audience: Audience = "python") -> dict[str, object]:
        """The report, ready for JSON; advice in the words of `audience`."""
        worded = [{**asdict(finding), "advice": render_hint(finding.advice, audience)} for finding in self.findings]
        return {**asdict(self), "findings": worded, "ok": self.ok}


def check_source(
    source: str | Path,
    root: str | Path | None = None,
    *,
    open_images: bool | None = None,
    progress: Count | None = None,
) -> CheckReport:
    """Check what `load_dataset` would load.

    Args:
        source, root: As for `load_dataset`.
        open_images: Whether to open every image; by default only those of folders and lists, not of public datasets.
        progress: Called with the number of images that were opened, and of all.

    Returns:
        The report; data that cannot be read at all is a finding in it.

    Raises:
        UserError: If there is no folder with a public dataset of this name.

    Example:
        >>> from dca.datasets.check import check_source
        >>> check_source("sample").ok
        True
    """
    path = Path(source).expanduser()
    entry = catalog.detect(path) if root is None and path.exists() else None
    if entry is None and not (root is None and path.exists()) and isinstance(source, str):
        entry = catalog.find(source)
        path = find_dataset_folder(entry, root) if entry is not None else path
    if entry is not None:
        return check_public(entry, path, open_images=bool(open_images), progress=progress)
    if str(source) == SAMPLE and not path.exists():
        return check_dataset(load_dataset(SAMPLE), path, open_images=open_images is not False, progress=progress)
    return check_folder(path, open_images=open_images is not False, progress=progress)


def check_public(
    entry: CatalogEntry, folder: Path, *, open_images: bool = False, progress: Count | None = None
) -> CheckReport:
    """Compare a folder with what the catalog knows: files, counts per split, class names.

    Args:
        entry: The public dataset.
        folder: Its folder.
        open_images: Also open every image that is there.
        progress: Called with the number of images that were opened, and of all.

    Returns:
        The report.
    """
    try:
        dataset = entry.load(folder)
    except UserError as error:
        facts: dict[str, object] = {"official": _official(entry), "layout": _layout(entry)}
        return CheckReport(entry.name, str(folder), facts, (_error_finding(error),))
    present = {part: [_exists(item) for item in getattr(dataset, part)] for part in PARTS}
    draws = _complete_draws(dataset, present)
    facts = {
        "official": _official(entry),
        "listed": dataset.counts(),
        "present": {part: sum(exist) for part, exist in present.items()},
        "whole_parts": [part for part, exist in present.items() if exist and all(exist)],
        "classes": len(dataset.names),
        "split": dataset.split,
        "layout": _layout(entry),
        "complete_draws": draws,
    }
    findings = [
        *_missing_images(dataset, present, draws),
        *_wrong_counts(entry, dataset),
        *_wrong_classes(entry, dataset),
        *_empty_classes(entry, dataset),
    ]
    if dataset.split.endswith(NOT_THE_PUBLIC_SPLIT):
        findings.append(Finding("warning", f"the split is {dataset.split}: numbers will not compare with papers"))
    if open_images:
        images = [
            item.image
            for part in PARTS
            for item, exists in zip(getattr(dataset, part), present[part], strict=True)
            if exists
        ]
        outcomes = try_decode_all(images, lambda image: None, progress=progress)
        findings += _unreadable_finding(outcomes, dataset)
    return CheckReport(entry.name, str(folder), facts, tuple(findings))


def check_folder(path: str | Path, *, open_images: bool = True, progress: Count | None = None) -> CheckReport:
    """Read a folder or list as `load_folder` does and look for problems.

    Args:
        path: The folder or list.
        open_images: Open every image; otherwise only names and counts are checked.
        progress: Called with the number of images that were opened, and of all.

    Returns:
        The report.
    """
    path = Path(path).expanduser()
    try:
        dataset = load_folder(path)
    except UserError as error:
        return CheckReport(path.name, str(path), {}, (_error_finding(error),))
    return check_dataset(dataset, path, open_images=open_images, progress=progress)


def check_dataset(
    dataset: Dataset, path: Path, *, open_images: bool = True, progress: Count | None = None
) -> CheckReport:
    """Look for problems in a dataset that could be read.

    Args:
        dataset: The dataset.
        path: Where it was read from.
        open_images, progress: As for `check_folder`.

    Returns:
        The report.
    """
    items = [_PartItem(part, item) for part in ("train", "val", "test") for item in getattr(dataset, part)]
    findings = [*_few_images(dataset), *_odd_names(dataset), *_unused_names(dataset), *_unused_files(dataset, path)]
    if open_images:
        findings = [*_images(dataset, items, progress), *findings]
    have = Counter(item.label for item in dataset.train)
    facts: dict[str, object] = {
        "classes": len(dataset.labels),
        **dataset.counts(),
        "fewest_per_class": min(have.values(), default=0),
        "most_per_class": max(have.values(), default=0),
        "split": dataset.split,
    }
    order = {"blocker": 0, "warning": 1, "note": 2}
    return CheckReport(dataset.name, str(path), facts, tuple(sorted(findings, key=lambda f: order[f.level])))


# Data that cannot be read


def _error_finding(error: UserError) -> Finding:
    """A problem because of which the dataset cannot be read at all."""
    return Finding("blocker", error.problem, max(1, len(error.details)), error.details[:20], error.hint_parts)


def _unreadable_finding(outcomes: Iterable[object], dataset: Dataset) -> list[Finding]:
    """The images that cannot be opened, with the reason for each."""
    faults = [fault for fault in outcomes if isinstance(fault, Unreadable)]
    if not faults:
        return []
    lines = tuple(f"{dataset.path_of(LabelledImage(f.image, 0))}: {f.reason}" for f in faults)
    what = f"{pluralize(len(faults), 'image')} cannot be read"
    return [Finding("blocker", what, len(faults), lines[:20], "replace or remove these files")]


# Public datasets


def _exists(item: LabelledImage) -> bool:
    """Whether an item's file exists (an image in memory always does)."""
    return not isinstance(item.image, Path) or item.image.is_file()


def _official(entry: CatalogEntry) -> dict[str, int]:
    return dict(zip(PARTS, entry.sizes, strict=True))


def _layout(entry: CatalogEntry) -> list[str]:
    """Files and folders that the data root should hold."""
    return [f"{entry.folder}/{line}" for line in entry.layout.expected_files()]


def _complete_draws(dataset: Dataset, present: dict[str, list[bool]]) -> list[str]:
    """The usual draws (K = 1 to 16, seeds 1 to 3) of which every image exists."""
    ids = {
        id(i) for part in ("train", "val") for i, yes in zip(getattr(dataset, part), present[part], strict=True) if yes
    }
    complete = []
    for shots in SHOTS:
        for seed in SEEDS:
            drawn = draw_few_shot(dataset, shots, seed)
            if drawn.train and all(id(item) in ids for item in drawn.train + drawn.val):
                complete.append(f"shot_{shots}-seed_{seed}")
    return complete


def _missing_images(dataset: Dataset, present: dict[str, list[bool]], draws: Sequence[str]) -> list[Finding]:
    findings = []
    for part in PARTS:
        items: Sequence[LabelledImage] = getattr(dataset, part)
        missing = [dataset.path_of(item) for item, yes in zip(items, present[part], strict=True) if not yes]
        if not missing:
            continue
        what = f"{pluralize(len(missing), f'{part} image', 'are', of=len(items))} missing"
        harmless = part != "test" and len(draws) == len(SHOTS) * len(SEEDS)
        level: Level = "warning" if harmless else "blocker"
        advice = _ENOUGH if harmless else _NOT_ENOUGH
        findings.append(Finding(level, what, len(missing), tuple(missing[:MOST_EXAMPLES]), advice))
    return findings


_ENOUGH = (
    "every image that the public draws (K = 1, 2, 4, 8, 16; seeds 1, 2, 3) take is here; other draws, "
    "and training on all images, need the rest"
)
_NOT_ENOUGH = "copy the missing files into place, or check that the images are where the split expects them"


def _wrong_counts(entry: CatalogEntry, dataset: Dataset) -> list[Finding]:
    """Parts whose list differs from the official size."""
    wrong = [
        f"{part}: {len(getattr(dataset, part)):,} listed, {official:,} official"
        for part, official in zip(PARTS, entry.sizes, strict=True)
        if len(getattr(dataset, part)) != official
    ]
    if not wrong:
        return []
    wrong += _list_classes_of_wrong_size(entry, dataset)
    advice = f"this is not the official split of {entry.title}; accuracies will not compare with papers"
    return [Finding("warning", "the split sizes differ from the official ones", len(wrong), tuple(wrong), advice)]


def _list_classes_of_wrong_size(entry: CatalogEntry, dataset: Dataset) -> list[str]:
    """The first classes whose test images are not as many as they should be."""
    if not entry.test_per_class:
        return []
    have = Counter(item.label for item in dataset.test)
    lines = [
        f"test, {key} ({words}): {have[y]} of {entry.test_per_class}"
        for y, (key, words) in enumerate(entry.class_list())
        if have[y] != entry.test_per_class
    ]
    return lines[:MOST_EXAMPLES]


def _wrong_classes(entry: CatalogEntry, dataset: Dataset) -> list[Finding]:
    official = [words for _, words in entry.class_list()]
    if not official or tuple(official) == dataset.names:
        return []
    wrong = [
        f"label {y}: '{a}', expected '{b}'"
        for y, (a, b) in enumerate(zip(dataset.names, official, strict=False))
        if a != b
    ]
    if len(dataset.names) != len(official):
        wrong.append(f"{pluralize(len(dataset.names), 'class')}, expected {len(official)}")
    advice = "class names decide the prompts; take the official split file"
    what = f"{pluralize(len(wrong), 'class', 'are')} wrong"
    return [Finding("blocker", what, len(wrong), tuple(wrong[:20]), advice)]


def _empty_classes(entry: CatalogEntry, dataset: Dataset) -> list[Finding]:
    """Classes that have no image in a part that should have some of every class."""
    findings = []
    titles = [f"{key} ({label})" for key, label in zip(dataset.keys or dataset.labels, dataset.labels, strict=True)]
    for part, official in zip(PARTS, entry.sizes, strict=True):
        have = Counter(item.label for item in getattr(dataset, part))
        empty = [title for y, title in enumerate(titles) if not have[y]]
        if official and empty:
            what = f"{pluralize(len(empty), 'class', 'have', of=len(dataset.names))} no {part} images"
            findings.append(Finding("blocker", what, len(empty), tuple(empty[:MOST_EXAMPLES]), "add their folders"))
    return findings


# Folders and lists


@dataclass(frozen=True)
class _ImageFacts:
    """What is kept of a readable image."""

    size: tuple[int, int]
    thumbnail: NDArray[np.uint8]


@dataclass(frozen=True)
class _PartItem:
    """An image with its part, to say where copies are."""

    part: str
    item: LabelledImage


def _images(dataset: Dataset, items: Sequence[_PartItem], progress: Count | None) -> list[Finding]:
    """Findings for which every image is opened."""
    outcomes = try_decode_all([p.item.image for p in items], _image_facts, progress=progress)
    readable = [(item, facts) for item, facts in zip(items, outcomes, strict=True) if not isinstance(facts, Unreadable)]
    findings = _unreadable_finding(outcomes, dataset)
    findings += _copies(dataset, [p for p, _ in readable], [facts.thumbnail for _, facts in readable])
    for level, what, test, advice in _SHAPES:
        lines = [f"{dataset.path_of(p.item)}: {s.size[0]}x{s.size[1]}" for p, s in readable if test(s.size)]
        if lines:
            text = f"{pluralize(len(lines), 'image', 'are')} {what}"
            findings.append(Finding(level, text, len(lines), tuple(lines[:MOST_EXAMPLES]), advice))
    return findings


def _image_facts(image: Image.Image) -> _ImageFacts:
    return _ImageFacts(image.size, make_thumbnail(image))


_SHAPES: tuple[tuple[Level, str, Callable[[tuple[int, int]], bool], str], ...] = (
    ("note", f"smaller than {SMALL} px", lambda s: min(s) < SMALL, "larger originals would help"),
    (
        "note",
        f"more than {LONG:.0f} times longer than wide",
        lambda s: max(s) > LONG * min(s),
        "only the middle of a long image is seen; crop it to the object",
    ),
)


def _copies(dataset: Dataset, items: Sequence[_PartItem], thumbs: Sequence[NDArray[np.uint8]]) -> list[Finding]:
    """Images that occur twice: in train and test, under two labels, or within a part."""
    content = [sha256_of(p.item.image) for p in items]
    same, near = find_copy_pairs(content, np.stack(thumbs) if thumbs else np.empty((0, THUMB, THUMB, 3), np.uint8))
    findings = []
    for pairs, how in ((same, "the same file"), (near, "nearly the same image")):
        kinds: dict[str, list[str]] = defaultdict(list)
        for a, b in pairs:
            first, second = items[a], items[b]
            kind = "leak" if "test" in (first.part, second.part) and first.part != second.part else "copy"
            kind = "conflict" if first.item.label != second.item.label else kind
            kinds[kind].append(f"{dataset.path_of(first.item)} ~ {dataset.path_of(second.item)}")
        for kind, (level, noun, where, advice) in _COPIES.items():
            if lines := kinds[kind]:
                text = f"{pluralize(len(lines), noun, 'are')} {how} {where}"
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
    few = [f"{dataset.labels[y]}: {pluralize(n, 'image')}" for y, n in sorted(have.items()) if n < FEW]
    if not few:
        return []
    what = f"{pluralize(len(few), 'class', 'have', of=len(dataset.labels))} fewer than {FEW} training images"
    return [
        Finding("warning", what, len(few), tuple(few[:MOST_EXAMPLES]), "a class covariance needs at least 2, better 8")
    ]


def _odd_names(dataset: Dataset) -> list[Finding]:
    """Class names that CLIP probably does not know."""
    odd = find_odd_names(dataset)
    if not odd:
        return []
    text = f"{pluralize(len(odd), 'class name', 'are', of=len(dataset.names))} not words CLIP knows"
    lines = tuple(f"'{name}' ({reason})" for _, name, reason in odd[:MOST_EXAMPLES])
    return [Finding("warning", text, len(odd), lines, explain_renaming(odd[0].label))]


def _unused_names(dataset: Dataset) -> list[Finding]:
    """Entries of classnames.json without a class: a warning if they are probably misspelled."""
    unused, misspelled = unused_names(dataset)
    if not unused:
        return []
    text = f"{pluralize(len(unused), 'name')} in {CLASS_NAMES_FILE} without a class"
    advice = "spell them as the classes are spelled, or remove them"
    return [Finding("warning" if misspelled else "note", text, len(unused), tuple(unused[:MOST_EXAMPLES]), advice)]


def _unused_files(dataset: Dataset, path: Path) -> list[Finding]:
    """Files and links in the folder that are not used."""
    if not path.is_dir():
        return []
    parts = list(split_folders(path).values()) or [path]
    classes = [sub for part in parts for sub in list_class_folders(part)]
    link_filter = class_link_filter(parts)
    used = {item.image for part in (dataset.train, dataset.val, dataset.test) for item in part}
    others = [f for sub in classes for f in list_files(sub, link_filter) if f not in used and not is_named_image(f)]
    stray = [file for file in list_images(path, link_filter) if file not in used]
    return [
        *_special_files(path, classes, link_filter),
        *_unfollowed_links(path, parts, classes, link_filter),
        *_unnamed_files(path, sorted(others)),
        *_path_finding(path, stray, "note", "{} in no class and not used", "image", "move them into a class folder"),
    ]


def _special_files(path: Path, classes: Sequence[Path], link_filter: LinkFilter) -> list[Finding]:
    """Pipes, sockets and devices in the class folders."""
    special = sorted(file for sub in classes for file in list_files(sub, link_filter, "special"))
    text = "{} not used: not a regular file (a pipe, socket or device)"
    return _path_finding(path, special, "warning", text, "file", "replace them by image files, or remove them")


def _unfollowed_links(
    path: Path, parts: Sequence[Path], classes: Sequence[Path], link_filter: LinkFilter
) -> list[Finding]:
    """Links to folders that are not followed."""
    links = set(list_links(path, [*parts, *classes]))
    links |= {link for part in parts for link in list_links(part, classes)}
    links |= {link for sub in classes for link in list_files(sub, link_filter, "link")}
    text = "{} not followed: they lead to another class or to a folder above"
    return _path_finding(
        path, sorted(links), "warning", text, "link", "remove them, or link to folders outside the dataset"
    )


def _path_finding(path: Path, files: Sequence[Path], level: Level, text: str, noun: str, advice: str) -> list[Finding]:
    """One finding about these files or folders, if there are any."""
    if not files:
        return []
    lines = tuple(str(file.relative_to(path)) for file in files[:MOST_EXAMPLES])
    return [Finding(level, text.format(pluralize(len(files), noun, "are")), len(files), lines, advice)]


def _unnamed_files(path: Path, files: Sequence[Path]) -> list[Finding]:
    """Files in the class folders that are left out because of their names, images first."""
    if not files:
        return []
    images = [file for file in files if is_image(file)]
    rest = [file for file in files if file not in images]
    lines = [f"{file.relative_to(path)} (an image)" for file in images] + [str(f.relative_to(path)) for f in rest]
    text = f"{pluralize(len(files), 'file', 'are')} not used: no image by the end of the name"
    if images:
        advice = "give the images their file extension, e.g. .jpg"
        return [Finding("warning", text, len(files), tuple(lines[:MOST_EXAMPLES]), advice)]
    return [Finding("note", text, len(files), tuple(lines[:MOST_EXAMPLES]))]
