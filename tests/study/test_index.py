from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from dca.core.errors import UserError
from dca.study.index import COLUMNS, FILE, RunIndex


def write_cell(runs: Path, id: str, head: dict[str, Any] | None = None, **values: Any) -> Path:
    """The files of a finished cell, as far as the index reads them."""
    folder = runs / id
    folder.mkdir(parents=True, exist_ok=True)
    spec = {"data": "photos", "method": "dca", "backbone": "mini", "rules": "strict"}
    result = {"method": "dca", "protocol": "few-shot", "shots": 1, "seed": 1, "accuracy": 0.5, "seconds": 1.0}
    (folder / "spec.json").write_text(json.dumps({"spec": spec, **({"head": head} if head else {})}))
    (folder / "result.json").write_text(json.dumps({**result, "targets": [{"name": "photos"}], **values}))
    return folder


def test_rows_hold_what_the_files_say(tmp_path: Path):
    write_cell(tmp_path, "a", public="eurosat", accuracy=0.25, harmonic_mean=0.5)
    write_cell(tmp_path, "b", {"gamma1": 5.0}, shots=None, accuracy=None)
    with RunIndex(tmp_path) as index:
        assert index.refresh() == 2
        a, b = index.rows()
    assert (a.id, a.dataset, a.accuracy, a.harmonic_mean, a.head) == ("a", "eurosat", 0.25, 0.5, {})
    assert (b.dataset, b.shots, b.accuracy, b.head, b.targets) == (
        "photos",
        None,
        None,
        {"gamma1": 5.0},
        [{"name": "photos"}],
    )
    assert a.spec["backbone"] == "mini"


def test_questions_are_answered_by_column(tmp_path: Path):
    for n, (method, shots) in enumerate([("dca", 1), ("dca", 2), ("coop", 1), ("coop", None)]):
        write_cell(tmp_path, f"c{n}", method=method, shots=shots)
    with RunIndex(tmp_path) as index:
        index.refresh()
        asked = [{"method": "dca"}, {"shots": [1, 2]}, {"method": "coop", "shots": None}, {"shots": []}, {}]
        assert [[row.id for row in index.rows(**wanted)] for wanted in asked] == [
            ["c0", "c1"], ["c0", "c1", "c2"], ["c3"], [], ["c0", "c1", "c2", "c3"],
        ]  # fmt: skip
        with pytest.raises(UserError, match="unknown column 'metod'"):
            index.rows(metod="dca")


def test_the_files_stay_the_truth(tmp_path: Path):
    for id in ("kept", "changed", "gone"):
        write_cell(tmp_path, id)
    with RunIndex(tmp_path) as index:
        index.refresh()
    shutil.rmtree(tmp_path / "gone")
    write_cell(tmp_path, "changed", accuracy=0.75)
    write_cell(tmp_path, "new")
    with RunIndex(tmp_path) as index:
        assert index.refresh() == 3
        assert {row.id: row.accuracy for row in index.rows()} == {"changed": 0.75, "kept": 0.5, "new": 0.5}


def test_only_changed_files_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_cell(tmp_path, "a")
    with RunIndex(tmp_path) as index:
        index.refresh()
    read: list[Path] = []
    monkeypatch.setattr("dca.study.index.read_json", lambda path: read.append(path) or {})
    with RunIndex(tmp_path) as index:
        assert index.refresh() == 1
    assert read == []


@pytest.mark.parametrize("damage", ["missing", "bytes", "version"])
def test_a_missing_or_damaged_index_is_made_again(damage: str, tmp_path: Path):
    write_cell(tmp_path, "a")
    path = tmp_path / FILE
    if damage == "bytes":
        path.write_bytes(b"no database at all" * 100)
    elif damage == "version":
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE cells (id)")
        db.close()
    with RunIndex(tmp_path) as index:
        assert index.refresh() == 1
    assert path.is_file()


def test_unfinished_damaged_and_foreign_folders_are_no_cells(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write_cell(tmp_path, "a")
    write_cell(tmp_path, "b.partial")
    (tmp_path / "failed").mkdir()
    (write_cell(tmp_path, "cut") / "result.json").write_text('{"method": "dc')
    (write_cell(tmp_path, "odd") / "spec.json").write_text("{}")
    with RunIndex(tmp_path) as index:
        assert index.refresh() == 1
    assert {Path(record.args[0]).name for record in caplog.records} == {"cut", "odd"}  # type: ignore[index, arg-type]


def test_a_folder_that_is_missing_or_cannot_be_written_is_indexed_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with RunIndex(tmp_path / "none") as index:
        assert index.refresh() == 0
    assert not (tmp_path / "none").exists()
    write_cell(tmp_path, "a")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with RunIndex(tmp_path) as index:
        assert index.refresh() == 1
    assert not (tmp_path / FILE).exists()


def test_100000_rows_are_quick_to_ask(tmp_path: Path):
    with RunIndex(tmp_path) as index:
        names = COLUMNS.index("method"), COLUMNS.index("dataset"), COLUMNS.index("shots")
        rows = []
        for n in range(100_000):
            values: list[Any] = [f"{n:016x}", *[0] * (len(COLUMNS) - 4), "{}", "{}", "[]"]
            for place, value in zip(names, (f"m{n % 20}", f"d{n // 20 % 11}", 2 ** (n // 220 % 5)), strict=True):
                values[place] = value
            rows.append((0, 0, *values))
        with index._db:
            index._db.execute("BEGIN")
            index._db.executemany(f"INSERT INTO cells VALUES ({', '.join('?' * (2 + len(COLUMNS)))})", rows)
        began = time.perf_counter()
        found = index.rows(method="m3", dataset="d5", shots=4)
        assert time.perf_counter() - began < 0.5
        assert len(found) == sum(n % 20 == 3 and n // 20 % 11 == 5 and n // 220 % 5 == 2 for n in range(100_000))
        assert len(index.ids()) == 100_000
