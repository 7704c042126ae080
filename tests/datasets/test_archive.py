"""Datasets in zip files, and class folders that are inside other folders."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from conftest import Said
from dca.core.errors import UserError
from dca.datasets import archive
from dca.datasets.archive import unpack_archive
from dca.datasets.folder import enter_folder, load_folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DCA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make_photos(folder: Path) -> Path:
    for name, colour in (("cat", "red"), ("dog", "blue")):
        (folder / name / "more").mkdir(parents=True)
        for n in range(3):
            Image.new("RGB", (40, 40 + n), colour).save(folder / name / f"{n}.png")
        Image.new("RGB", (50, 40), colour).save(folder / name / "more" / "4.png")
    return folder


def zipped(folder: Path, target: Path, prefix: str = "") -> Path:
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(folder.rglob("*.png")):
            archive.write(path, prefix + path.relative_to(folder).as_posix())
        archive.writestr("__MACOSX/photos/cat/._0.png", b"x")
        archive.writestr("photos/.DS_Store", b"x")
        archive.writestr("run.sh", b"echo no")
    return target


@pytest.mark.parametrize("prefix", ["", "photos/", "a/b/photos/"])
def test_a_zip_is_a_folder(prefix: str, tmp_path: Path) -> None:
    folder = make_photos(tmp_path / "photos")
    found = load_folder(zipped(folder, tmp_path / "pets.zip", prefix))
    assert (found.labels, found.name) == (("cat", "dog"), "pets")
    assert len(found.train) == 8
    expected = load_folder(folder)
    assert [Path(str(item.image)).read_bytes() for item in found.train] == [
        Path(str(item.image)).read_bytes() for item in expected.train
    ]
    assert not list((tmp_path / "cache").rglob("*.sh"))


def test_it_is_unpacked_once(tmp_path: Path) -> None:
    file = zipped(make_photos(tmp_path / "photos"), tmp_path / "pets.zip")
    first = unpack_archive(file)
    before = sorted(path.stat().st_mtime_ns for path in first.rglob("*"))
    assert unpack_archive(file) == first
    assert sorted(path.stat().st_mtime_ns for path in first.rglob("*")) == before


@pytest.mark.parametrize("name", ["../evil.png", "/evil.png", "a/../../evil.png", "C:/evil.png", "..\\evil.png"])
def test_names_outside_are_refused(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(UserError, match="names files outside"):
        unpack_archive(tmp_path / "x.zip")
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.parametrize(
    ("content", "problem"), [(b"no zip", "cannot be read as a zip file"), (None, "holds no images")]
)
def test_other_files_are_refused(content: bytes | None, problem: str, tmp_path: Path) -> None:
    if content is None:
        with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
            archive.writestr("notes.txt", b"x")
    else:
        (tmp_path / "x.zip").write_bytes(content)
    with pytest.raises(UserError, match=problem):
        load_folder(tmp_path / "x.zip")
    assert not list((tmp_path / "cache").glob("archives/*"))


def test_a_damaged_zip_leaves_nothing(tmp_path: Path) -> None:
    file = zipped(make_photos(tmp_path / "photos"), tmp_path / "pets.zip")
    data = bytearray(file.read_bytes())
    data[60] ^= 255  # inside the first image
    file.write_bytes(data)
    with pytest.raises(UserError, match="cannot be read as a zip file"):
        unpack_archive(file)
    assert not list((tmp_path / "cache").glob("archives/*/cat"))


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_every_way_to_compress_is_read_and_its_damage_is_said_in_a_line(kind: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w", kind) as made:
        made.writestr("cat/0.png", bytes(range(256)) * 100)
    assert [path.name for path in unpack_archive(tmp_path / "x.zip").rglob("*.png")] == ["0.png"]
    data = bytearray((tmp_path / "x.zip").read_bytes())
    start = data.index(b"0.png") + 5
    data[start + 12 : start + 40] = bytes(28)
    (tmp_path / "y.zip").write_bytes(data)
    with pytest.raises(UserError, match=r"y.zip cannot be read as a zip file: .+"):
        unpack_archive(tmp_path / "y.zip")


def test_an_archive_that_the_disk_has_no_room_for_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = zipped(make_photos(tmp_path / "photos"), tmp_path / "pets.zip")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(UserError, match=r"(?s)holds \d+ bytes, .* has room for 10 bytes.*DCA_CACHE"):
        unpack_archive(file)
    assert not list((tmp_path / "cache" / "archives").glob("*/"))


def test_a_directory_of_very_many_names_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = zipped(make_photos(tmp_path / "photos"), tmp_path / "pets.zip")
    monkeypatch.setattr(archive, "MOST_DIRECTORY", 300)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(UserError, match="a directory of more than 300 bytes"):
        unpack_archive(file)


def test_folders_around_class_folders_are_entered(tmp_path: Path) -> None:
    make_photos(tmp_path / "all" / "of" / "them")
    assert load_folder(tmp_path / "all").labels == ("cat", "dog")
    one = tmp_path / "one"
    shutil.copytree(tmp_path / "all" / "of" / "them" / "cat", one / "cat")
    assert enter_folder(one) == one, "a single class that holds images"


def test_a_zip_is_taken_on_the_command_line(tmp_path: Path, tiny_folder: Path, dca: Callable[..., Said]) -> None:
    file = zipped(make_photos(tmp_path / "photos"), tmp_path / "pets.zip", "photos/")
    said = dca("fit", file, "-o", tmp_path / "m.dca", "--backbone", tiny_folder, "-q")
    assert said.code == 0, said.err
    assert (tmp_path / "m.dca" / "config.json").is_file()
