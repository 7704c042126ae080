from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dca.core import files
from dca.core.errors import UserError
from dca.core.files import (
    atomic_folder,
    atomic_replace,
    exchange,
    exclusive_lock,
    json_digest,
    link_tree,
    read_json,
    read_whole,
    restore_folder,
    write_bytes,
    write_json,
)
from helpers.processes import start_process


def test_a_write_that_fails_leaves_the_old_file_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, refuse)
            with pytest.raises(UserError, match=r"a\.json: cannot be written \(Read-only file system\)"):
                write_json(path, {"new": 2})
        assert read_json(path) == {"old": 1}
        assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def refuse(*_: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_missing_folder_is_said(tmp_path: Path):
    with pytest.raises(UserError, match="cannot be written") as caught:
        write_bytes(tmp_path / "nowhere" / "a", b"")
    assert caught.value.hint


def test_names_that_are_no_text_survive_json(tmp_path: Path):
    value = {"name": os.fsdecode(b"caf\xe9.jpg"), "word": "日本"}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert "日本" in (tmp_path / "a.json").read_text()


def test_a_number_that_json_does_not_know_is_never_written(tmp_path: Path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"accuracy": float("nan")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000, b"1" * 6000])
def test_what_is_no_json_object_is_an_error_with_the_file(tmp_path: Path, content: bytes):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.json") as caught:
        read_json(tmp_path / "a.json")
    assert "copy it again" in caught.value.hint


def test_a_file_that_is_not_there_is_said_in_words(tmp_path: Path):
    with pytest.raises(UserError) as caught:
        read_json(tmp_path / "a.json", hint="make one")
    assert str(caught.value) == f"{tmp_path / 'a.json'}: cannot be read (No such file or directory)\n  fix: make one"


def make_folder(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "file").write_text(content)
    return path


def contents(folder: Path) -> dict[str, str]:
    """All files below a folder, also hidden ones, with what is in them; empty folders with "/"."""
    return {
        path.relative_to(folder).as_posix(): path.read_text() if path.is_file() else "/"
        for path in folder.rglob("*")
        if path.is_file() or not any(path.iterdir())
    }


@pytest.fixture(params=["exchange", "two renames"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to replace a folder: the system can exchange two names, or it cannot."""
    if request.param == "two renames":
        monkeypatch.setattr(files, "exchange", lambda *_: False)
    return str(request.param)


@pytest.mark.usefixtures("way")
def test_a_folder_is_replaced_as_a_whole(tmp_path: Path):
    atomic_replace(make_folder(tmp_path / "made", "new"), make_folder(tmp_path / "target", "old"))
    assert contents(tmp_path) == {"target/file": "new"}
    with atomic_folder(tmp_path / "target") as folder:
        (folder / "other").write_text("newer")
    assert contents(tmp_path) == {"target/other": "newer"}


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="needs a system that exchanges names")
def test_names_are_exchanged(tmp_path: Path):
    one, other = make_folder(tmp_path / "one", "1"), make_folder(tmp_path / "other", "2")
    if not exchange(one, other):
        pytest.skip("this file system cannot exchange names")
    assert contents(tmp_path) == {"one/file": "2", "other/file": "1"}
    with pytest.raises(FileNotFoundError):
        exchange(one, tmp_path / "nothing")


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="needs a system that exchanges names")
def test_there_is_a_folder_at_every_moment(tmp_path: Path):
    target, stop, missed = make_folder(tmp_path / "target", "0"), threading.Event(), list[int]()
    if not exchange(target, make_folder(tmp_path / "other", "0")):
        pytest.skip("this file system cannot exchange names")

    def look() -> None:
        while not stop.is_set():
            missed.append(0 if (target / "file").is_file() else 1)

    reader = threading.Thread(target=look)
    reader.start()
    for n in range(200):
        with atomic_folder(target) as folder:
            (folder / "file").write_text(str(n))
    stop.set()
    reader.join()
    assert len(missed) > 200
    assert sum(missed) == 0


@pytest.mark.usefixtures("way")
def test_a_folder_that_is_replaced_while_it_is_read_is_read_again(tmp_path: Path):
    target = tmp_path / "m.dca"

    def replace(content: str) -> None:
        with atomic_folder(target) as folder:
            (folder / "a").write_text(content)
            (folder / "b").write_text(content)

    replace("0")
    count = 0

    def read() -> str:
        nonlocal count
        count += 1
        found = (target / "a").read_text()
        if count < 4:
            replace(str(count))
        found += (target / "b").read_text()
        if found[0] != found[1]:
            raise UserError("changed")
        return found

    assert read_whole(target, read) == "33"
    assert count == 4

    def fail() -> str:
        nonlocal count
        count += 1
        raise UserError("damaged")

    with pytest.raises(UserError, match="damaged"):
        read_whole(target, fail)
    assert count == 5


def test_a_replacement_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made, target = make_folder(tmp_path / "made", "new"), make_folder(tmp_path / "target", "old")
    replace, calls = os.replace, list[str]()

    def fail_at_the_target(source: Path, name: Path) -> None:
        calls.append(Path(source).name)
        if Path(name) == target and Path(source).name == ".target.new":
            refuse()
        replace(source, name)

    monkeypatch.setattr(os, "replace", fail_at_the_target)
    if files.exchange is exchange:
        monkeypatch.setattr(files, "exchange", refuse)
    with pytest.raises(UserError, match="target: cannot be written"):
        atomic_replace(made, target)
    assert ".target.new" in calls
    assert contents(tmp_path) == {"made/file": "new", "target/file": "old"}


def test_a_folder_that_a_killed_process_moved_aside_is_put_back(tmp_path: Path):
    for find in (restore_folder, lambda target: exclusive_lock(target).__enter__()):
        make_folder(tmp_path / ".target.old", "old")
        make_folder(tmp_path / ".target.new", "new")
        find(tmp_path / "target")
        assert (tmp_path / "target" / "file").read_text() == "old"
        assert not list(tmp_path.glob(".target.[no]*"))
        shutil.rmtree(tmp_path / "target")


def test_what_a_killed_process_left_is_removed_under_the_lock(tmp_path: Path):
    for name, content in (("target", "now"), (".target.old", "before"), (".target.new", "half")):
        make_folder(tmp_path / name, content)
    (tmp_path / "target" / "corrections").mkdir()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = [f".file.{files._host()}-{number}-0.new" for number in (dead.pid, os.getpid())]
    for folder in ("target", "target/corrections"):
        for name in left:
            (tmp_path / folder / name).write_text("half")
    (tmp_path / f".target.{files._host()}-{dead.pid}-3.new").write_text("half")
    (tmp_path / f".target.00000000-{dead.pid}-3.new").write_text("of another machine")
    with exclusive_lock(tmp_path / "target"):
        pass
    assert contents(tmp_path) == {
        "target/file": "now",
        f"target/{left[1]}": "half",
        f"target/corrections/{left[1]}": "half",
        f".target.00000000-{dead.pid}-3.new": "of another machine",
    }


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path):
    make_folder(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with atomic_folder(tmp_path / "link") as folder:
        (folder / "file").write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "file").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize(("mask", "file", "folder"), [(0o077, 0o600, 0o700), (0o022, 0o644, 0o755), (0, 0o666, 0o777)])
def test_permissions_are_those_of_the_umask(tmp_path: Path, mask: int, file: int, folder: int):
    with umask(mask), atomic_folder(tmp_path / "target") as unfinished:
        write_bytes(unfinished / "file", b"x")
    assert (tmp_path / "target").stat().st_mode & 0o777 == folder
    assert (tmp_path / "target" / "file").stat().st_mode & 0o777 == file


@pytest.mark.parametrize("links", [True, False])
def test_a_tree_is_linked_or_else_copied(tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch):
    source = make_folder(tmp_path / "source", "mine")
    (source / "link").symlink_to("file")
    make_folder(tmp_path / "target", "of an attempt that was killed")
    if not links:
        monkeypatch.setattr(os, "link", refuse)
    link_tree(source, tmp_path / "target")
    link_tree(source / "file", tmp_path / "target" / "again")
    assert contents(tmp_path / "target") == {"file": "mine", "link": "mine", "again": "mine"}
    assert (tmp_path / "target" / "link").is_symlink()
    assert (source / "file").samefile(tmp_path / "target" / "file") == links


def test_a_digest_depends_on_content_and_not_on_order():
    assert json_digest({"a": 1, "b": [2]}) == json_digest(json.loads('{"b": [2], "a": 1}'))
    assert json_digest({"a": 1}) != json_digest({"a": 2})
    assert len(json_digest({"name": os.fsdecode(b"\xe9")})) == 64


def test_a_lock_ends_with_its_process_even_a_killed_one(tmp_path: Path):
    folder = tmp_path / "m.partial"
    code = (
        "import sys, time; from pathlib import Path; from dca.core.files import exclusive_lock\n"
        "with exclusive_lock(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(600)"
    )
    with start_process([sys.executable, "-c", code, folder], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match=r"another fit or server is writing .*m\.partial"), exclusive_lock(folder):
            pytest.fail("two at once")
        process.kill()
    with exclusive_lock(folder):
        assert not folder.exists(), "the lock lies beside the folder"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["/proc/m.partial", "/proc/self/m.partial", "file/m.partial"])
def test_a_place_where_nothing_can_be_created_is_not_called_locked(tmp_path: Path, place: str):
    (tmp_path / "file").touch()
    folder = tmp_path / place
    if place.startswith("/proc") and not Path("/proc/self").exists():
        pytest.skip("needs /proc")
    with pytest.raises(UserError, match=r"m\.partial: cannot be written") as caught, exclusive_lock(folder):
        pytest.fail("nothing can be created there")
    assert "another fit" not in str(caught.value)
    assert "choose another folder" in caught.value.hint
