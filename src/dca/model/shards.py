"""More images than one machine can take, on an existing Ray cluster: one task per shard.

The shards are files of one folder: part-00000.csv, part-00001.csv, ..., each written in one rename. A manifest is
written first and says which images belong to which shard. So every process that makes a shard, now or after an
interruption, makes the same file, and a shard is finished if its file is there. Ray starts tasks again whose worker or
node has died. What is made of the images of a shard is a `ShardWork`.

Where the folder holds shards of another command, which are to be replaced, the new ones are made in FOLDER.partial. It
takes the place of the folder when all of them are there, so that no moment is without shards.

The working folder, what the work loads, the images and the output must be shared by all nodes, and `dca` be installed
on them.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from dca.core.errors import UserError
from dca.core.files import (
    atomic_replace,
    atomic_write,
    encode_utf8,
    exclusive_lock,
    explain_write_errors,
    is_abandoned,
    link_tree,
    partial_folder,
    remove_abandoned,
    restore_folder,
)
from dca.core.hints import allow_overwrite, choose_output, start_ray
from dca.core.progress import Progress
from dca.core.text import pluralize
from dca.model.predict import Tally
from dca.model.prediction_files import WRITERS

# Tasks per GPU unless the number of tasks is given.
PER_GPU = 4
# Readers of a folder of Parquet or CSV files leave out names that begin with an underscore.
MANIFEST = "_manifest.jsonl"
# How the names of shards begin that are being written.
UNFINISHED = ".part-"
# Images per shard: a multiple of the batch sizes, so that batches are those of a run into one file.
PER_SHARD = 1024
# Seconds between two reports of progress while no shard ends.
PULSE = 1.0
# How often Ray starts a task again whose worker or node has died.
RETRIES = 3


class ShardWork(Protocol):
    """What is made of images, in shards. Hashable, since a process keeps what it has loaded for further tasks."""

    @property
    def device(self) -> str:
        """Where it is wanted: "auto" takes the GPUs of the cluster if it has some; "cpu" none."""

    def load(self, device: str) -> Any:
        """Load what makes shards."""

    def identify(self, loaded: Any) -> dict[str, Any]:
        """Plain values that decide the rows; raises for what cannot be made, before anything is written."""

    def make(self, loaded: Any, images: Sequence[str], output: Path) -> Tally:
        """Make the file of a shard, which appears when it is complete, and count its rows."""


@dataclass(frozen=True)
class ShardsDone:
    """The rows of all shards, what decides them, how many of them this call made, and the seconds that it took."""

    identity: dict[str, Any]
    tally: Tally
    made: int
    seconds: float


def make_shards_on_ray(
    work: ShardWork,
    images: Sequence[str],
    folder: Path,
    *,
    kind: str,
    per_shard: int,
    overwrite: bool,
    progress: Progress,
) -> ShardsDone:
    """Make the shards of images on a Ray cluster.

    A call with the same arguments continues an interrupted one: shards whose files are there are not made again.

    Args:
        work: What is made of the images of a shard.
        images: Paths of files; one that is given twice has one row.
        folder: Where part-00000, part-00001, ... are written.
        kind: Suffix of the files.
        per_shard: Images per shard.
        overwrite: Replace shards of another call that are in the folder, when all of the new ones are there.
        progress: Receives the progress, with the rate.

    Returns:
        What was made.

    Raises:
        UserError: If Ray is not installed, there is no cluster, the folder holds something else or cannot be written,
            the work is refused, or a task was lost more often than Ray restarts it.
    """
    ray = connect_ray()
    try:
        identity = work.identify(work.load("cpu"))
        at_once, gpus = share_resources(ray.cluster_resources(), work.device)
        context = _TaskContext(work, "auto" if gpus else "cpu")
        paths = list(dict.fromkeys(str(Path(image)) for image in images))  # "./a.jpg" and "a.jpg" are one
        with exclusive_lock(folder, "command"):
            facts = {**identity, "device": context.device}
            shards = open_shards(folder, paths, kind, facts, per_shard=per_shard, overwrite=overwrite)
            task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_make_shard)
            tallies = _iterate_tallies(ray, task, shards, context, at_once)
            done = ShardsDone(identity, *_make_left(shards, tallies, progress))
            shards.finish(folder)
            return done
    finally:
        ray.shutdown()  # cancels what this call has submitted; the cluster goes on


@dataclass(frozen=True)
class _TaskContext:
    """What a task needs beside its images. device: of the task. folder: working folder. most_pixels: Pillow's limit."""

    work: ShardWork
    device: str
    folder: str = field(default_factory=os.getcwd)
    most_pixels: int | None = field(default_factory=lambda: Image.MAX_IMAGE_PIXELS)


def _make_left(shards: Shards, tallies: Iterator[Tally | None], progress: Progress) -> tuple[Tally, int, float]:
    """Make the shards that are left; returns the rows of all, how many are new, and the seconds."""
    left = shards.unfinished()
    total = shards.tally(sorted(set(range(len(shards.images))) - set(left)))
    images, now, began = sum(map(len, shards.images)), 0, time.monotonic()
    for tally in tallies:
        if tally is not None:
            now += tally.rows
            total.add(tally)
        progress("images", total.rows, images, f"{now / (time.monotonic() - began):.1f} images/s")
    return total, now, time.monotonic() - began


def _iterate_tallies(
    ray: Any, task: Any, shards: Shards, context: _TaskContext, at_once: int
) -> Iterator[Tally | None]:
    """The tally of each shard as it is finished, and None when a second has passed without one."""
    left, running = shards.unfinished()[::-1], dict[Any, int]()
    while left or running:
        # A second task per worker waits on its node, so that none is idle between two shards.
        while left and len(running) < 2 * at_once:
            number = left.pop()
            running[task.remote(shards.images[number], str(shards.shard_path(number)), context)] = number
        ended, _ = ray.wait(list(running), timeout=PULSE)
        for reference in ended:
            yield _fetch_tally(ray, reference, shards.shard_path(running.pop(reference)))
        if not ended:
            yield None


def _fetch_tally(ray: Any, reference: Any, part: Path) -> Tally:
    """What a task returned; its error as it would be on this machine."""
    try:
        found: Tally = ray.get(reference)
        return found
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, UserError) else error from None
    except ray.exceptions.RayError as error:
        problem = f"{part}: the task was lost ({type(error).__name__}: {str(error).strip().splitlines()[0]})"
        raise UserError(problem, hint="give the same command again: finished shards are kept") from None


def _make_shard(images: Sequence[str], output: str, context: _TaskContext) -> Tally:
    """The task: one shard."""
    return context.work.make(_load_once(context), images, Path(output))


@cache
def _load_once(context: _TaskContext) -> Any:
    """What makes shards in this process. Ray gives a process the GPU of its task and keeps it for further tasks."""
    os.chdir(context.folder)
    Image.MAX_IMAGE_PIXELS = context.most_pixels
    return context.work.load(context.device)


# The cluster


def connect_ray() -> Any:
    """Connect to the Ray cluster that RAY_ADDRESS names, or that runs on this machine; returns the module ray.

    Raises:
        UserError: If Ray is not installed, or there is no cluster.
    """
    try:
        import ray
        from ray import init  # a folder called ray in the working folder is no library
    except ImportError:
        raise UserError(
            "the backend ray needs Ray, which is not installed.", hint="pip install 'dca-prompt[ray]'"
        ) from None
    try:
        init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError:
        raise UserError("no Ray cluster was found", hint=start_ray()) from None
    return ray


def share_resources(resources: dict[str, float], device: str, tasks: int | None = None) -> tuple[int, float]:
    """Share the cluster among equal tasks: how many run at once, and the part of a GPU that each has.

    Args:
        resources: Of the cluster, as Ray names them.
        device: "auto" takes the GPUs of the cluster if it has some; "cpu" none.
        tasks: Tasks at once; by default 4 per GPU, or one per CPU.

    Returns:
        Both numbers.

    >>> share_resources({"CPU": 16, "GPU": 2}, "auto"), share_resources({"CPU": 16, "GPU": 2}, "cpu")
    ((8, 0.25), (16, 0))
    >>> share_resources({"CPU": 16, "GPU": 2}, "auto", 3), share_resources({"CPU": 4}, "auto", 2)
    ((3, 0.5), (2, 0))
    """
    gpus = 0 if device == "cpu" else int(resources.get("GPU", 0))
    at_once = tasks or (PER_GPU * gpus if gpus else max(1, int(resources.get("CPU", 1))))
    return at_once, 1 / -(-at_once // gpus) if gpus else 0


# Shards


@dataclass(frozen=True)
class Shards:
    """The shards of one command.

    Attributes:
        folder: Where they are made, and are afterwards unless they take the place of others.
        kind: Suffix of their files.
        images: Paths of the images of each shard.
    """

    folder: Path
    kind: str
    images: Sequence[Sequence[str]]

    def shard_path(self, number: int) -> Path:
        """The file of a shard."""
        return self.folder / f"part-{number:05d}{self.kind}"

    def unfinished(self) -> list[int]:
        """Numbers of the shards that are not finished."""
        return [number for number in range(len(self.images)) if not self.shard_path(number).is_file()]

    def finish(self, target: Path) -> None:
        """Put the shards, which are all there, in the place of the folder `target`, if they are not in it already.

        What else is in it is kept; what killed processes have left of shards is removed.
        """
        for path in self.folder.glob(f"{UNFINISHED}*"):
            path.unlink(missing_ok=True)
        if self.folder == target:
            return
        remove_abandoned(self.folder)
        with explain_write_errors(self.folder):
            for path in _list_others(target):
                link_tree(path, self.folder / path.name)
        atomic_replace(self.folder, target)

    def tally(self, numbers: Sequence[int]) -> Tally:
        """Count the rows of finished shards."""
        tally = Tally()
        for _ in tally.count(chain.from_iterable(_read_rows(self.shard_path(number)) for number in numbers)):
            pass
        return tally


def open_shards(
    folder: Path, images: Sequence[str], kind: str, identity: dict[str, Any], *, per_shard: int, overwrite: bool
) -> Shards:
    """The shards in a folder, continued if it holds them already.

    Args:
        folder: Where they are written; a new or empty folder, or one with shards.
        images: Paths of all images, each once.
        kind: Suffix of the files.
        identity: Plain values that decide the rows.
        per_shard: Images per shard.
        overwrite: Where there are shards of other images or of another identity, make the shards in a folder beside
            them, or continue those there, instead of raising.

    Returns:
        The shards, as the manifest says.

    Raises:
        UserError: If the folder holds other files or shards of another command, or cannot be written.
    """
    made = [list(images[start : start + per_shard]) for start in range(0, len(images), per_shard)]
    facts = {**identity, "kind": kind, "per_shard": per_shard}
    if differing := _begin_shards(folder, facts, made):
        if not overwrite:
            problem = f"{folder} holds files of another command"
            raise UserError(problem, details=differing, hint=[allow_overwrite(), choose_output()])
        folder = partial_folder(folder)
        if _begin_shards(folder, facts, made):  # unfinished, of a command that was given up
            _begin_again(folder, facts, made)
    return Shards(folder, kind, made)


def _begin_shards(folder: Path, facts: dict[str, Any], images: Sequence[Sequence[str]]) -> list[str]:
    """Write the manifest into a new or empty folder; returns how the one that is there differs, if it does."""
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        there = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if MANIFEST in there:
        return _list_differences(folder / MANIFEST, facts, images)
    if there:
        raise UserError(f"{folder} holds other files", details=there, hint=choose_output("a new folder"))
    _write_manifest(folder / MANIFEST, facts, images)
    return []


def holds_shards(folder: Path) -> bool:
    """Whether a command has made, or begun, shards in a folder."""
    restore_folder(folder)
    return (folder / MANIFEST).is_file()


def list_shard_files(folder: Path) -> list[Path]:
    """The files of a folder that a command has made on a cluster.

    Raises:
        UserError: If there is no manifest, or files are missing.
    """
    try:
        with (folder / MANIFEST).open("rb") as file:
            kind, images = json.loads(next(file))["kind"], [json.loads(line) for line in file]
    except (OSError, ValueError, TypeError, KeyError, StopIteration) as error:
        raise UserError(f"{folder / MANIFEST} cannot be read ({error})") from None
    shards = Shards(folder, kind, images)
    if missing := shards.unfinished():
        problem = f"{folder} is not complete: {pluralize(len(missing), 'file')} of {len(images)} missing"
        raise UserError(problem, hint="give the command that began it again")
    return [shards.shard_path(number) for number in range(len(images))]


def _write_manifest(path: Path, facts: dict[str, Any], images: Sequence[Sequence[str]]) -> None:
    """One line with what decides the rows, then one line per shard with its images."""
    with atomic_write(path) as unfinished, unfinished.open("wb") as file:
        for line in (facts, *images):
            file.write(encode_utf8(json.dumps(line, ensure_ascii=False) + "\n"))


def _list_differences(path: Path, facts: dict[str, Any], images: Sequence[Sequence[str]]) -> list[str]:
    """What a manifest says otherwise, one line each; none if it is of the same command."""
    try:
        with path.open("rb") as file:
            found, *theirs = (json.loads(line) for line in file)
        before, now = set(chain.from_iterable(theirs)), set(chain.from_iterable(images))
        lines = [
            f"{name}: {found.get(name)} there, {facts[name]} here" for name in facts if found.get(name) != facts[name]
        ]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return [f"{path.name} cannot be read ({error})"]
    for word, paths in (("new", now - before), ("no longer given", before - now)):
        if paths:
            lines.append(f"{pluralize(len(paths), 'image')} {word}, for example {min(paths)}")
    return lines or ([] if theirs == list(map(list, images)) else ["the images are in another order"])


def _begin_again(folder: Path, facts: dict[str, Any], images: Sequence[Sequence[str]]) -> None:
    """Remove the shards of a folder, and then replace its manifest: without one, what is left would be foreign."""
    with explain_write_errors(folder):
        for path in folder.iterdir():
            if _is_shard(path):
                path.unlink()
    _write_manifest(folder / MANIFEST, facts, images)


def _list_others(folder: Path) -> list[Path]:
    """What is in a folder of shards, finished or not, beside them and the manifest."""
    others = (path for path in folder.iterdir() if path.name != MANIFEST and not _is_shard(path))
    return [path for path in others if not path.name.startswith(UNFINISHED) and not is_abandoned(path.name)]


def _is_shard(path: Path) -> bool:
    """Whether a file has the name of a shard."""
    number = path.stem.removeprefix("part-")
    return path.stem != number and number.isdecimal() and path.suffix in WRITERS


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Path and error of the rows of a finished shard."""
    if path.suffix == ".parquet":
        from pyarrow import parquet

        yield from parquet.read_table(path, columns=["path", "error"]).to_pylist()
        return
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        yield from csv.DictReader(file) if path.suffix == ".csv" else map(json.loads, file)
