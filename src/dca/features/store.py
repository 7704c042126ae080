"""Image features on disk, so that no image goes through the same backbone twice.

All features are in one SQLite database, `features.sqlite`. A *space* holds the features of one backbone in
one precision. Within a space a feature is found by a key of 64 hexadecimal digits, such as the hash of an
image's content; only what is asked for is read.

Several processes and threads may use a store at once. Every operation opens its own connection and closes it
again, and writes in short transactions: a killed process leaves a whole database. Each feature has a
checksum, and a damaged one is computed again. A store that cannot be read or written costs time, never a
result: features are then computed, and a warning is logged.

`MemoryStore` holds features without a file, for a model that is served: nothing is written or ever removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from dca.core import sqlite
from dca.core.errors import UserError
from dca.core.files import cache_folder
from dca.core.locks import hold_lock
from dca.features import database

_log = logging.getLogger(__name__)

LIMIT = 4 * 2**30
GROUP_ROWS = 4096  # most rows per transaction while features are computed
_HOUR = 3600  # seconds; a row is marked as used at most once per hour, so that reading rarely writes

Compute = Callable[[Sequence[int]], Iterable[Tensor]]
T = TypeVar("T")


@dataclass(frozen=True)
class Space:
    """Features of one backbone in one precision.

    name: 16 hexadecimal digits. about: what decides the features, and "display". features: how many.
    bytes: size of the features. used: when one of them was last used, in seconds since 1970, to the hour.
    """

    name: str
    about: dict[str, object]
    features: int
    bytes: int
    used: float


class Features(Protocol):
    """Where features are found by key; `FeatureStore` keeps them on disk, `MemoryStore` in memory."""

    def get_or_compute(self, about: Mapping[str, object], keys: Sequence[str], compute: Compute) -> Tensor:
        """Features under the keys, computing and storing those that are missing."""

    def known_keys(self, about: Mapping[str, object], keys: Sequence[str]) -> set[str]:
        """The keys whose features are stored."""


def default_folder() -> Path:
    """Folder of the database: `features` in the user's cache folder."""
    return cache_folder() / "features"


def default_limit() -> int:
    """Most bytes to keep: DCA_CACHE_GB gigabytes, or 4 GiB."""
    given = os.environ.get("DCA_CACHE_GB")
    if not given:
        return LIMIT
    try:
        return int(float(given) * 1e9)
    except (ValueError, OverflowError):
        raise UserError(f"DCA_CACHE_GB is '{given}', not a number of gigabytes.", hint="DCA_CACHE_GB=10") from None


def space_name(about: Mapping[str, object]) -> str:
    """Name of the space that `about` describes, 16 hexadecimal digits.

    Everything that changes a feature must be in `about`: backbone, preprocessing, precision. The value of
    "display" is stored and shown but does not decide the space.

    >>> space_name({"backbone": "c620", "display": {"source": "mini"}}) == space_name({"backbone": "c620"})
    True
    """
    facts = {key: value for key, value in about.items() if key != "display"}
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class FeatureStore:
    """Features of images on disk, by backbone and image.

    Args:
        folder: where `features.sqlite` is; by default `default_folder()`.
        limit: most bytes of the database; by default `default_limit()`. The rows not used for longest are
            deleted first.
        clock: seconds since 1970; tests replace it.

    Example:
        >>> import tempfile
        >>> store = FeatureStore(Path(tempfile.mkdtemp()))
        >>> def compute(positions):
        ...     return [torch.ones(len(positions), 3)]
        >>> store.get_or_compute({"backbone": "c620"}, ["0a" * 32, "0b" * 32], compute).shape
        torch.Size([2, 3])
        >>> store.known_keys({"backbone": "c620"}, ["0a" * 32, "0c" * 32]) == {"0a" * 32}
        True
    """

    def __init__(
        self, folder: Path | None = None, limit: int | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.folder = folder if folder is not None else default_folder()
        self.limit = limit if limit is not None else default_limit()
        self.path = self.folder / "features.sqlite"
        self._clock = clock
        self._warned = False

    def get_or_compute(self, about: Mapping[str, object], keys: Sequence[str], compute: Compute) -> Tensor:
        """Features under the keys, computing and storing those that are missing.

        Args:
            about: what decides the features; see `space_name`.
            keys: N strings of 64 hexadecimal digits.
            compute: gets the positions in `keys` of the missing features, ascending, one per distinct key;
                returns their features in that order, in batches (b, D). They are stored as they come, so
                that an interrupted run continues where it stopped. Features that are not finite are
                returned but not stored.

        Returns:
            (N, D) float32 on the CPU; (0, 0) without keys.

        Raises:
            ValueError: `compute` returned more or fewer rows than it was asked for.
        """
        digests = [bytes.fromhex(key) for key in keys]
        space = _space_id(space_name(about))
        found = self._use_if_possible(lambda db: database.read(db, space, digests, self._hour()), create=False) or {}
        missing: dict[bytes, int] = {}
        for position, digest in enumerate(digests):
            if digest not in found:
                missing.setdefault(digest, position)
        if missing:
            found |= self._compute_and_store(about, list(missing), compute(list(missing.values())))
        return _to_tensor([found[digest] for digest in digests])

    def known_keys(self, about: Mapping[str, object], keys: Sequence[str]) -> set[str]:
        """The keys whose features are stored. The features are not read, so damaged ones are not noticed."""
        space = _space_id(space_name(about))
        digests = {key: bytes.fromhex(key) for key in keys}
        found = (
            self._use_if_possible(lambda db: database.find(db, space, list(digests.values()), 0), create=False) or {}
        )
        return {key for key, digest in digests.items() if digest in found}

    def list_spaces(self) -> list[Space]:
        """What is stored, most recently used first.

        Raises:
            UserError: the database cannot be read.
        """
        with self._as_user_error("read"):
            found = self._use(database.contents, create=False) or []
        return [
            Space(
                space.to_bytes(8, "big", signed=True).hex(),
                _parse_description(about),
                features,
                int(size),
                float(hour * _HOUR),
            )
            for space, about, features, size, hour in found
        ]

    def clear(self, names: Sequence[str] | None = None) -> int:
        """Delete the spaces with these names, or all; returns the bytes of the deleted features.

        Raises:
            UserError: the database cannot be changed.
        """
        chosen = [space for space in self.list_spaces() if names is None or space.name in names]
        numbers = None if names is None else [_space_id(space.name) for space in chosen]
        with self._as_user_error("cleared"):
            self._use(lambda db: database.clear(db, numbers), create=False)
        return sum(space.bytes for space in chosen)

    def _compute_and_store(
        self, about: Mapping[str, object], digests: Sequence[bytes], batches: Iterable[Tensor]
    ) -> dict[bytes, bytes]:
        """Features as bytes, by key; stored as they come. After a failure no more are: it may be a long wait."""
        found: dict[bytes, bytes] = {}
        storing = True
        for rows in _group_batches(batches):
            part = digests[len(found) : len(found) + len(rows)]
            if len(part) < len(rows):
                raise ValueError(f"compute returned more than the {len(digests)} rows it was asked for")
            values = [row.tobytes() for row in rows.numpy().astype("<f4", copy=False)]
            finite = torch.isfinite(rows).all(1).tolist()
            group = {digest: value for digest, value, good in zip(part, values, finite, strict=True) if good}
            if storing and group:
                storing = self._store(about, group)
            found.update(zip(part, values, strict=True))
        if len(found) < len(digests):
            raise ValueError(f"compute returned {len(found)} of the {len(digests)} rows it was asked for")
        return found

    def _store(self, about: Mapping[str, object], group: Mapping[bytes, bytes]) -> bool:
        """Store features by key; False if that failed."""
        space, text = _space_id(space_name(about)), json.dumps(about, default=str)

        def work(db: sqlite3.Connection) -> bool:
            database.write(db, space, text, group, self._hour())
            database.trim(db, self.limit)
            return True

        return bool(self._use_if_possible(work, create=True))

    def _hour(self) -> int:
        return int(self._clock() // _HOUR)

    def _use_if_possible(self, work: Callable[[sqlite3.Connection], T], *, create: bool) -> T | None:
        """`_use`, but None if the database cannot be used: that costs time, not the result."""
        try:
            return self._use(work, create=create)
        except (OSError, sqlite3.Error) as error:
            log = _log.debug if self._warned else _log.warning
            log("features are not stored in %s: %s (DCA_CACHE=DIR chooses another folder)", self.folder, error)
            self._warned = True
            return None

    @contextmanager
    def _as_user_error(self, done: str) -> Iterator[None]:
        """Turn a failure into a UserError."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"{self.path}: cannot be {done} ({error})", hint="DCA_CACHE=DIR") from error

    def _use(self, work: Callable[[sqlite3.Connection], T], *, create: bool) -> T | None:
        """Result of `work`; None if there is no database. A damaged database is deleted, and `work` done again."""
        try:
            return self._attempt(work, create=create)
        except sqlite3.DatabaseError as error:
            if not database.is_damage(error):
                raise
            self._delete_damaged(error)
        return self._attempt(work, create=create)

    def _attempt(self, work: Callable[[sqlite3.Connection], T], *, create: bool) -> T | None:
        if create:
            self.folder.mkdir(parents=True, exist_ok=True)
        elif not self.path.is_file():
            return None
        with closing(database.connect(self.path)) as db:
            return work(db)

    def _delete_damaged(self, error: Exception) -> None:
        """Delete the database, unless another process has replaced it since the damage was found."""
        with hold_lock(self.folder / ".features.lock", wait=sqlite.BUSY_SECONDS):
            try:
                if self._attempt(database.is_sound, create=False) is not False:
                    return
            except sqlite3.DatabaseError as again:
                if not database.is_damage(again):
                    raise
            _log.warning("%s is not usable and is started anew: %s", self.path, error)
            # The journal first: it must not be applied to the next database.
            for path in (self.path.with_name(f"{self.path.name}-journal"), self.path):
                path.unlink(missing_ok=True)


def _group_batches(batches: Iterable[Tensor]) -> Iterator[Tensor]:
    """Join batches (b, D) into groups to store at once.

    The first groups are small and grow, so that little is lost however early a run stops.
    """
    waiting: list[Tensor] = []
    written = 0
    for batch in batches:
        waiting.append(batch.detach().to("cpu", torch.float32))
        rows = sum(map(len, waiting))
        if rows >= min(GROUP_ROWS, max(256, written)):
            yield torch.cat(waiting)
            written, waiting = written + rows, []
    if waiting:
        yield torch.cat(waiting)


def _to_tensor(values: Sequence[bytes]) -> Tensor:
    """Features (N, D) from the bytes of each row."""
    if len(set(map(len, values))) > 1:
        raise ValueError("features of different lengths in one space: `about` does not tell them apart")
    numbers = np.frombuffer(bytearray().join(values), dtype="<f4").astype(np.float32, copy=False)
    return torch.from_numpy(numbers).view(len(values), -1) if values else torch.empty(0, 0)


def _space_id(name: str) -> int:
    return int.from_bytes(bytes.fromhex(name), "big", signed=True)


def _parse_description(about: bytes | None) -> dict[str, object]:
    """The stored description; empty if it is damaged."""
    try:
        facts = json.loads(about or b"{}")
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


class MemoryStore:
    """Features by key, as `FeatureStore` has them, without a file.

    Args:
        other: A store whose features are known here, too.

    Example:
        >>> store = MemoryStore()
        >>> store.add({"backbone": "c620"}, ["0a" * 32], torch.ones(1, 3))
        >>> store.get_or_compute({"backbone": "c620"}, ["0a" * 32], lambda positions: []).shape
        torch.Size([1, 3])
    """

    def __init__(self, other: MemoryStore | None = None) -> None:
        self._rows: dict[tuple[str, str], Tensor] = dict(other._rows) if other else {}

    def add(self, about: Mapping[str, object], keys: Sequence[str], rows: Tensor) -> None:
        """Keep features (N, D) under N keys."""
        space = space_name(about)
        self._rows.update(((space, key), row) for key, row in zip(keys, rows.float().cpu(), strict=True))

    def get_or_compute(self, about: Mapping[str, object], keys: Sequence[str], compute: Compute) -> Tensor:
        """Features (N, D) under N keys; `compute` makes those that are missing, as for `FeatureStore`."""
        space = space_name(about)
        missing: dict[str, int] = {}
        for position, key in enumerate(keys):
            if (space, key) not in self._rows:
                missing.setdefault(key, position)
        if missing:
            self.add(about, list(missing), torch.cat(list(compute(list(missing.values())))))
        return torch.stack([self._rows[space, key] for key in keys]) if keys else torch.empty(0, 0)

    def known_keys(self, about: Mapping[str, object], keys: Sequence[str]) -> set[str]:
        """The keys whose features are kept."""
        space = space_name(about)
        return {key for key in keys if (space, key) in self._rows}
