"""A server that is killed, or has a full disk, at a file event of a change: what was confirmed stays."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from dca.core.files import exclusive_lock
from dca.datasets.corrections import read_corrections
from dca.model import checkpoint
from dca.projects.project import Project
from dca.serve.projects_service import ProjectsService
from dca.serve.server import create_app
from dca.training.session import Session
from helpers.kills import KILLED, Outcome, run_child
from serve.serving import ADDRESS, OPTIONS, client_of, picture, service_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
IMAGES = [picture("PNG", colour=40 * n) for n in range(2)]
# What a client does, and the labels of the two images after each step.
STEPS: list[tuple[str, int, str, tuple[str | None, str | None]]] = [
    ("correct", 0, "narwhal", ("narwhal", None)),
    ("correct", 1, "fish", ("narwhal", "fish")),
    ("refit", 0, "", ("narwhal", "fish")),
    ("correct", 0, "house", ("house", "fish")),
    ("undo", 0, "", ("narwhal", "fish")),
    ("undo", 0, "", ("narwhal", "fish")),
    ("undo", 0, "", ("narwhal", None)),
]


def act(folder: Path) -> None:
    """All steps; each that is confirmed is printed."""
    with client_of(service_of(folder)) as client:
        hashes = [client.post("/api/predict", content=image).json()["image"] for image in IMAGES]
        for number, (action, image, label, _) in enumerate(STEPS):
            body = {"image": hashes[image], "label": label} if action == "correct" else {}
            answer = client.post(f"/api/{action}", json=body)
            sys.stdout.write(f"step {number} {answer.status_code} {answer.json().get('code', '')}\n")
            if answer.status_code != 200:
                return


def act_in_child(closed_form: Path, place: Path, **options: int) -> tuple[Path, Outcome]:
    """The same in a child, on a model of its own."""
    folder = place / "root" / "photos.dca"
    shutil.rmtree(place / "root", ignore_errors=True)
    shutil.copytree(closed_form, folder)
    return folder, run_child(lambda: act(folder), place / "root", place / "log", **options)


def labels(folder: Path) -> tuple[str | None, ...]:
    """The labels of the two images on disk; every file is whole."""
    found = {correction.path.read_bytes(): correction.label for correction in read_corrections(folder)}
    assert found.keys() <= set(IMAGES)
    return tuple(found.get(image) for image in IMAGES)


def require_confirmed(folder: Path, output: str) -> None:
    """What is on disk is the state after the last confirmed step, or after the one that was interrupted."""
    confirmed = [line for line in output.splitlines() if line.startswith("step") and " 200 " in line]
    states = [(None, None), *(state for *_, state in STEPS)]
    assert labels(folder) in states[len(confirmed) : len(confirmed) + 2], output
    checkpoint.require_intact(folder)


def require_start(folder: Path) -> None:
    """A server starts with everything, and leaves no rubbish."""
    found = labels(folder)
    with client_of(service_of(folder)) as client:
        assert client.get("/api/model").json()["corrections"] == sum(label is not None for label in found)
    assert labels(folder) == found


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)], ids=["few", "all"])
def test_a_server_killed_at_file_events_has_all_that_was_confirmed(
    every: int, closed_form: Path, tmp_path: Path
) -> None:
    _, whole = act_in_child(closed_form, tmp_path)
    assert whole.code == 0, whole.output
    assert whole.output.count(" 200 ") == len(STEPS), whole.output
    assert len(whole.events) >= 8
    for number in range(0, len(whole.events), every):
        folder, killed = act_in_child(closed_form, tmp_path, kill_at=number)
        assert killed.code == KILLED, whole.events[number]
        require_confirmed(folder, killed.output)
        require_start(folder)


@pytest.mark.parametrize("every", [16, pytest.param(1, marks=pytest.mark.slow)], ids=["few", "all"])
def test_a_full_disk_is_answered_with_507_and_loses_nothing(every: int, closed_form: Path, tmp_path: Path) -> None:
    events = act_in_child(closed_form, tmp_path)[1].events
    for number in range(0, len(events), every):
        folder, full = act_in_child(closed_form, tmp_path, full_at=number)
        assert full.code == 0, full.output
        last = [line for line in full.output.splitlines() if line.startswith("step")][-1]
        assert last.endswith(("507 not-stored", "200 ")), full.output
        assert "Traceback" not in full.output
        require_confirmed(folder, full.output)
        require_start(folder)


# Changes of a project with one class, which cannot be fitted: path, body, and numbers of images by class after each.
CHANGES: list[tuple[str, Any, dict[str, set[int]]]] = [
    ("photos?class=cat", 0, {"cat": {0}}),
    ("photos?class=cat", 1, {"cat": {0, 1}}),
    ("classes", {"label": "dog"}, {"cat": {0, 1}, "dog": set()}),
    ("classes/rename", {"label": "cat", "to": "fox"}, {"fox": {0, 1}, "dog": set()}),
    ("photos/delete", 0, {"fox": {1}, "dog": set()}),
    ("undo", {}, {"fox": {0, 1}, "dog": set()}),
    ("redo", {}, {"fox": {1}, "dog": set()}),
    ("classes/merge", {"label": "fox", "to": "dog"}, {"dog": {1}}),
]


def change(workspace: Path, backbone: Path) -> None:
    """All changes; each that is confirmed is printed."""
    service = ProjectsService(workspace, Session(device="cpu"), str(backbone), OPTIONS)
    with TestClient(create_app(service), base_url=ADDRESS, headers={"X-DCA": "1"}) as client:
        for number, (path, body, _) in enumerate(CHANGES):
            content: dict[str, Any] = {"json": body}
            if path.startswith("photos?"):
                content = {"content": IMAGES[body]}
            elif path == "photos/delete":
                rows = client.get("/api/projects/things/photos?class=fox").json()["photos"]
                own = hashlib.sha256(IMAGES[body]).hexdigest()
                content = {"json": {"photos": [row["photo"] for row in rows if row["image"] == own]}}
            answer = client.post(f"/api/projects/things/{path}", **content)
            sys.stdout.write(f"step {number} {answer.status_code} {answer.json().get('code', '')}\n")
            if answer.status_code >= 300:
                return


def change_in_child(backbone: Path, place: Path, **options: int) -> tuple[Path, Outcome]:
    """The same in a child, in a workspace of its own."""
    shutil.rmtree(place / "work", ignore_errors=True)
    (place / "work" / "things" / ".dca").mkdir(parents=True)
    return place / "work" / "things", run_child(
        lambda: change(place / "work", backbone), place / "work", place / "log", **options
    )


def require_changes(root: Path, output: str) -> None:
    """The next server finds the state after the last confirmed change, or after the one that was interrupted."""
    confirmed = [line for line in output.splitlines() if line.startswith("step") and " 20" in line]
    with exclusive_lock(root):
        project = Project(root)
        project.open()
    numbers = {hashlib.sha256(image).hexdigest(): number for number, image in enumerate(IMAGES)}
    found = {label: {numbers[photo.sha256] for photo in photos} for label, photos in project.photos.items()}
    states = [{}, *(state for *_, state in CHANGES)]
    begun = [{"cat": set()}] if not confirmed else []  # the class of the first photo is made before it
    assert found in [*states[len(confirmed) : len(confirmed) + 2], *begun], output
    assert list(root.rglob("*.new")) == [], output


@pytest.mark.parametrize("how", ["kill_at", "full_at"])
@pytest.mark.parametrize("every", [25, pytest.param(1, marks=pytest.mark.slow)], ids=["few", "all"])
def test_a_change_of_a_project_that_was_confirmed_stays(
    every: int, how: str, tiny_folder: Path, tmp_path: Path
) -> None:
    _, whole = change_in_child(tiny_folder, tmp_path)
    assert whole.code == 0, whole.output
    assert whole.output.count(" 20") == len(CHANGES), whole.output
    for number in range(0, len(whole.events), every):
        root, ended = change_in_child(tiny_folder, tmp_path, **{how: number})
        # When the index is written depends on time, so that there may be fewer events.
        whole_anyway = ended.code == 0 and (how == "full_at" or len(ended.events) <= number)
        assert ended.code == KILLED or whole_anyway, f"{whole.events[number]}\n{ended.output}"
        assert "Traceback" not in ended.output
        require_changes(root, ended.output)
        if how == "full_at":
            last = [line for line in ended.output.splitlines() if line.startswith("step")][-1:]
            assert not last or last[0].endswith((" 507 not-stored", "200 ", "201 ")), ended.output
