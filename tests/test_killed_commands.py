"""A command that is killed just before any of its file events loses nothing, and ends as an unkilled one when repeated.

The same holds where the disk is full from any of its file events on; it then ends with one clear line. The fast tests
stop at a few events of every command, the slow ones at all of them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dca.cli import main
from dca.core.files import exclusive_lock, restore_folder, write_json
from dca.datasets.corrections import read_corrections, remove_correction, write_correction
from dca.datasets.sample import write_sample
from dca.datasets.walk import list_class_folders
from dca.export import folder as export_folder
from dca.export.folder import TorchParity
from dca.export.program import ModelDescription, require_onnx
from dca.images.hashing import sha256_of
from dca.model import checkpoint, shards
from dca.model.shards import MANIFEST
from dca.projects.project import find_projects
from helpers.kills import KILLED, run_child, snapshot
from helpers.ray_stand_in import StandIn

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
# How many events the fast tests kill at, evenly spread, beside those of the replacement itself.
FEW = 3
MODEL = "photos.dca"
# Events of a replacement.
REPLACING = ("exchange", *(f"os.rename {start}{name}" for start in (".", "") for name in ("photos", "out", "parts")))


@dataclass(frozen=True)
class Case:
    """A command on a copy of a model folder.

    arguments: with names of folders in braces. target: what it writes. replaces: whether that is there before.
    done: what the command says where it was done already.
    """

    arguments: tuple[str, ...]
    target: str = MODEL
    replaces: bool = True
    done: str = ""


FIT = ("fit", "{photos}", "--backbone", "{backbone}", "--device", "cpu", "-q", "-o", "{root}/photos.dca")
CASES = {
    "add-class": Case(("add-class", "{root}/photos.dca", "zebra", "{zebras}", "-q"), done="a class 'zebra' already"),
    "rename-class": Case(("rename-class", "{root}/photos.dca", "fish", "pike", "-q"), done="unknown class 'fish'"),
    "fit": Case((*FIT, "--method", "dca", "--set", "epochs=2", "--set", "batch_size=16"), replaces=False),
    "fit --overwrite": Case((*FIT, "--overwrite")),
    "export": Case(("export", "{model}", "--onnx", "{root}/out", "-q"), "out", replaces=False, done="holds an export"),
    "export --overwrite": Case(("export", "{model}", "--onnx", "{root}/out", "-q", "--overwrite"), "out"),
    "report": Case(("report", "{root}/photos.dca", "-q")),
    "predict -o": Case(
        ("predict", "{model}", "{photos}/test", "-o", "{root}/out.csv", "-q"),
        "out.csv", replaces=False, done="out.csv exists",
    ),
    "predict -o --overwrite": Case(
        ("predict", "{model}", "{photos}/test", "-o", "{root}/out.csv", "-q", "--overwrite"), "out.csv"
    ),
    "predict --backend ray --overwrite": Case(
        ("predict", "{model}", "{photos}/test", "--backend", "ray", "--per-shard", "8", "-o", "{root}/parts", "-q",
         "--overwrite"),
        "parts",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class World:
    """Folders that commands read (`names`), a folder as it is before a command (`before`), and where commands run."""

    names: dict[str, str]
    before: Path
    scratch: Path

    def start(self, case: Case) -> Path:
        """The folder that the command may change, anew."""
        root = self.scratch / "root"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.before, root)
        if not case.replaces:
            path = root / case.target
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return root

    def run(self, case: Case, **options: Any) -> Any:
        """Run the command in a child."""
        root = self.scratch / "root"
        arguments = [part.format(root=root, **self.names) for part in case.arguments]
        return run_child(lambda: main(arguments), root, self.scratch / "log", **options)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> World:
    """A model with corrections and files of the user's, an export of another model, and its predictions, twice."""
    require_onnx()  # and other modules that every child would load again
    import dca.report.assemble  # noqa: F401

    base = tmp_path_factory.mktemp("killed")
    photos = write_sample(base / "photos", per_class_train=2, per_class_test=2, size=32)
    before, model, zebras = base / "before", base / "before" / MODEL, base / "zebras"
    assert main(["fit", str(photos), "--backbone", str(tiny_folder), "--device", "cpu", "-q", "-o", str(model)]) == 0
    shutil.copytree(model, base / MODEL)
    zebras.mkdir()
    for n, label in enumerate(("narwhal", "fish")):
        image = photos / "test" / "house" / f"00{n}.png"
        shutil.copy(image, zebras)
        write_correction(model, label, image.read_bytes(), sha256_of(image), ".png")
    (model / "notes.txt").write_text("mine")
    (model / "labels").mkdir()
    (model / "labels" / "old.csv").write_text("path,label")
    (before / "out").mkdir()
    for name, text in (("model.onnx", "old"), ("classes.json", '{"library": "dca-prompt"}'), ("predict.py", "")):
        (before / "out" / name).write_text(text)
    (before / "out.csv").write_text("path,label\n")
    (before / "parts").mkdir()
    for name, text in ((MANIFEST, "{}\n"), ("part-00000.csv", "path,label\n"), ("notes.txt", "mine")):
        (before / "parts" / name).write_text(text)
    names = {"photos": str(photos), "backbone": str(tiny_folder), "zebras": str(zebras), "model": str(base / MODEL)}
    return World(names, before, tmp_path_factory.mktemp("scratch"))


@pytest.fixture(autouse=True)
def quick_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export whose program is a stand-in: to convert a model takes 15 s, and writes one file."""

    def write_model(
        model: object, folder: Path, description: ModelDescription, *_: object, **__: object
    ) -> tuple[TorchParity, None]:
        write_json(folder / export_folder.CLASSES, description.to_dict())
        (folder / "model.onnx").write_text("program")
        return TorchParity(0.0, 1), None

    monkeypatch.setattr(export_folder, "_write_model", write_model)


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that is this process."""
    monkeypatch.setattr(shards, "connect_ray", StandIn)


def kept(model: Path) -> Any:
    """What the user has in a model folder."""
    corrections = {(found.sha256, found.label) for found in read_corrections(model)}
    return corrections, (model / "notes.txt").read_text(), (model / "labels" / "old.csv").read_text()


def require_nothing_lost(world: World, case: Case, wanted: dict[str, Any], why: str, *, can_exchange: bool) -> None:
    """The model is whole, with all that the user has in it; anything else is as it was, or as it is to be.

    What is replaced exists; where two names cannot be exchanged, once it has been looked for.
    """
    root, target = world.scratch / "root", world.scratch / "root" / case.target
    if case.replaces and can_exchange:
        assert target.exists(), why
    if case.target != MODEL:
        restore_folder(target)
        if case.replaces:
            assert target.exists(), why
        if target.exists():
            now, before = snapshot(root), snapshot(world.before)
            parts = [name for name in {*wanted, *before} if name.partition("/")[0] == case.target]
            assert [now.get(name) for name in parts] in (
                [wanted.get(name) for name in parts], [before.get(name) for name in parts],
            ), why  # fmt: skip
        return
    if not case.replaces and not target.exists():
        return
    checkpoint.read_record(target)  # puts back a folder that was moved aside
    checkpoint.read_tensors(target)
    checkpoint.require_intact(target)
    if case.replaces:
        assert checkpoint.load_gallery(target) is not None, why
        assert kept(target) == kept(world.before / MODEL), why


def kill_at(world: World, case: Case, choose: Callable[[tuple[str, ...]], list[int]], *, can_exchange: bool) -> None:
    """Kill the command before each of the chosen events; look at what is left, and repeat it."""
    world.start(case)
    whole = world.run(case, can_exchange=can_exchange)
    assert whole.code == 0, whole.output
    wanted = snapshot(world.scratch / "root")
    for number in choose(whole.events):
        why = f"killed before event {number}: {whole.events[number]}"
        world.start(case)
        assert world.run(case, kill_at=number, can_exchange=can_exchange).code == KILLED, why
        require_nothing_lost(world, case, wanted, why, can_exchange=can_exchange)
        again = world.run(case, can_exchange=can_exchange)
        assert again.code == 0 or (case.done and case.done in again.output), f"{why}\n{again.output}"
        assert snapshot(world.scratch / "root") == wanted, why


def fill_disk_at(world: World, case: Case, choose: Callable[[tuple[str, ...]], list[int]]) -> None:
    """Let the disk be full from each of the chosen events on; look at what is left, and repeat with space."""
    world.start(case)
    whole = world.run(case)
    wanted = snapshot(world.scratch / "root")
    for number in choose(whole.events):
        why = f"full from event {number} on: {whole.events[number]}"
        world.start(case)
        full = world.run(case, full_at=number)
        assert "Traceback" not in full.output, f"{why}\n{full.output}"
        if full.code == 0:  # what could not be written was of no consequence
            assert snapshot(world.scratch / "root") == wanted, why
            continue
        said = [line for line in full.output.splitlines() if "No space left on device" in line]
        assert full.code == 2, f"{why}\n{full.output}"
        assert len(said) == 1, f"{why}\n{full.output}"
        require_nothing_lost(world, case, wanted, why, can_exchange=True)
        again = world.run(case)
        assert again.code == 0 or (case.done and case.done in again.output), f"{why}\n{again.output}"
        assert snapshot(world.scratch / "root") == wanted, why


def choose_few(events: tuple[str, ...]) -> list[int]:
    """The last steps of a replacement, and a few events more."""
    chosen = {n for n, event in enumerate(events) if event.startswith(REPLACING)}
    return sorted(chosen | {len(events) * n // FEW for n in range(1, FEW)} | {len(events) - 1})


@pytest.mark.parametrize(
    ("name", "can_exchange"),
    [
        ("add-class", True), ("export --overwrite", False), ("predict -o --overwrite", True),
        ("predict --backend ray --overwrite", False),
        pytest.param("fit --overwrite", True, marks=pytest.mark.slow),
        pytest.param("fit --overwrite", False, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_leftovers_are_never_shown_and_the_next_command_puts_them_right(
    world: World, name: str, can_exchange: bool
) -> None:
    case, root = CASES[name], world.start(CASES[name])
    events = world.run(case, can_exchange=can_exchange).events
    before = {path.name for path in world.before.iterdir()}
    left = 0
    for number in {len(events) // 2, *(n for n, event in enumerate(events) if event.startswith(REPLACING))}:
        why = f"killed before event {number}: {events[number]}"
        world.start(case)
        assert world.run(case, kill_at=number, can_exchange=can_exchange).code == KILLED, why
        left += len(list_leftovers(root))
        # An unfinished fit and unfinished predictions have names that say so.
        shown = {path.name for path in root.iterdir() if not path.name.startswith(".")}
        assert shown <= before | {f"{case.target}.partial"}, why
        assert {path.name for path in list_class_folders(root)} <= before | {f"{case.target}.partial"}, why
        assert find_projects(root) == [], why
        with exclusive_lock(root / case.target):  # as every command takes it that writes there
            assert list_leftovers(root) == [], why
        assert before <= {path.name for path in root.iterdir()}, why
    assert left


def list_leftovers(root: Path) -> list[Path]:
    """What is below a folder under a hidden name; lock files, which block nobody, do not count."""
    return [path for path in root.rglob(".*") if path.suffix != ".lock"]


def test_an_export_that_was_moved_aside_is_not_replaced_unasked(world: World) -> None:
    case = CASES["export --overwrite"]
    root = world.start(case)
    (root / "out").rename(root / ".out.old")  # where a kill between two renames leaves it
    refused = world.run(CASES["export"])
    assert refused.code == 2
    assert "out holds an export" in refused.output
    assert snapshot(root) == snapshot(world.before)


# The others are killed at every event by `make test-slow`.
@pytest.mark.parametrize(
    "name", ["add-class", "fit --overwrite", "export", "predict -o", "predict --backend ray --overwrite"]
)
def test_a_command_killed_at_a_few_events_loses_nothing(world: World, name: str) -> None:
    kill_at(world, CASES[name], choose_few, can_exchange=name != "rename-class")


@pytest.mark.slow
@pytest.mark.parametrize("can_exchange", [True, False], ids=["exchange", "two renames"])
@pytest.mark.parametrize("name", CASES)
def test_a_command_killed_at_every_event_loses_nothing(world: World, name: str, can_exchange: bool) -> None:
    kill_at(world, CASES[name], lambda events: list(range(len(events))), can_exchange=can_exchange)


def spread(events: tuple[str, ...]) -> list[int]:
    """A few events, from the first to the last."""
    return sorted({n * (len(events) - 1) // FEW for n in range(FEW + 1)})


@pytest.mark.parametrize("name", CASES)
def test_a_full_disk_at_a_few_writes_loses_nothing_and_is_said_in_a_line(world: World, name: str) -> None:
    fill_disk_at(world, CASES[name], spread)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_full_disk_at_every_write_loses_nothing_and_is_said_in_a_line(world: World, name: str) -> None:
    fill_disk_at(world, CASES[name], lambda events: list(range(len(events))))


@pytest.mark.parametrize("step", ["first", "relabelled", "undone"])
def test_a_correction_killed_at_every_event_is_not_lost(tmp_path: Path, step: str) -> None:
    data, before = b"an image", tmp_path / "before"
    before.mkdir()
    if step != "first":
        write_correction(before, "cat", data, "0a" * 32, ".png")
    labels = {"first": ([], ["dog"]), "relabelled": (["cat"], ["dog"]), "undone": (["cat"], [])}[step]

    def correct() -> None:
        if step == "undone":
            remove_correction(tmp_path / "now", "0a" * 32)
        else:
            write_correction(tmp_path / "now", "dog", data, "0a" * 32, ".png")

    def found() -> list[str]:
        corrections = read_corrections(tmp_path / "now")
        assert all(one.path.read_bytes() == data for one in corrections)
        return [one.label for one in corrections]

    shutil.copytree(before, tmp_path / "now")
    events = run_child(correct, tmp_path / "now", tmp_path / "log").events
    assert len(events) >= 2
    assert found() == labels[1]
    for number in range(len(events)):
        shutil.rmtree(tmp_path / "now")
        shutil.copytree(before, tmp_path / "now")
        assert run_child(correct, tmp_path / "now", tmp_path / "log", kill_at=number).code == KILLED
        assert found() in labels
        correct()
        assert found() == labels[1]
