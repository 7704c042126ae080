"""Image features on disk, so that no image goes through the same backbone twice.

A cache is a folder of *spaces*, one per backbone and transform; a space is a folder of immutable
*segments*, each with the keys of some images (such as hashes of their content) and their features. A
segment is written under a temporary name, flushed, and renamed: readers see all of it or none, writers
never wait for each other, and what a killed run had finished stays. Two runs that compute the same
image write it twice, with the same value. Damaged segments are dropped and computed again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from dca.core.errors import UserError
from dca.data.decode import Picture
from dca.data.hashing import sha256_of

_log = logging.getLogger(__name__)

LIMIT = 4 * 2**30
SEGMENT_ROWS = 4096
_STALE_SECONDS = 3600
_SUFFIX = ".features"

Compute = Callable[[Sequence[Picture]], Iterable[Tensor]]
ComputeAt = Callable[[Sequence[int]], Iterable[Tensor]]


@dataclass(frozen=True)
class Space:
    """What one backbone and transform have stored."""

    name: str
    about: dict[str, object]
    features: int
    bytes: int
    used: float


def default_folder() -> Path:
    """The user's cache folder: DCA_CACHE, else the system's place for caches."""
    if given := os.environ.get("DCA_CACHE"):
        return Path(given).expanduser() / "features"
    from platformdirs import user_cache_path

    return user_cache_path("dca") / "features"


def default_limit() -> int:
    """Most bytes to keep: DCA_CACHE_GB, else 4 GiB."""
    given = os.environ.get("DCA_CACHE_GB")
    if not given:
        return LIMIT
    try:
        return int(float(given) * 1e9)
    except (ValueError, OverflowError):
        raise UserError(f"DCA_CACHE_GB is '{given}', not a number of gigabytes.", hint="DCA_CACHE_GB=10") from None


def space_name(about: Mapping[str, object]) -> str:
    """Name of the space of a backbone and transform, described by plain values.

    Whatever changes a feature must be in `about`: backbone hash, preprocessing, precision.
    """
    text = json.dumps(about, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class FeatureCache:
    """Features of pictures by backbone, transform and image content.

    limit: most bytes to keep (DCA_CACHE_GB, else 4 GiB); the segments not used for longest go first.
    """

    def __init__(self, folder: Path | None = None, limit: int | None = None) -> None:
        self.folder = folder if folder is not None else default_folder()
        self.limit = limit if limit is not None else default_limit()

    def features(self, about: Mapping[str, object], pictures: Sequence[Picture], compute: Compute) -> Tensor:
        """Features (N, D) of the pictures, computing and storing those that are not there.

        compute: pictures -> batches of features (b, D), in order. They are stored as they come, so
        that an interrupted run continues where it stopped.
        """
        with ThreadPoolExecutor() as pool:
            keys = list(pool.map(sha256_of, pictures))
        return self.rows(about, keys, lambda places: compute([pictures[place] for place in places]))

    def rows(self, about: Mapping[str, object], keys: Sequence[str], compute: ComputeAt) -> Tensor:
        """Features (N, D) under N keys of 64 hexadecimal digits.

        compute: places in `keys`, ascending, none of them twice under the same key -> batches of their features.
        """
        space = self.folder / space_name(about)
        known = _read_space(space, set(keys))
        places: dict[str, int] = {}
        for place, key in enumerate(keys):
            if key not in known:
                places.setdefault(key, place)
        if places:
            todo = list(places)
            for first, rows in _gather(compute(list(places.values()))):
                part = todo[first : first + len(rows)]
                self._store(space, about, part, rows)
                known.update(zip(part, rows, strict=True))
            self._trim(keep=space)
        if lost := [key for key in keys if key not in known]:
            raise ValueError(f"compute gave {len(places) - len(lost)} features for {len(places)} pictures")
        return torch.stack([known[key] for key in keys]) if keys else torch.empty(0)

    def spaces(self) -> list[Space]:
        """What is stored, most recently used first."""
        found = []
        for place in filter(Path.is_dir, _inside(self.folder)):
            segments = _segments(place)
            features = len(set().union(*(_keys(_read(segment)) for segment in segments)))
            size = sum(_size(segment) for segment in segments)
            used = max((_used(segment) for segment in segments), default=0.0)
            found.append(Space(place.name, _about(place), features, size, used))
        return sorted(found, key=lambda space: -space.used)

    def clear(self, names: Sequence[str] | None = None) -> int:
        """Remove these spaces, or all; returns the bytes freed."""
        freed = 0
        for space in self.spaces():
            if names is not None and space.name not in names:
                continue
            place = self.folder / space.name
            for file in _inside(place):
                if _in_flight(file):
                    continue
                freed += _size(file)
                file.unlink(missing_ok=True)
            _remove_if_empty(place)
        return freed

    def _store(self, space: Path, about: Mapping[str, object], keys: Sequence[str], rows: Tensor) -> None:
        """Write a segment. A full disk or a forbidden folder costs the next run time, not this one its result."""
        try:
            if not (space / "about.json").is_file():
                _write_whole(space / "about.json", json.dumps(about, indent=1, default=str).encode())
            _write_segment(space, keys, rows)
        except OSError as error:
            _log.warning("features are not stored: %s (DCA_CACHE=DIR chooses another place)", error)

    def _trim(self, keep: Path) -> None:
        """Remove what was left half-written long ago, and the oldest segments beyond the limit."""
        segments = []
        for space in _inside(self.folder):
            for file in _inside(space):
                if file.name.startswith(".") and not _in_flight(file):
                    file.unlink(missing_ok=True)
            segments += [(_used(segment), _size(segment), segment) for segment in _segments(space)]
        total = sum(size for _, size, _ in segments)
        for _, size, segment in sorted(segments):
            if total <= self.limit:
                break
            segment.unlink(missing_ok=True)
            total -= size
            if segment.parent != keep and not _segments(segment.parent):
                (segment.parent / "about.json").unlink(missing_ok=True)
                _remove_if_empty(segment.parent)


def _gather(batches: Iterable[Tensor]) -> Iterator[tuple[int, Tensor]]:
    """Join batches into segments; yields the position of the first row with the rows.

    The first segments are small and grow, so that little is lost however early a run stops.
    """
    waiting: list[Tensor] = []
    first = written = 0
    for batch in batches:
        waiting.append(batch.detach().to("cpu", torch.float32))
        rows = sum(map(len, waiting))
        if rows >= min(SEGMENT_ROWS, max(256, written)):
            yield first, torch.cat(waiting)
            first, written, waiting = first + rows, written + rows, []
    if waiting:
        yield first, torch.cat(waiting)


def _write_segment(space: Path, keys: Sequence[str], rows: Tensor) -> None:
    """Store rows under their keys; features that are not finite are not worth keeping."""
    if not torch.isfinite(rows).all():
        return
    digests = torch.frombuffer(bytearray(b"".join(map(bytes.fromhex, keys))), dtype=torch.uint8).view(-1, 32)
    data = save({"keys": digests, "features": rows.contiguous()})
    check = hashlib.sha256(data).digest()
    _write_whole(space / f"{uuid.uuid4().hex}{_SUFFIX}", check + data)


def _write_whole(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)  # another run may just have cleared it
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _read_space(space: Path, wanted: set[str]) -> dict[str, Tensor]:
    """Stored features of the wanted keys; segments that served are marked as used."""
    known: dict[str, Tensor] = {}
    for segment in _segments(space):
        tensors = _read(segment)
        served = False
        for key, row in zip(_keys(tensors), tensors.get("features", ()), strict=False):
            if key in wanted and key not in known:
                known[key] = row
                served = True
        if served:
            _touch(segment)
    return known


def _read(segment: Path) -> dict[str, Tensor]:
    """Tensors of a segment; empty if another run removed it or its bytes are damaged."""
    try:
        data = segment.read_bytes()
        if hashlib.sha256(data[32:]).digest() == data[:32]:
            return load(data[32:])
    except FileNotFoundError:
        return {}
    except (OSError, SafetensorError, ValueError):
        pass
    segment.unlink(missing_ok=True)
    return {}


def _keys(tensors: Mapping[str, Tensor]) -> list[str]:
    if "keys" not in tensors:
        return []
    data = tensors["keys"].numpy().tobytes()
    return [data[start : start + 32].hex() for start in range(0, len(data), 32)]


def _segments(space: Path) -> list[Path]:
    return sorted(file for file in _inside(space) if file.suffix == _SUFFIX and not file.name.startswith("."))


def _inside(place: Path) -> list[Path]:
    """What lies in a folder; nothing if it is none, or no more."""
    try:
        return list(place.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _about(space: Path) -> dict[str, object]:
    try:
        about = json.loads((space / "about.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def _in_flight(file: Path) -> bool:
    """Whether another run may be writing this file now."""
    return file.name.startswith(".") and time.time() - _used(file) < _STALE_SECONDS


def _touch(file: Path) -> None:
    try:
        os.utime(file)
    except OSError:
        return


def _used(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _remove_if_empty(place: Path) -> None:
    try:
        place.rmdir()
    except OSError:
        return
