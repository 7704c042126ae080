"""Checking a public dataset: what is missing or different, and what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from dca.core.actions import Audience, Hint, render
from dca.core.errors import UserError
from dca.core.wording import counted
from dca.data.dataset import Dataset, Item
from dca.data.decode import Unreadable
from dca.data.decode_many import Count, attempt
from dca.data.sources.entry import Entry
from dca.data.splits import few_shot

Level = Literal["blocker", "warning", "note"]
PARTS = ("train", "val", "test")
SHOTS = (1, 2, 4, 8, 16)
SEEDS = (1, 2, 3)
MOST_EXAMPLES = 5


@dataclass(frozen=True)
class Finding:
    """One kind of problem: how bad, how often, where, and what to do."""

    level: Level
    what: str
    count: int = 1
    examples: tuple[str, ...] = ()
    advice: Hint = ""


@dataclass(frozen=True)
class Report:
    """All findings about one dataset; `facts` are its counts, ready for JSON."""

    name: str
    place: str
    facts: dict[str, object]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether training can start."""
        return not any(finding.level == "blocker" for finding in self.findings)

    def describe(self, audience: Audience = "python") -> dict[str, object]:
        """The report, ready for JSON; advice in the words of `audience`."""
        worded = [{**asdict(finding), "advice": render(finding.advice, audience)} for finding in self.findings]
        return {**asdict(self), "findings": worded, "ok": self.ok}


def check_public(entry: Entry, folder: Path, *, open_images: bool = False, progress: Count | None = None) -> Report:
    """Compare a folder with what the catalog knows: files, counts per split, class names.

    open_images: also open every image that is there.
    """
    try:
        dataset = entry.build(folder)
    except UserError as error:
        facts: dict[str, object] = {"official": _official(entry), "layout": _layout(entry)}
        return Report(entry.name, str(folder), facts, (from_error(error),))
    there = {part: [is_there(item) for item in getattr(dataset, part)] for part in PARTS}
    draws = _complete_draws(dataset, there)
    facts = {
        "official": _official(entry),
        "listed": dataset.counts(),
        "present": {part: sum(found) for part, found in there.items()},
        "whole_parts": [part for part, found in there.items() if found and all(found)],
        "classes": len(dataset.names),
        "split": dataset.split,
        "layout": _layout(entry),
        "complete_draws": draws,
    }
    findings = [
        *_missing_images(dataset, there, draws),
        *_wrong_counts(entry, dataset),
        *_wrong_classes(entry, dataset),
        *_empty_classes(entry, dataset),
    ]
    if "not the public split" in dataset.split:
        findings.append(Finding("warning", f"the split is {dataset.split}: numbers will not compare with papers"))
    if open_images:
        present = [item for part in PARTS for item, yes in zip(getattr(dataset, part), there[part], strict=True) if yes]
        outcomes = attempt([item.image for item in present], lambda image: None, progress=progress)
        findings += unreadable_finding(outcomes, dataset)
    return Report(entry.name, str(folder), facts, tuple(findings))


def from_error(error: UserError) -> Finding:
    """A problem because of which the dataset cannot be read at all."""
    return Finding("blocker", error.problem, max(1, len(error.details)), error.details[:20], error.steps)


def unreadable_finding(outcomes: Iterable[object], dataset: Dataset) -> list[Finding]:
    """The images that cannot be opened, with the reason for each."""
    faults = [fault for fault in outcomes if isinstance(fault, Unreadable)]
    if not faults:
        return []
    lines = tuple(f"{dataset.path_of(Item(f.image, 0))}: {f.reason}" for f in faults)
    what = f"{counted(len(faults), 'image')} cannot be read"
    return [Finding("blocker", what, len(faults), lines[:20], "replace or remove these files")]


def is_there(item: Item) -> bool:
    """Whether an item's file exists (an image in memory always does)."""
    return not isinstance(item.image, Path) or item.image.is_file()


def _official(entry: Entry) -> dict[str, int]:
    return dict(zip(PARTS, entry.sizes, strict=True))


def _layout(entry: Entry) -> list[str]:
    """Files and folders that the data root should hold."""
    return [f"{entry.folder}/{line}" for line in entry.layout.tree()]


def _complete_draws(dataset: Dataset, there: dict[str, list[bool]]) -> list[str]:
    """The usual draws (K = 1 to 16, seeds 1 to 3) of which every image exists."""
    present = {
        id(i) for part in ("train", "val") for i, yes in zip(getattr(dataset, part), there[part], strict=True) if yes
    }
    complete = []
    for shots in SHOTS:
        for seed in SEEDS:
            drawn = few_shot(dataset, shots, seed)
            if drawn.train and all(id(item) in present for item in drawn.train + drawn.val):
                complete.append(f"shot_{shots}-seed_{seed}")
    return complete


def _missing_images(dataset: Dataset, there: dict[str, list[bool]], draws: Sequence[str]) -> list[Finding]:
    findings = []
    for part in PARTS:
        items: Sequence[Item] = getattr(dataset, part)
        gone = [dataset.path_of(item) for item, yes in zip(items, there[part], strict=True) if not yes]
        if not gone:
            continue
        what = f"{counted(len(gone), f'{part} image', 'are', of=len(items))} missing"
        harmless = part != "test" and len(draws) == len(SHOTS) * len(SEEDS)
        level: Level = "warning" if harmless else "blocker"
        advice = _ENOUGH if harmless else _NOT_ENOUGH
        findings.append(Finding(level, what, len(gone), tuple(gone[:MOST_EXAMPLES]), advice))
    return findings


_ENOUGH = (
    "every image that the public draws (K = 1, 2, 4, 8, 16; seeds 1, 2, 3) take is here; other draws, "
    "and training on all images, need the rest"
)
_NOT_ENOUGH = "copy the missing files into place, or check that the images are where the split expects them"


def _wrong_counts(entry: Entry, dataset: Dataset) -> list[Finding]:
    """Parts whose list differs from the official size."""
    wrong = [
        f"{part}: {len(getattr(dataset, part)):,} listed, {official:,} official"
        for part, official in zip(PARTS, entry.sizes, strict=True)
        if len(getattr(dataset, part)) != official
    ]
    if not wrong:
        return []
    wrong += _uneven(entry, dataset)
    advice = f"this is not the official split of {entry.title}; accuracies will not compare with papers"
    return [Finding("warning", "the split sizes differ from the official ones", len(wrong), tuple(wrong), advice)]


def _uneven(entry: Entry, dataset: Dataset) -> list[str]:
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


def _wrong_classes(entry: Entry, dataset: Dataset) -> list[Finding]:
    official = [words for _, words in entry.class_list()]
    if not official or tuple(official) == dataset.names:
        return []
    wrong = [
        f"label {y}: '{a}', expected '{b}'"
        for y, (a, b) in enumerate(zip(dataset.names, official, strict=False))
        if a != b
    ]
    if len(dataset.names) != len(official):
        wrong.append(f"{counted(len(dataset.names), 'class')}, expected {len(official)}")
    advice = "class names decide the prompts; take the official split file"
    what = f"{counted(len(wrong), 'class', 'are')} wrong"
    return [Finding("blocker", what, len(wrong), tuple(wrong[:20]), advice)]


def _empty_classes(entry: Entry, dataset: Dataset) -> list[Finding]:
    """Classes that have no image in a part that should have some of every class."""
    findings = []
    titles = [f"{key} ({label})" for key, label in zip(dataset.keys or dataset.labels, dataset.labels, strict=True)]
    for part, official in zip(PARTS, entry.sizes, strict=True):
        have = Counter(item.label for item in getattr(dataset, part))
        empty = [title for y, title in enumerate(titles) if not have[y]]
        if official and empty:
            what = f"{counted(len(empty), 'class', 'have', of=len(dataset.names))} no {part} images"
            findings.append(Finding("blocker", what, len(empty), tuple(empty[:MOST_EXAMPLES]), "add their folders"))
    return findings
