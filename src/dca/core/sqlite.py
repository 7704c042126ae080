"""SQLite databases that several processes open at once, and that are created with fixed tables on first use."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# Seconds that a statement waits for the lock of another process.
BUSY_SECONDS = 60


class OtherSchema(sqlite3.DatabaseError):
    """A database with the tables of another version, or of another program."""


def connect(path: Path | str, schema: Sequence[str], *, pragmas: Sequence[str] = ()) -> sqlite3.Connection:
    """Open a database and create its tables if it has none.

    Statements outside of `transaction` are committed one by one.

    Args:
        path: The file; ":memory:" for a database without one.
        schema: The statements that create everything in it.
        pragmas: What to set before tables are created, such as "page_size = 16384".

    Raises:
        OtherSchema: If the tables are not those of `schema`.
        sqlite3.Error: If the file cannot be opened or written, or is damaged.

    Example:
        >>> db = connect(":memory:", ["CREATE TABLE words (word TEXT)"])
        >>> db.execute("INSERT INTO words VALUES ('cat')").rowcount
        1
    """
    db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        if not _has_tables(db, schema):
            for pragma in pragmas:
                db.execute(f"PRAGMA {pragma}")
            with transaction(db):
                if not _has_tables(db, schema):  # another process may have created them
                    create_tables(db, schema)
    except BaseException:
        db.close()
        raise
    return db


def create_tables(db: sqlite3.Connection, schema: Sequence[str]) -> None:
    """Create everything that the schema says."""
    for statement in schema:
        db.execute(statement)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end. After an error the caller closes the connection, which undoes what was done."""
    db.execute("BEGIN IMMEDIATE")
    yield
    db.execute("COMMIT")


def _has_tables(db: sqlite3.Connection, schema: Sequence[str]) -> bool:
    """Whether the tables are there; raises for other ones."""
    try:
        # As bytes: damaged text may be no UTF-8. Indices that SQLite creates by itself have no statement.
        rows = db.execute("SELECT CAST(sql AS BLOB) FROM sqlite_master WHERE sql IS NOT NULL")
        statements = {row[0] for row in rows}
    except UnicodeDecodeError as error:  # SQLite's message quotes a damaged statement
        raise OtherSchema(str(error)) from None
    if statements and statements != {statement.encode() for statement in schema}:
        raise OtherSchema("its tables are not those of this version")
    return bool(statements)
