"""Six processes on one model folder, one run folder and one feature store, also where the file system has no locks."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dca.cli import main
from dca.core import files
from dca.features.store import FeatureStore
from dca.model import checkpoint
from helpers.kills import FAILED, run_child, snapshot, start_child

fcntl = pytest.importorskip("fcntl", reason="needs fork and flock")
SIX = range(6)


@pytest.fixture(params=[True, False], ids=["locks", "no locks"])
def locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the file system has locks."""
    if not request.param:

        def flock(*_: object) -> None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        monkeypatch.setattr(fcntl, "flock", flock)
    return bool(request.param)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, photos: Path, tiny_folder: Path) -> Path:
    """A model that every test copies."""
    folder = tmp_path_factory.mktemp("six") / "photos.dca"
    assert main(["fit", str(photos), "--backbone", str(tiny_folder), "--device", "cpu", "-q", "-o", str(folder)]) == 0
    return folder


def at_once(root: Path, work: Callable[[int], Any]) -> list[tuple[int, str]]:
    """Codes and outputs of six processes that work at the same time."""
    started = [start_child(lambda n=n: work(n), root, root.parent / f"log {n}") for n in SIX]  # type: ignore[misc]
    ended = [child.wait() for child in started]
    assert FAILED not in [child.code for child in ended], "\n".join(child.output for child in ended)
    return [(child.code, child.output) for child in ended]


def test_each_change_of_one_model_is_made_or_refused_in_a_line(
    model: Path, photos: Path, tmp_path: Path, locks: bool
) -> None:
    root = tmp_path / "root"
    shutil.copytree(model, root / "photos.dca")
    images = sorted((photos / "test").iterdir())[0]

    def add(number: int) -> int:
        return main(["add-class", str(root / "photos.dca"), f"new {number}", str(images), "-q"])

    missing, done = set(SIX), set[int]()
    while missing:
        found = at_once(root, lambda number, left=frozenset(missing): add(number) if number in left else 0)
        for number in sorted(missing):
            code, said = found[number]
            if code:
                assert code == 2
                assert "another fit or server is writing" in said
                assert "Traceback" not in said
        made = {number for number in missing if found[number][0] == 0}
        assert made, "one of them must come through"
        done |= made
        missing -= made
        labels = checkpoint.read_record(root / "photos.dca").labels
        assert {label for label in labels if str(label).startswith("new")} == {f"new {number}" for number in done}
        checkpoint.require_intact(root / "photos.dca")
    assert [path.name for path in root.iterdir()] == ["photos.dca"]


def test_the_same_fit_six_times_is_one_model(
    photos: Path, tiny_folder: Path, model: Path, tmp_path: Path, locks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DCA_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "root"
    root.mkdir()

    def fit(number: int) -> int:
        place = root / ("photos.dca" if number < 3 else f"{number}.dca")
        return main(["fit", str(photos), "--backbone", str(tiny_folder), "--device", "cpu", "-q", "-o", str(place)])

    found = at_once(root, fit)
    assert {code for code, _ in found[3:]} == {0}
    for code, said in found[:3]:
        assert code == 0 or (code == 2 and "another fit or server is writing" in said), said
    assert 0 in [code for code, _ in found[:3]]
    wanted = load_file(model / "model.safetensors")
    models = sorted(path.name for path in root.iterdir())
    assert models == ["3.dca", "4.dca", "5.dca", "photos.dca"]
    for name in models:
        checkpoint.require_intact(root / name)
        # Features that another fit has stored meanwhile leave smaller batches, which are rounded differently.
        torch.testing.assert_close(load_file(root / name / "model.safetensors"), wanted, rtol=1e-4, atol=1e-5)
    (space,) = FeatureStore().list_spaces()
    assert space.features >= 40


@pytest.mark.slow
def test_without_locks_a_killed_replacement_still_leaves_a_model(
    model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    root, log = tmp_path / "root", tmp_path / "log"

    def rename() -> int:
        return main(["rename-class", str(root / "photos.dca"), "fish", "pike", "-q"])

    def start() -> None:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(model, root / "photos.dca")

    start()
    whole = run_child(rename, root, log, can_exchange=False)
    assert whole.code == 0, whole.output
    wanted = snapshot(root)
    for number in range(len(whole.events)):
        if number % 3 and not whole.events[number].startswith("os.rename"):
            continue
        start()
        run_child(rename, root, log, kill_at=number, can_exchange=False)
        files.restore_folder(root / "photos.dca")
        checkpoint.require_intact(root / "photos.dca")
        again = run_child(rename, root, log, can_exchange=False)
        assert again.code == 0 or "unknown class 'fish'" in again.output, again.output
        assert snapshot(root) == wanted, whole.events[number]
