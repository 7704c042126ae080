from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from dca.core import sqlite

SCHEMA = ("CREATE TABLE words (word TEXT, PRIMARY KEY (word))", "CREATE INDEX by_word ON words (word)")


def test_tables_are_created_once_and_found_again(tmp_path: Path):
    path = tmp_path / "words.sqlite"
    first = sqlite.connect(path, SCHEMA, pragmas=("page_size = 16384",))
    with sqlite.transaction(first):
        first.execute("INSERT INTO words VALUES ('cat')")
    again = sqlite.connect(path, SCHEMA)
    assert again.execute("SELECT word FROM words").fetchall() == [("cat",)]
    assert again.execute("PRAGMA page_size").fetchone() == (16384,)


def test_other_tables_are_refused(tmp_path: Path):
    path = tmp_path / "words.sqlite"
    sqlite.connect(path, SCHEMA).close()
    with pytest.raises(sqlite.OtherSchema, match="not those of this version"):
        sqlite.connect(path, ["CREATE TABLE words (word TEXT)"])


def test_a_damaged_schema_is_an_error_of_the_database(tmp_path: Path):
    path = tmp_path / "words.sqlite"
    sqlite.connect(path, SCHEMA).close()
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"\xff\xfe\xfd\xfcTE TABLE"))
    with pytest.raises(sqlite3.DatabaseError):
        sqlite.connect(path, SCHEMA)


def test_a_transaction_that_fails_changes_nothing(tmp_path: Path):
    path = tmp_path / "words.sqlite"
    db = sqlite.connect(path, SCHEMA)
    with pytest.raises(sqlite3.IntegrityError), sqlite.transaction(db):
        db.executemany("INSERT INTO words VALUES (?)", [("cat",), ("cat",)])
    db.close()
    assert sqlite.connect(path, SCHEMA).execute("SELECT * FROM words").fetchall() == []
