from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dca.core.errors import UserError
from dca.core.files import atomic_replace, exclusive_lock, json_digest, read_json, write_bytes, write_json
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


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path):
    for name, file in (("made", "new"), ("target", "old")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    atomic_replace(tmp_path / "made", tmp_path / "target")
    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")] == ["target", "target/new"]


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
