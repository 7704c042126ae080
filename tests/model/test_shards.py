from __future__ import annotations

import csv
import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from dca.core.errors import UserError
from dca.model.classifier import Classifier
from dca.model.predict import PredictionOptions, predict_to_file
from dca.model.predict_ray import predict_shard
from dca.model.shards import MANIFEST, Shards, holds_shards, list_shard_files, open_shards


@pytest.fixture(scope="module")
def model(photos: Path, tiny_folder: Path) -> Classifier:
    return Classifier(backbone=str(tiny_folder), device="cpu").fit(photos / "train")


@pytest.fixture
def images(photos: Path, tmp_path: Path) -> list[str]:
    """All 30 test images, and two files that are none."""
    bad = [tmp_path / "bad.jpg", tmp_path / "=1.jpg"]
    for path in bad:
        path.write_text("hello")
    found = sorted(str(path) for path in (photos / "test").rglob("*.png"))
    return [*found[:10], str(bad[0]), *found[10:], str(bad[1])]


def opened(folder: Path, images: list[str], *, overwrite: bool = False, **identity: Any) -> Shards:
    kind = identity.pop("kind", ".csv")
    return open_shards(folder, images, kind, {"top": 1, **identity}, per_shard=8, overwrite=overwrite)


def test_shards_one_after_the_other_are_the_rows_of_one_file(model: Classifier, images: list[str], tmp_path: Path):
    wanted = PredictionOptions(top=2, reject=0.1, coverage=0.8)
    predict_to_file(model, images, tmp_path / "whole.csv", wanted)
    shards = opened(tmp_path / "parts", images)
    tallies = [predict_shard(model, shards.images[n], shards.shard_path(n), wanted) for n in shards.unfinished()]
    header, *rows = (tmp_path / "whole.csv").read_text().splitlines()
    texts = [path.read_text().splitlines() for path in sorted((tmp_path / "parts").glob("part-*"))]
    assert {text[0] for text in texts} == {header}
    assert [row for text in texts for row in text[1:]] == rows
    assert [tally.rows for tally in tallies] == [8, 8, 8, 8]
    assert [tally.unreadable for tally in tallies] == [0, 1, 0, 1]


@pytest.mark.parametrize("kind", [".csv", ".jsonl", ".parquet"])
def test_finished_shards_are_counted_as_they_were(model: Classifier, images: list[str], tmp_path: Path, kind: str):
    shards = opened(tmp_path / "parts", images, kind=kind)
    made = predict_shard(model, shards.images[1], shards.shard_path(1), PredictionOptions())
    assert shards.unfinished() == [0, 2, 3]
    found = opened(tmp_path / "parts", images, kind=kind).tally([1])
    assert (found.rows, found.unreadable) == (made.rows, made.unreadable) == (8, 1)
    assert found.listed == made.listed
    assert "bad.jpg: " in found.listed[0]


def test_parquet_shards_are_read_as_one_table(model: Classifier, images: list[str], tmp_path: Path):
    from pyarrow import parquet

    shards = opened(tmp_path / "parts", images, kind=".parquet")
    for n in shards.unfinished():
        predict_shard(model, shards.images[n], shards.shard_path(n), PredictionOptions())
    assert parquet.read_table(tmp_path / "parts").column("path").to_pylist() == images


def test_the_manifest_is_written_before_any_shard(images: list[str], tmp_path: Path):
    opened(tmp_path / "parts", images, model="abc")
    assert [path.name for path in (tmp_path / "parts").iterdir()] == [MANIFEST]
    facts, *lists = map(json.loads, (tmp_path / "parts" / MANIFEST).read_text().splitlines())
    assert facts == {"top": 1, "model": "abc", "kind": ".csv", "per_shard": 8}
    assert list(chain.from_iterable(lists)) == images


def test_a_name_that_is_not_valid_text_stays_as_it_is(tmp_path: Path):
    images = ["a\udcff.jpg", "b.jpg"]
    opened(tmp_path / "parts", images)
    assert opened(tmp_path / "parts", images).images == [images]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda images: (images[1:], {}), "1 image no longer given"),
        (lambda images: ([*images, "new.jpg"], {}), "1 image new, for example new.jpg"),
        (lambda images: (images[::-1], {}), "in another order"),
        (lambda images: (images, {"top": 2}), "top: 1 there, 2 here"),
        (lambda images: (images, {"kind": ".jsonl"}), "kind: .csv there, .jsonl here"),
    ],
)
def test_shards_of_another_command_are_not_continued(images: list[str], tmp_path: Path, change: Any, words: str):
    shards = opened(tmp_path / "parts", images)
    shards.shard_path(0).write_text("path,label\n")
    others, identity = change(images)
    with pytest.raises(UserError, match="holds files of another command") as raised:
        opened(tmp_path / "parts", others, **identity)
    assert any(words in line for line in raised.value.details)
    assert shards.shard_path(0).exists()
    again = opened(tmp_path / "parts", others, **identity, overwrite=True)
    assert again.unfinished() == list(range(len(again.images)))
    assert again.folder == tmp_path / "parts.partial"
    assert shards.shard_path(0).read_text() == "path,label\n"


def finish_all(shards: Shards, target: Path, text: str) -> None:
    """Make all files of shards, and finish them."""
    for number in shards.unfinished():
        shards.shard_path(number).write_text(text)
    shards.finish(target)


def test_shards_that_replace_others_take_their_place_together(images: list[str], tmp_path: Path):
    target = tmp_path / "parts"
    finish_all(opened(target, images, kind=".jsonl"), target, "{}\n")
    (target / "notes.txt").write_text("mine")
    (target / "more").mkdir()
    (target / "more" / "part-00000.csv").write_text("mine, too")
    first = opened(target, images, overwrite=True)
    first.shard_path(1).write_text("path\n")
    again = opened(target, images, overwrite=True)  # the same command, after it was killed
    assert again.unfinished() == [0, 2, 3]
    assert opened(target, images, kind=".jsonl").unfinished() == []  # the others are there as long
    finish_all(again, target, "path\n")
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".lock") == ["=1.jpg", "bad.jpg", "parts"]
    names = [MANIFEST, "more", "notes.txt", *(f"part-0000{n}.csv" for n in range(4))]
    assert sorted(path.name for path in target.iterdir()) == sorted(names)
    assert (target / "more" / "part-00000.csv").read_text() == "mine, too"
    assert opened(target, images).unfinished() == []


def test_shards_that_a_killed_process_moved_aside_are_found(images: list[str], tmp_path: Path):
    target = tmp_path / "parts"
    finish_all(opened(target, images), target, "path\n")
    target.rename(tmp_path / ".parts.old")  # where two names cannot be exchanged in one call
    assert holds_shards(target)
    assert len(list_shard_files(target)) == 4


def test_unfinished_shards_of_a_command_that_was_given_up_are_dropped(images: list[str], tmp_path: Path):
    target = tmp_path / "parts"
    finish_all(opened(target, images), target, "path\n")
    opened(target, images, top=2, overwrite=True).shard_path(0).write_text("path\n")
    other = opened(target, images, top=3, overwrite=True)
    assert other.unfinished() == [0, 1, 2, 3]
    finish_all(other, target, "path\n")
    assert opened(target, images, top=3).folder == target


def test_a_folder_of_the_name_of_unfinished_shards_is_left_alone(images: list[str], tmp_path: Path):
    finish_all(opened(tmp_path / "parts", images), tmp_path / "parts", "path\n")
    (tmp_path / "parts.partial").mkdir()
    (tmp_path / "parts.partial" / "part-00000.csv").write_text("mine")
    with pytest.raises(UserError, match=r"parts.partial holds other files"):
        opened(tmp_path / "parts", images, top=2, overwrite=True)
    assert (tmp_path / "parts.partial" / "part-00000.csv").read_text() == "mine"


def test_a_damaged_manifest_is_not_continued(images: list[str], tmp_path: Path):
    opened(tmp_path / "parts", images)
    (tmp_path / "parts" / MANIFEST).write_text("[1]\n{")
    with pytest.raises(UserError) as raised:
        opened(tmp_path / "parts", images)
    assert "cannot be read" in raised.value.details[0]


def test_a_folder_of_other_files_is_left_alone(images: list[str], tmp_path: Path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "part-00000.csv").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="holds other files"):
            opened(tmp_path / "parts", images, overwrite=overwrite)
    assert (tmp_path / "parts" / "part-00000.csv").read_text() == "mine"


def test_what_a_killed_process_left_is_removed(images: list[str], tmp_path: Path):
    shards = opened(tmp_path / "parts", images)
    (tmp_path / "parts" / ".part-00000.csv.abc").write_text("half")
    assert shards.unfinished() == [0, 1, 2, 3]
    shards.finish(tmp_path / "parts")
    assert [path.name for path in (tmp_path / "parts").iterdir()] == [MANIFEST]


def test_a_shard_that_fails_leaves_no_file(model: Classifier, images: list[str], tmp_path: Path):
    shards = opened(tmp_path / "parts", images)
    with pytest.raises(UserError, match="coverage"):
        predict_shard(model, shards.images[0], shards.shard_path(0), PredictionOptions(coverage=2.0))
    assert shards.unfinished() == [0, 1, 2, 3]
    assert [path.name for path in (tmp_path / "parts").iterdir()] == [MANIFEST]


def test_the_rows_can_be_read_by_name(model: Classifier, images: list[str], tmp_path: Path):
    shards = opened(tmp_path / "parts", images)
    predict_shard(model, shards.images[3], shards.shard_path(3), PredictionOptions())
    with shards.shard_path(3).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == shards.images[3]
