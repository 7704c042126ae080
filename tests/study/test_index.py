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
from dca.runs.result import TargetResult
from dca.study.index import COLUMNS, FILE, CollectCounts, RunIndex, collect, read_results
from helpers.made_runs import invent_target


def write_cell(runs: Path, id: str, head: dict[str, Any] | None = None, **values: Any) -> Path:
    """The files of a finished cell, as far as the index reads them."""
    folder = runs / id
    folder.mkdir(parents=True, exist_ok=True)
    spec = {"data": "photos", "method": "dca", "backbone": "mini", "rules": "strict"}
    result = {"method": "dca", "protocol": "few-shot", "shots": 1, "seed": 1, "accuracy": 0.5, "seconds": 1.0}
    (folder / "spec.json").write_text(json.dumps({"spec": spec, **({"head": head} if head else {})}))
    (folder / "result.json").write_text(json.dumps({**result, "targets": [invent_target("photos")], **values}))
    return folder


def test_rows_hold_what_the_files_say(tmp_path: Path):
    write_cell(tmp_path, "a", public="eurosat", accuracy=0.25, harmonic_mean=0.5)
    write_cell(tmp_path, "b", {"gamma1": 5.0}, shots=None, accuracy=None)
    with RunIndex(tmp_path) as index:
        assert index.refresh() == 2
        a, b = index.rows()
    assert (a.id, a.dataset, a.accuracy, a.harmonic_mean, a.head) == ("a", "eurosat", 0.25, 0.5, {})
    assert (b.dataset, b.shots, b.accuracy, b.head) == ("photos", None, None, {"gamma1": 5.0})
    assert b.targets == (TargetResult(**invent_target("photos")),)
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
    empty = {"spec": "{}", "head": "{}", "options": "{}", "targets": "[]"}
    with RunIndex(tmp_path) as index:
        rows = []
        for n in range(100_000):
            named = {"method": f"m{n % 20}", "dataset": f"d{n // 20 % 11}", "shots": 2 ** (n // 220 % 5)}
            values = {"id": f"{n:016x}", **named, **empty}
            rows.append((0, 0, *(values.get(name, 0) for name in COLUMNS)))
        with index._db:
            index._db.execute("BEGIN")
            index._db.executemany(f"INSERT INTO cells VALUES ({', '.join('?' * (2 + len(COLUMNS)))})", rows)
        began = time.process_time()  # other programs do not count
        found = index.rows(method="m3", dataset="d5", shots=4)
        assert time.process_time() - began < 0.5
        assert len(found) == sum(n % 20 == 3 and n // 20 % 11 == 5 and n // 220 % 5 == 2 for n in range(100_000))
        assert len(index.ids()) == 100_000


def write_failure(runs: Path, id: str, error: str = "the loss is not finite") -> None:
    record = {"id": id, "cell": f"dca photos {id}", "spec": {"data": "photos"}, "head": {}, "error": error}
    (runs / "failed").mkdir(parents=True, exist_ok=True)
    (runs / "failed" / f"{id}.json").write_text(json.dumps({**record, "traceback": 'File "/home/someone/fit.py"'}))


def test_a_results_file_gives_what_its_folder_gave(tmp_path: Path):
    runs, file = tmp_path / "runs", tmp_path / "results" / "small.jsonl"
    fit = write_cell(runs, "b", shots=None, classes=7)
    spec = json.loads((fit / "spec.json").read_text())
    identity = {"device": "cuda", "options": {"epochs": 5, "gamma1": 1.0}}
    (fit / "spec.json").write_text(json.dumps({**spec, "identity": identity}))
    write_cell(runs, "b-head", {"gamma1": 5.0}, fit="b", accuracy=0.25)
    write_cell(runs, "a", accuracy=None, findings={"doubtful_labels": ["photos/cat/someone.jpg"]})
    write_failure(runs, "c")
    assert collect([runs], file) == CollectCounts(added=4, changed=0, finished=3, failed=1)
    found = read_results(file)
    assert found == read_results(runs)
    assert [record.id for record in found.records] == ["a", "b", "b-head"]
    head = found.records[2]
    assert (head.device, head.options, head.classes) == ("cuda", {"epochs": 5, "gamma1": 5.0}, 2)
    assert [one.error for one in found.failures] == ["the loss is not finite"]
    assert "someone" not in file.read_text(encoding="utf-8")


def test_collecting_again_changes_nothing_and_the_order_does_not_matter(tmp_path: Path):
    first, second = tmp_path / "first", tmp_path / "second"
    for runs, id in ((first, "b"), (first, "d"), (second, "a"), (second, "c")):
        write_cell(runs, id)
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    collect([first, second], one)
    collect([second], other)
    assert collect([first], other) == CollectCounts(added=2, changed=0, finished=4, failed=0)
    assert one.read_bytes() == other.read_bytes()
    assert [json.loads(line)["id"] for line in one.read_text().splitlines()] == ["a", "b", "c", "d"]
    before = one.stat().st_mtime_ns
    assert collect([first, second, other], one) == CollectCounts(added=0, changed=0, finished=4, failed=0)
    assert one.stat().st_mtime_ns == before


def test_a_finished_cell_replaces_its_failure_and_not_the_other_way_round(tmp_path: Path):
    failed, finished, file = tmp_path / "failed", tmp_path / "finished", tmp_path / "all.jsonl"
    write_failure(failed, "a")
    write_cell(finished, "a", accuracy=0.75)
    collect([failed], file)
    assert [len(part) for part in (read_results(file).records, read_results(file).failures)] == [0, 1]
    assert collect([finished], file) == CollectCounts(added=0, changed=1, finished=1, failed=0)
    assert collect([failed], file).changed == 0
    assert [record.accuracy for record in read_results(file).records] == [0.75]


def test_unreadable_cells_are_left_out_of_a_results_file(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    runs = tmp_path / "runs"
    write_cell(runs, "a")
    (write_cell(runs, "cut") / "result.json").write_text('{"method": "dc')
    assert collect([runs], tmp_path / "r.jsonl").finished == 1
    assert [Path(record.args[0]).name for record in caplog.records] == ["cut"]  # type: ignore[index, arg-type]


@pytest.mark.parametrize(
    ("text", "part"), [("{", "line 1: "), ('{"id": "a", "result": {}}', "'spec'"), ("[]", "no id")]
)
def test_a_damaged_results_file_is_an_error_that_names_it(text: str, part: str, tmp_path: Path):
    path = tmp_path / "results.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=r"results\.jsonl: not a results file") as raised:
        read_results(path)
    assert part in raised.value.problem


def test_what_cannot_be_collected_is_an_error(tmp_path: Path):
    with pytest.raises(UserError, match="no finished or failed runs"):
        collect([tmp_path / "none"], tmp_path / "r.jsonl")
    with pytest.raises(UserError, match=r"ends with \.jsonl"):
        collect([tmp_path], tmp_path / "r.json")
    with pytest.raises(UserError, match=r"r\.jsonl: cannot be read"):
        read_results(tmp_path / "r.jsonl")
