"""Tables and queries of the feature store; see `dca.features.store` for what they are for.

`rows` is the index: which keys of which space are stored, and when they were last used. The features are in
`vectors`, so that finding and counting them, marking them as used and choosing the oldest reads none of them.
The journal is SQLite's rollback journal: its write-ahead log does not work on network file systems.
"""

from __future__ import annotations

import logging
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from dca.core import sqlite
from dca.core.sqlite import transaction

_log = logging.getLogger(__name__)

PAGE_BYTES = 16384  # features of 1 to 4 kB fill such pages with little waste
_DELETED_ROWS = 20_000  # per transaction
_LOOKUPS = 500  # keys per query
_KEPT_SHARE = 0.9  # of the limit, kept after deleting: the next deletion comes only after many more rows

_SCHEMA = (
    "CREATE TABLE spaces (id INTEGER PRIMARY KEY, about TEXT NOT NULL)",
    "CREATE TABLE rows (space INTEGER NOT NULL, key BLOB NOT NULL, vector INTEGER NOT NULL, bytes INTEGER NOT NULL,"
    " used INTEGER NOT NULL, PRIMARY KEY (space, key)) WITHOUT ROWID",
    "CREATE TABLE vectors (id INTEGER PRIMARY KEY, value BLOB NOT NULL)",
    "CREATE TRIGGER deleted AFTER DELETE ON rows BEGIN DELETE FROM vectors WHERE id = old.vector; END",
)
FIND = "SELECT key, vector, used < ? FROM rows WHERE space = ? AND key IN ({})"
READ = "SELECT id, value FROM vectors WHERE id IN ({})"
_CONTENTS = """
    SELECT space, (SELECT about FROM spaces WHERE id = space), count(*), total(bytes), CAST(max(used) AS INTEGER)
    FROM rows WHERE typeof(space) = 'integer' GROUP BY space ORDER BY max(used) DESC
"""

Sortable = TypeVar("Sortable", int, bytes)


def connect(path: Path) -> sqlite3.Connection:
    """Open the database, which is created if needed."""
    db = sqlite.connect(path, _SCHEMA, pragmas=(f"page_size = {PAGE_BYTES}", "auto_vacuum = INCREMENTAL"))
    db.text_factory = bytes  # damaged text may be no UTF-8
    return db


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether an error says that the file itself is bad."""
    kind = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the other bytes hold details
    return isinstance(error, sqlite.OtherSchema) or kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_sound(db: sqlite3.Connection) -> bool:
    """Whether the structure of the whole file is good; reads all of it."""
    return bool(db.execute("PRAGMA quick_check(1)").fetchone()[0] == b"ok")


def find(db: sqlite3.Connection, space: int, keys: Iterable[bytes], hour: int) -> dict[bytes, tuple[int, bool]]:
    """For each stored key: the id of its feature, and whether it was last used before this hour."""
    vectors: dict[bytes, tuple[int, bool]] = {}
    for part, marks in _queries(set(keys)):
        for key, vector, stale in db.execute(FIND.format(marks), (hour, space, *part)):
            if isinstance(vector, int):  # else it is damaged
                vectors[key] = vector, bool(stale)
    return vectors


def read(db: sqlite3.Connection, space: int, keys: Iterable[bytes], hour: int) -> dict[bytes, bytes]:
    """Stored features by key, without the damaged ones; they are marked as used in this hour."""
    vectors = find(db, space, keys, hour)
    key_of = {vector: key for key, (vector, _) in vectors.items()}
    features: dict[bytes, bytes] = {}
    for part, marks in _queries(key_of):
        for vector, value in db.execute(READ.format(marks), part):
            key = key_of[vector]
            if isinstance(value, bytes) and _checksum(space, key, value[:-4]) == value[-4:]:
                features[key] = value[:-4]
    if stale := [(hour, space, key) for key in features if vectors[key][1]]:
        _mark_used(db, stale)
    return features


def _queries(values: Iterable[Sortable]) -> Iterator[tuple[list[Sortable], str]]:
    """Parts of the values with the marks of a query. In order, so that neighbours on disk are read together."""
    ordered = sorted(values)
    for start in range(0, len(ordered), _LOOKUPS):
        part = ordered[start : start + _LOOKUPS]
        yield part, ",".join("?" * len(part))


def _checksum(space: int, key: bytes, value: bytes) -> bytes:
    """Four bytes. Space and key are included, so that a wrong reference between the tables is noticed too."""
    return zlib.crc32(value, zlib.crc32(key, space & 0xFFFFFFFF)).to_bytes(4, "big")


def _mark_used(db: sqlite3.Connection, rows: Sequence[tuple[int, int, bytes]]) -> None:
    """Store the hour of (hour, space, key). A database that can only be read keeps the old ones."""
    try:
        with transaction(db):
            db.executemany("UPDATE rows SET used = ? WHERE space = ? AND key = ?", rows)
    except sqlite3.OperationalError as error:
        _log.debug("features are not marked as used: %s", error)


def write(db: sqlite3.Connection, space: int, about: str, group: Mapping[bytes, bytes], hour: int) -> None:
    """Store features by key, in place of those that are there: they are equal, or damaged."""
    with transaction(db):
        db.execute("INSERT OR REPLACE INTO spaces VALUES (?, ?)", (space, about))
        db.executemany("DELETE FROM rows WHERE space = ? AND key = ?", ((space, key) for key in group))
        insert, rows = "INSERT INTO vectors (value) VALUES (?)", []
        for key, value in group.items():
            vector = db.execute(insert, (value + _checksum(space, key, value),)).lastrowid
            rows.append((space, key, vector, len(value), hour))
        db.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", rows)


def contents(db: sqlite3.Connection) -> list[tuple[int, bytes | None, int, float, int]]:
    """Of each space, the last used first: id, description, number of features, their bytes, hour of the last use."""
    return db.execute(_CONTENTS).fetchall()


def clear(db: sqlite3.Connection, spaces: Iterable[int] | None) -> None:
    """Delete these spaces, or everything, and shrink the file."""
    if spaces is None:
        with transaction(db):
            for table in ("rows", "vectors", "spaces"):
                db.execute(f"DROP TABLE {table}")  # much faster than deleting row by row
            sqlite.create_tables(db, _SCHEMA)
    for space in spaces or ():
        _delete(db, db.execute("SELECT space, key FROM rows WHERE space = ? ORDER BY vector", (space,)).fetchall())
    _shrink(db, 0)


def trim(db: sqlite3.Connection, limit: int) -> None:
    """If the database is larger than `limit` bytes, delete the rows that were not used for longest."""
    most = limit // PAGE_BYTES
    while (pages := _pragma(db, "page_count") - _pragma(db, "freelist_count")) > most:
        total = db.execute("SELECT count(*) FROM rows").fetchone()[0]
        if not total:
            break
        surplus = max(1, int(total * (1 - _KEPT_SHARE * most / pages)))
        _delete(db, db.execute("SELECT space, key FROM rows ORDER BY used, vector LIMIT ?", (surplus,)).fetchall())
    _shrink(db, most)


def _delete(db: sqlite3.Connection, rows: Sequence[tuple[int, bytes]]) -> None:
    """Delete the rows (space, key), many per transaction, and then spaces that are empty."""
    for start in range(0, len(rows), _DELETED_ROWS):
        with transaction(db):
            some = rows[start : start + _DELETED_ROWS]
            db.executemany("DELETE FROM rows WHERE space = ? AND key = ?", some)
    db.execute("DELETE FROM spaces WHERE NOT EXISTS (SELECT 1 FROM rows WHERE space = spaces.id)")


def _shrink(db: sqlite3.Connection, pages: int) -> None:
    """Give free pages back to the system while the file has more than `pages`."""
    while _pragma(db, "page_count") > pages and _pragma(db, "freelist_count"):
        db.executescript("PRAGMA incremental_vacuum(1000)")  # execute() would free one page only


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])
