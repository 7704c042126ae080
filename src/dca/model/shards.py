"""Predictions as a folder of shards: part-00000.csv, part-00001.csv, ..., each written in one rename.

The manifest is written first and says which images belong to which shard. So every process that makes a shard, now or
after an interruption, makes the same file, and a shard is finished if its file is there.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from dca.core.actions import allow_overwrite, choose_output
from dca.core.errors import UserError
from dca.core.files import replacing, utf8, writing
from dca.core.wording import counted
from dca.model.bulk import Tally, Wanted, columns_of, new_rows
from dca.model.classifier import Classifier
from dca.model.prediction_tables import WRITERS

# Readers of a folder of Parquet or CSV files leave out names that begin with an underscore.
MANIFEST = "_manifest.jsonl"
# Images per shard: a multiple of the batch sizes, so that batches are those of a prediction into one file.
PER_SHARD = 1024


@dataclass(frozen=True)
class Shards:
    """The shards of one prediction.

    Attributes:
        folder: Folder that holds them.
        kind: Suffix of their files.
        images: Paths of the images of each shard.
    """

    folder: Path
    kind: str
    images: Sequence[Sequence[str]]

    def part(self, number: int) -> Path:
        """The file of a shard."""
        return self.folder / f"part-{number:05d}{self.kind}"

    def left(self) -> list[int]:
        """Numbers of the shards that are not finished."""
        return [number for number in range(len(self.images)) if not self.part(number).is_file()]

    def clean(self) -> None:
        """Remove what killed processes have left of shards that others have made again."""
        for path in self.folder.glob(".part-*"):
            path.unlink(missing_ok=True)

    def tally(self, numbers: Sequence[int]) -> Tally:
        """Count the rows of finished shards."""
        found = Tally()
        for _ in found.counting(chain.from_iterable(_rows(self.part(number)) for number in numbers)):
            pass
        return found


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
        overwrite: Drop shards of other images or of another identity, instead of raising.

    Returns:
        The shards, as the manifest says.

    Raises:
        UserError: If the folder holds other files or other predictions, or cannot be written.
    """
    made = [list(images[start : start + per_shard]) for start in range(0, len(images), per_shard)]
    shards, facts = Shards(folder, kind, made), {**identity, "kind": kind, "per_shard": per_shard}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        there = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if MANIFEST in there:
        differing = _differences(folder / MANIFEST, facts, made)
        if not differing:
            return shards
        if not overwrite:
            problem = f"{folder} holds predictions of another command"
            raise UserError(problem, details=differing, hint=[allow_overwrite(), choose_output()])
        _remove(folder)
    elif there:
        raise UserError(f"{folder} holds other files", details=there, hint=choose_output("a new folder"))
    _write_manifest(folder / MANIFEST, facts, made)
    return shards


def predict_shard(model: Classifier, images: Sequence[str], output: Path, wanted: Wanted) -> Tally:
    """Predict the images of one shard; its file appears when it is complete.

    Args:
        model: A fitted classifier.
        images: Paths of the images.
        output: The file of the shard.
        wanted: What is to be known of every image.

    Returns:
        The rows, counted.

    Raises:
        UserError: If the file cannot be written, or the model has no p-values or sets that were asked for.
    """
    tally = Tally()
    rows = chain.from_iterable(new_rows(model, images, wanted))
    with replacing(output) as unfinished:
        WRITERS[output.suffix](tally.counting(rows), columns_of(model, wanted), unfinished)
    return tally


def _write_manifest(path: Path, facts: dict[str, Any], images: Sequence[Sequence[str]]) -> None:
    """One line with what the predictions are of, then one line per shard with its images."""
    with replacing(path) as unfinished, unfinished.open("wb") as file:
        for line in (facts, *images):
            file.write(utf8(json.dumps(line, ensure_ascii=False) + "\n"))


def _differences(path: Path, facts: dict[str, Any], images: Sequence[Sequence[str]]) -> list[str]:
    """What a manifest says otherwise, one line each; none if it is of the same predictions."""
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
            lines.append(f"{counted(len(paths), 'image')} {word}, for example {min(paths)}")
    return lines or ([] if theirs == list(map(list, images)) else ["the images are in another order"])


def _remove(folder: Path) -> None:
    """Remove the shards of a folder, the manifest last: without it the others would be foreign files."""
    with writing(folder):
        for kind in WRITERS:
            for path in folder.glob(f"part-*{kind}"):
                path.unlink()
        (folder / MANIFEST).unlink()


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Path and error of the rows of a finished shard."""
    if path.suffix == ".parquet":
        from pyarrow import parquet

        yield from parquet.read_table(path, columns=["path", "error"]).to_pylist()
        return
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        yield from csv.DictReader(file) if path.suffix == ".csv" else map(json.loads, file)
