"""Damage, full disks, locks, threads and killed processes: what they cost is time."""

from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import torch

from dca.core import sqlite
from dca.core.errors import UserError
from dca.features import database
from dca.features.store import FeatureStore
from helpers.processes import PATIENCE, start_process
from helpers.small_images import photo
from helpers.stored_features import ABOUT, HOUR, Backbone, expected, features, fill, keys_of, values


@pytest.fixture
def store(tmp_path):
    return FeatureStore(tmp_path / "cache")


def test_a_damaged_feature_is_computed_again(store):
    fill(store, ABOUT, range(20))
    data = store.path.read_bytes()
    row = values([7]).numpy().tobytes()
    assert data.count(row) == 1
    store.path.write_bytes(data.replace(row, row[:-1] + bytes([row[-1] ^ 1])))
    assert fill(store, ABOUT, range(20)) == 1
    assert fill(store, ABOUT, range(20)) == 0
    assert store.list_spaces()[0].features == 20


@pytest.mark.parametrize("damage", [b"", b"x" * 10, b"not a database" * 1000, "cut", "other tables"])
def test_a_damaged_database_is_started_anew(store, damage, caplog):
    fill(store, ABOUT, range(2000))
    if damage == "cut":
        os.truncate(store.path, store.path.stat().st_size // 2)
    elif damage == "other tables":
        with closing(sqlite3.connect(store.path)) as db:
            db.execute("ALTER TABLE rows RENAME COLUMN used TO day")
    else:
        store.path.write_bytes(damage)
    assert fill(store, ABOUT, range(2000)) > 0
    assert fill(store, ABOUT, range(2000)) == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (damage != b"")
    assert not damage or "started anew" in caplog.text


def test_a_flipped_bit_anywhere_never_gives_a_wrong_feature(store):
    """Nor an error: damage costs time."""
    fill(store, ABOUT, range(60), 16)
    fill(store, {"backbone": "x"}, range(10), 4)
    sound, rng = store.path.read_bytes(), random.Random(0)
    written = [n for n, byte in enumerate(sound) if byte]
    for _ in range(300):
        data = bytearray(sound)
        data[rng.choice(written)] ^= 1 << rng.randrange(8)
        store.path.write_bytes(data)
        store.known_keys(ABOUT, keys_of(range(60)))
        fill(store, ABOUT, range(60), 16)
        store.list_spaces()
        for path in store.folder.glob("features.sqlite-*"):
            path.unlink()


def test_a_good_database_is_not_deleted_where_another_process_has_replaced_a_damaged_one(store):
    fill(store, ABOUT, range(5))
    store._delete_damaged(sqlite3.DatabaseError("found before the database was replaced"))
    assert fill(store, ABOUT, range(5)) == 0


def test_a_place_that_cannot_be_written_costs_only_time(tmp_path, caplog):
    (tmp_path / "cache").write_text("a file, not a folder")
    store = FeatureStore(tmp_path / "cache")
    for _ in range(2):
        assert fill(store, ABOUT, range(10)) == 10
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "features are not stored" in caplog.text


def test_a_full_disk_costs_only_time(store, caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        assert fill(store, ABOUT, range(5000), 64) == 5000
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    kept = len(store.known_keys(ABOUT, keys_of(range(5000))))
    assert fill(store, ABOUT, range(5000), 64) == 5000 - kept
    assert fill(store, ABOUT, range(5000), 64) == 0


def test_a_database_that_can_only_be_read_is_read(tmp_path, caplog):
    store = FeatureStore(tmp_path, clock=lambda: 0)
    fill(store, ABOUT, range(5))
    data = bytearray(store.path.read_bytes())
    data[18] = 3  # SQLite's file format: a write version that it does not know
    store.path.write_bytes(data)
    later = FeatureStore(tmp_path, clock=lambda: 10 * HOUR)
    assert fill(later, ABOUT, range(5)) == 0
    assert not caplog.records
    assert fill(later, ABOUT, range(7)) == 2
    assert "readonly" in caplog.text
    with pytest.raises(UserError, match="cannot be cleared"):
        later.clear()


def test_a_locked_database_costs_only_time(store, monkeypatch, caplog):
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    fill(store, ABOUT, range(5))
    tried, connect = [], database.connect
    monkeypatch.setattr(database, "connect", lambda path: tried.append(path) or connect(path))
    with closing(sqlite3.connect(store.path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert fill(store, ABOUT, range(5000)) == 5000
    assert len(tried) == 2  # reading, and storing the first group: the others do not wait again
    assert "locked" in caplog.text
    assert fill(store, ABOUT, range(7)) == 2


def test_no_connection_is_open_while_features_are_computed_or_afterwards(store):
    folder = Path("/proc/self/fd")
    if not folder.exists():
        pytest.skip("needs /proc")

    def opened():
        return [file for file in folder.iterdir() if "features.sqlite" in os.path.realpath(file)]

    def compute(places):
        for place in places:
            assert not opened()
            yield values([place])

    store.get_or_compute(ABOUT, keys_of(range(600)), compute)
    store.get_or_compute(ABOUT, keys_of(range(700)), compute)
    assert not opened()


def test_threads_share_a_store(store):
    def work(seed):
        rng = random.Random(seed)
        for _ in range(10):
            fill(store, {"backbone": rng.randrange(2)}, rng.sample(range(300), 60))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    for backbone in range(2):
        fill(store, {"backbone": backbone}, range(300))
    assert [space.features for space in store.list_spaces()] == [300, 300]


WORKER = """
import sys, time, pathlib
sys.path.insert(0, sys.argv[1])
from helpers import stored_features as helpers
from dca.features import store as feature_store

feature_store.GROUP_ROWS = 4
folder, pause, order = pathlib.Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
images = sorted(folder.glob("*.png"))[::order]

def compute(todo):
    for start in range(0, len(todo), 2):
        time.sleep(pause)
        yield helpers.expected(todo[start:start + 2])
        print("batch", flush=True)

print("ready", flush=True)
sys.stdin.readline()
rows = helpers.features(feature_store.FeatureStore(folder / "cache"), helpers.ABOUT, images, compute)
assert helpers.torch.equal(rows, helpers.expected(images))
print("done", flush=True)
"""


def worker(tmp_path, folder, pause, order):
    """A process that has imported everything, and starts when it gets a line."""
    # Passed as text: a script file written anew for each worker could be read while it is empty.
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(WORKER),
        str(Path(__file__).parents[1]),
        str(folder),
        str(pause),
        str(order),
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return start_process(command, text=True, **pipes)


def start(process):
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("\n")
    process.stdin.flush()


def photos(tmp_path, count):
    folder = tmp_path / "photos"
    folder.mkdir()
    images = [folder / f"{k:02d}.png" for k in range(count)]
    for k, path in enumerate(images):
        photo(k).save(path)
    return folder, images


def test_two_processes_at_once_and_one_killed_leave_a_correct_store(tmp_path):
    folder, images = photos(tmp_path, 40)
    with (
        worker(tmp_path, folder, 0.03, 1) as first,
        worker(tmp_path, folder, 0.03, -1) as second,
        worker(tmp_path, folder, 0.05, 1) as doomed,
    ):
        for process in (doomed, first, second):
            start(process)
            if process is doomed:
                assert doomed.stdout.readline() == "batch\n"  # it has seen an empty store, so it computes all
        for _ in range(4):
            assert doomed.stdout.readline() == "batch\n"
        doomed.send_signal(signal.SIGKILL)
        doomed.communicate()
        for process in (first, second):
            output, _ = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, output
            assert output.endswith("done\n")
    store, backbone = FeatureStore(folder / "cache"), Backbone()
    assert torch.equal(features(store, ABOUT, images, backbone), expected(images))
    assert backbone.asked == []
    assert store.list_spaces()[0].features == 40


def test_clearing_while_another_process_fills_does_not_break_it(tmp_path):
    folder, _ = photos(tmp_path, 30)
    store, cleared = FeatureStore(folder / "cache"), 0
    with worker(tmp_path, folder, 0.05, 1) as filling:
        start(filling)
        while filling.poll() is None:
            cleared += store.clear() > 0
            time.sleep(0.01)
        output, _ = filling.communicate()
        assert filling.returncode == 0, output
    assert cleared


DOOMED = """
import os, pathlib, signal, sys
from dca.core import sqlite
from dca.features import database as feature_database

db = feature_database.connect(pathlib.Path(sys.argv[1]))
db.execute("PRAGMA cache_size = 1")  # so that pages are written before the transaction ends
with sqlite.transaction(db):
    db.execute("UPDATE vectors SET value = zeroblob(length(value))")
    db.execute("UPDATE rows SET vector = 1")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_killed_within_a_transaction_changes_nothing(store):
    fill(store, ABOUT, range(2000), 64)
    before = store.path.read_bytes()
    killed = subprocess.run([sys.executable, "-c", DOOMED, str(store.path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert store.path.read_bytes() != before
    assert store.path.with_name("features.sqlite-journal").exists()
    assert fill(store, ABOUT, range(2000), 64) == 0


def test_a_forked_process_uses_the_store_of_its_parent(store):
    fill(store, ABOUT, range(50))
    child = os.fork()
    if child == 0:
        try:
            fill(store, ABOUT, range(80))
            os._exit(0)
        finally:
            os._exit(1)
    fill(store, ABOUT, range(60, 100))
    assert os.waitpid(child, 0)[1] == 0
    assert fill(store, ABOUT, range(100)) == 0
