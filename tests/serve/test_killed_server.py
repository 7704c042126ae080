"""A server that is killed, or has a full disk, at a file event of correct, refit or undo: what was confirmed stays."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from dca.datasets.corrections import read_corrections
from dca.model import checkpoint
from helpers.kills import KILLED, Outcome, run_child
from serve.serving import client_of, picture, service_of

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


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)], ids=["few", "all"])
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
