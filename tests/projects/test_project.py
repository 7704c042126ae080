"""A project: every change is a move of files, can be undone and redone, and survives a kill at any moment."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dca.core.errors import UserError
from dca.datasets.folder import load_folder
from dca.projects.project import (
    PRIVATE,
    Project,
    ProjectError,
    clean_stem,
    create_project,
    find_projects,
    label_fault,
)

Tree = dict[str, bytes]


def files_of(root: Path) -> Tree:
    """Every photo and its content, by its path; empty classes end with "/"."""
    found = {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    found |= {f"{p.name}/": b"" for p in root.iterdir() if p.is_dir()}
    return {path: data for path, data in found.items() if not path.startswith(PRIVATE)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "work" / "pets"
    for label, count in (("cat", 3), ("dog", 2)):
        (folder / label).mkdir(parents=True)
        for n in range(count):
            (folder / label / f"{n}.jpg").write_bytes(f"{label} {n}".encode())
    return folder


def opened(root: Path) -> Project:
    project = Project(root)
    project.open()
    return project


def add(project: Project, label: str, data: bytes, name: str = "", step: object = None) -> str | None:
    photo = project.add_photo(
        step or project.begin_adding(), label, data, hashlib.sha256(data).hexdigest(), ".jpg", name
    )  # type: ignore[arg-type]
    return None if photo is None else photo.path


def confirm_first(project: Project) -> None:
    project.confirm(project.photos["cat"][0])


CHANGES: dict[str, Callable[[Project], object]] = {
    "create": lambda p: p.create_class("fox"),
    "rename": lambda p: p.rename_class("cat", "kitten"),
    "rename case": lambda p: p.rename_class("cat", "Cat"),
    "delete class": lambda p: p.delete_class("dog"),
    "merge": lambda p: p.merge_class("dog", "cat"),
    "move": lambda p: p.move_photos(p.photos["cat"][:2], "dog"),
    "move to a new class": lambda p: p.move_photos(p.photos["cat"][:2], "fox"),
    "delete": lambda p: p.delete_photos(p.photos["cat"]),
    "confirm": confirm_first,
    "add": lambda p: add(p, "fox", b"new photo", "IMG 1.JPG"),
}


@pytest.mark.parametrize("name", list(CHANGES))
def test_every_change_can_be_undone_and_redone(root: Path, name: str):
    project, before = opened(root), files_of(root)
    CHANGES[name](project)
    after = files_of(root)
    assert (after != before) == (name != "confirm")
    for _ in range(2):
        assert project.undo()
        assert files_of(root) == before
        assert project.redo()
        assert files_of(root) == after
    assert files_of(opened(root).root) == after
    assert opened(root).undo()
    assert files_of(root) == before
    assert opened(root).undo() is None


class KilledError(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("name", list(CHANGES))
@pytest.mark.parametrize("undoing", [False, True])
def test_a_kill_at_any_file_operation_loses_no_photo_and_is_completed(
    root: Path, name: str, undoing: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    contents = set(files_of(root).values()) - {b""}
    for moment in range(200):
        copy = tmp_path / f"{moment}" / "pets"
        copy.parent.mkdir()
        shutil.copytree(root, copy)
        project, before = opened(copy), files_of(copy)
        if undoing:
            CHANGES[name](project)
        whole = files_of(copy)
        left = moment

        def count(real: Callable[..., object]) -> Callable[..., object]:
            def call(*args: object, **kwargs: object) -> object:
                nonlocal left
                if left == 0:
                    raise KilledError
                left -= 1
                return real(*args, **kwargs)

            return call

        killed = False
        with monkeypatch.context() as patch:
            for function in ("rename", "replace", "mkdir", "rmdir", "unlink", "open"):
                patch.setattr(os, function, count(getattr(os, function)))
            try:
                project.undo() if undoing else CHANGES[name](project)
            except KilledError:
                killed = True
        everything = {p.read_bytes() for p in copy.rglob("*") if p.is_file()}
        assert contents <= everything, moment
        again = opened(copy)
        now = files_of(copy)
        if not killed:
            return
        if undoing:
            assert now in (whole, before), moment
        elif name != "add":  # photos that are added are each complete or not there
            assert now == before or again.journal.done == 1, moment
        while again.undo():
            pass
        assert {path: data for path, data in files_of(copy).items() if path in before} == before, moment
    raise AssertionError("the change never ended")


def test_it_is_what_fit_reads(root: Path):
    project = opened(root)
    project.create_class("fox")
    add(project, "fox", b"f", "a.png")
    project.delete_photos(project.photos["cat"][:1])
    dataset = load_folder(root)
    assert dataset.labels == ("cat", "dog", "fox")
    assert [item.image for item in dataset.train] == [project.path_of(photo) for photo in project.list_photos()]


def test_changes_by_hand_are_seen(root: Path):
    project = opened(root)
    assert not project.rescan()
    (root / "cat" / "0.jpg").rename(root / "dog" / "x.jpg")
    (root / "fox").mkdir()
    (root / "cat" / "1.jpg").write_bytes(b"changed")
    assert project.rescan()
    assert {label: len(photos) for label, photos in project.photos.items()} == {"cat": 2, "dog": 3, "fox": 0}
    assert hashlib.sha256(b"changed").hexdigest() in {photo.sha256 for photo in project.photos["cat"]}


def test_undo_keeps_what_others_have_put_into_a_class(root: Path):
    project = opened(root)
    project.create_class("fox")
    (root / "fox" / "mine.jpg").write_bytes(b"mine")
    assert project.undo()
    assert (root / "fox" / "mine.jpg").read_bytes() == b"mine"


def test_undo_never_replaces_a_file(root: Path):
    project = opened(root)
    project.delete_photos(project.photos["cat"][:1])
    (root / "cat" / "0.jpg").write_bytes(b"another")
    project.undo()
    assert (root / "cat" / "0.jpg").read_bytes() == b"another"


def test_photos_of_one_drop_are_one_step_and_copies_are_left_out(root: Path):
    project, before = opened(root), files_of(root)
    step = project.begin_adding()
    paths = [add(project, "fox", f"{n}".encode(), "IMG.jpg", step) for n in range(3)]
    assert paths == ["fox/IMG.jpg", "fox/IMG-2.jpg", "fox/IMG-3.jpg"]
    assert add(project, "fox", b"1", "other.jpg", step) is None
    assert str(project.journal.last_done) == "adding 3 photos"
    assert opened(root).undo() == "adding 3 photos"
    assert files_of(root) == before


def test_moving_never_replaces_a_photo(root: Path):
    project = opened(root)
    project.move_photos(project.photos["dog"], "cat")
    assert {p.name for p in (root / "cat").iterdir()} == {"0.jpg", "1.jpg", "2.jpg", "0-2.jpg", "1-2.jpg"}


def test_steps_and_trash_are_bounded(root: Path):
    project = Project(root, most_steps=3)
    project.open()
    for n in range(6):
        project.create_class(f"class {n}")
    assert project.journal.done == 3
    project = Project(root, trash_bytes=4)
    project.open()
    project.delete_class("dog")
    project.delete_class("cat")
    assert project.journal.done == 1
    assert sum(p.is_file() for p in (root / PRIVATE / "trash").rglob("*")) == 3


@pytest.mark.parametrize("step", ["{", '{"words": "x", "adds": false}\n["cat/0.jpg", "../../x"]\n'])
def test_a_damaged_step_is_an_error_with_a_way_out(root: Path, step: str):
    (root / PRIVATE / "steps").mkdir(parents=True)
    (root / PRIVATE / "steps" / "000001.begun").write_text(step)
    with pytest.raises(UserError, match="not a readable step"):
        opened(root)
    assert (root / "cat" / "0.jpg").exists()


@pytest.mark.parametrize("label", ["", "a/b", "..", ".x", "test", "CON", "x" * 90, "a\nb", "none of these", "a\u202eb"])
def test_names_that_no_folder_should_have_are_refused(root: Path, label: str):
    assert label_fault(" ".join(label.split()) if label.strip() else label) or label == "a\nb"
    if label != "a\nb":
        with pytest.raises(ProjectError):
            opened(root).create_class(label)


@pytest.mark.parametrize("name", ["../../etc/passwd", "a\x00b.jpg", "\u202egpj.exe", "." * 300, "con.png", "🦊/🦊.jpg"])
def test_names_of_clients_become_harmless(name: str):
    stem = clean_stem(name)
    assert len(stem) <= 61
    assert not set(stem) & set("/\\\x00.\u202e")
    assert stem.lower() != "con"


def test_two_classes_that_read_the_same_are_refused(root: Path):
    with pytest.raises(ProjectError, match="there is a class cat"):
        opened(root).create_class("CAT")


def test_a_folder_with_parts_is_refused_with_a_way_out(root: Path):
    (root / "cat").rename(root / "train")
    (root / "dog").rename(root / "test")
    with pytest.raises(UserError, match="divided into parts"):
        opened(root)


def test_projects_of_a_workspace(root: Path):
    workspace = root.parent
    (workspace / "notes").mkdir()
    made = create_project(workspace, "birds")
    assert [folder.name for folder in find_projects(workspace)] == ["birds", "pets"]
    for name in ("Birds", "x.dca", "../x"):
        with pytest.raises(ProjectError):
            create_project(workspace, name)
    assert opened(made).photos == {}


def test_hashes_are_kept_between_starts(root: Path, monkeypatch: pytest.MonkeyPatch):
    project = opened(root)
    project.save_index()
    monkeypatch.setattr("dca.projects.project.sha256_of", lambda path: pytest.fail("read again"))
    assert opened(root).photos == project.photos
