"""Few-shot draws as small files, so that two people can verify that they trained on the same images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any

from dca.core.errors import UserError
from dca.core.files import write_bytes
from dca.core.hints import write_draw
from dca.core.text import normalize_name, pluralize
from dca.datasets.dataset import Dataset, Item
from dca.images.hashing import sha256_of

FORMAT = "dca-draw/1"
PARTS = ("train", "val")


@dataclass(frozen=True, slots=True)
class DrawnImage:
    """One drawn image: its recorded path, the name of its class and its content hash (empty if not known)."""

    path: str
    name: str
    sha256: str = ""


def draw_record(dataset: Dataset, shots: int | None, seed: int) -> dict[str, Any]:
    """What was drawn, ready for JSON, with one hash over classes and image contents in draw order.

    dataset: the few-shot dataset. The hash covers class names, not labels or paths, so that copies of
    a public dataset in different layouts agree. `paths_sha256` is the hash of the relative paths,
    joined by newlines.
    """
    parts = {part: [_drawn(dataset, item) for item in getattr(dataset, part)] for part in PARTS}
    return {
        "format": FORMAT,
        "dataset": dataset.name,
        "shots": shots,
        "seed": seed,
        "split": dataset.split,
        "hash": draw_hash(parts),
        "paths_sha256": {part: _sha256("\n".join(d.path for d in drawn)) for part, drawn in parts.items()},
        **{part: [[d.path, d.name, d.sha256] for d in drawn] for part, drawn in parts.items()},
    }


def export_draw(dataset: Dataset, shots: int | None, seed: int, path: str | Path) -> str:
    """Write the draw's record, whole or not at all, and return its hash."""
    record = draw_record(dataset, shots, seed)
    rows = {part: ",\n".join(f"  {json.dumps(row)}" for row in record.pop(part)) for part in PARTS}
    head = json.dumps(record, indent=1)[:-2]
    body = ",\n".join(f' "{part}": [\n{rows[part]}\n ]' for part in PARTS)
    write_bytes(Path(path), f"{head},\n{body}\n}}\n".encode())
    return str(record["hash"])


def import_draw(path: str | Path, dataset: Dataset, *, verify: bool = True) -> Dataset:
    """Take exactly the drawn images from a dataset.

    Reads our own records, the index files that accompany published work ({"train": {"data":
    [{"impath", "classname"}, ...]}, ...}), and plain positions ({"train": [8, 36, ...], ...}).
    verify: compare the content of each image with its recorded hash.

    Raises UserError with all images that are missing, of another class, or different.
    """
    path = Path(path)
    raw = _read(path)
    taken: dict[str, tuple[Item, ...]] = {}
    faults: list[str] = []
    for part in PARTS:
        rows = _rows(path, raw, part)
        # Published ImageNet files take their validation images from the training folders.
        anywhere = raw.get("format") != FORMAT and bool(rows) and not isinstance(rows[0], int)
        pool = _Pool(dataset, dataset.train + dataset.val if anywhere else getattr(dataset, part))
        found = [_find(drawn, pool, verify=verify) for drawn in rows]
        faults += [f"{part}: {fault}" for fault in found if isinstance(fault, str)]
        taken[part] = tuple(item for item in found if isinstance(item, Item))
    if faults:
        total = len(faults) + sum(map(len, taken.values()))
        raise UserError(
            f"{path}: {pluralize(len(faults), 'drawn image', 'are', of=total)} not in {dataset.name} as recorded.",
            details=faults,
            hint="the draw belongs to another copy or version of the dataset",
        )
    return replace(dataset, train=taken["train"], val=taken["val"], split=f"{dataset.split}; draw {path.name}")


def draw_hash(parts: Mapping[str, Sequence[DrawnImage]]) -> str:
    """Hash over part, class and content of every drawn image, in order."""
    lines = [f"{part}\t{drawn.name}\t{drawn.sha256}" for part in PARTS for drawn in parts[part]]
    return _sha256("\n".join(lines))


class _Pool:
    """The images that may have been drawn, to be found by position, by path, or by the end of a path."""

    def __init__(self, dataset: Dataset, items: Sequence[Item]) -> None:
        self.items = items
        self.dataset = dataset
        self._exact = {dataset.path_of(item): item for item in items}
        self._by_name: dict[str, list[tuple[tuple[str, ...], Item]]] = {}
        for path, item in self._exact.items():
            steps = PurePosixPath(path).parts[::-1]
            self._by_name.setdefault(steps[0] if steps else "", []).append((steps, item))

    def find(self, drawn: DrawnImage) -> Item | None:
        """The image of that path, or the one of its class whose path shares the longest end with it."""
        if drawn.path in self._exact:
            return self._exact[drawn.path]
        wanted = PurePosixPath(drawn.path).parts[::-1]
        scored = [
            (sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(steps, wanted, strict=False))), item)
            for steps, item in self._by_name.get(wanted[0] if wanted else "", [])
            if self.is_called(item, drawn.name)
        ]
        best = max((score for score, _ in scored), default=0)
        found = [item for score, item in scored if score == best]
        return found[0] if len(found) == 1 else None

    def is_called(self, item: Item, name: str) -> bool:
        """Whether the item's class has this name or label."""
        return not name or normalize_name(name) in (
            normalize_name(self.name_of(item)),
            normalize_name(str(self.dataset.labels[item.label])),
        )

    def name_of(self, item: Item) -> str:
        """Name of the item's class."""
        return self.dataset.names[item.label]


def _find(drawn: DrawnImage | int, pool: _Pool, *, verify: bool) -> Item | str:
    """The drawn image, or why it cannot be used."""
    if isinstance(drawn, int):
        return pool.items[drawn] if 0 <= drawn < len(pool.items) else f"position {drawn} is beyond the list"
    item = pool.find(drawn)
    if item is None:
        return f"{drawn.path}: not in this dataset"
    if not pool.is_called(item, drawn.name):
        return f"{drawn.path}: drawn as '{drawn.name}', here '{pool.name_of(item)}'"
    if verify and drawn.sha256 and sha256_of(item.image) != drawn.sha256:
        return f"{drawn.path}: the content differs from that of the drawn image"
    return item


def _rows(path: Path, raw: dict[str, Any], part: str) -> list[DrawnImage | int]:
    """Rows of one part in any of the known forms; in our own form they must match the hash."""
    try:
        if raw.get("format") == FORMAT:
            parts = {name: [DrawnImage(*map(str, row)) for row in raw[name]] for name in PARTS}
            if draw_hash(parts) != raw["hash"]:
                raise UserError(f"{path}: the rows do not match the hash; the file was changed.", hint=write_draw())
            return list(parts[part])
        rows = raw.get(part, [])
        if isinstance(rows, dict):
            return [DrawnImage(str(row["impath"]), str(row["classname"])) for row in rows["data"]]
        return [int(position) for position in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: not a draw ({type(error).__name__}: {error}).", hint=write_draw()) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).", hint=write_draw()) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not readable as a draw ({error}).", hint=write_draw()) from error
    if not isinstance(raw, dict) or not any(part in raw for part in PARTS):
        raise UserError(f"{path}: not a draw.", hint=write_draw())
    return raw


def _drawn(dataset: Dataset, item: Item) -> DrawnImage:
    return DrawnImage(dataset.path_of(item), dataset.names[item.label], sha256_of(item.image))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
