from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dca.core.errors import UserError
from dca.images.decode import Unreadable
from dca.model import predict as bulk
from dca.model.classifier import Classifier
from dca.model.predict import ImagePrediction, PredictionOptions, predict_stream, predict_to_file
from dca.model.prediction_files import Journal
from helpers.processes import DCA, start_process, wait_until


@pytest.fixture(scope="module")
def model(photos: Path, tiny_folder: Path) -> Classifier:
    """The default method, which has p-values and sets."""
    return Classifier(backbone=str(tiny_folder), device="cpu").fit(photos / "train")


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict_stream, "__kwdefaults__", {"coverage": None, "batch": 4})


@pytest.fixture
def images(photos: Path, tmp_path: Path) -> list[str]:
    """All 30 test images, and one file that is none, in the middle."""
    (tmp_path / "bad.jpg").write_text("hello")
    found = sorted(str(path) for path in (photos / "test").rglob("*.png"))
    return [*found[:10], str(tmp_path / "bad.jpg"), *found[10:]]


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    from pyarrow import parquet

    return parquet.read_table(path).to_pylist()


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_streamed_answers_are_those_of_answers(model: Classifier, images: list[str], batch: int):
    outcomes = [one for some in predict_stream(model, map(Path, images), coverage=0.8, batch=batch) for one in some]
    assert [str(one.image) for one in outcomes] == images
    assert [isinstance(one, Unreadable) for one in outcomes] == ["bad.jpg" in path for path in images]
    found = [one for one in outcomes if isinstance(one, ImagePrediction)]
    expected = model.predict_details([path for path in images if "bad.jpg" not in path], coverage=0.8)
    assert np.allclose([one.probabilities for one in found], expected.probabilities, atol=1e-6)
    assert np.allclose([one.p_value for one in found], expected.p_values, atol=1e-4)
    assert [one.labels for one in found] == expected.sets


def test_images_are_asked_for_only_as_they_are_needed(model: Classifier, images: list[str]):
    asked = 0

    def endless() -> Any:
        nonlocal asked
        while True:
            asked += 1
            yield Path(images[0])

    for number, some in zip(range(5), predict_stream(model, endless(), batch=4), strict=False):
        assert len(some) == 4
        assert asked <= 4 * (number + 1 + 2 * (torch.get_num_threads() + 1))


@pytest.mark.parametrize("threads", [1, 3])
def test_several_encoders_keep_the_order_and_the_threads_of_torch(
    model: Classifier, images: list[str], monkeypatch: pytest.MonkeyPatch, threads: int
):
    before = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    set_to: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    found = [str(one.image) for some in predict_stream(model, map(Path, images), batch=2) for one in some]
    assert found == images
    assert set_to[-1] == threads
    assert set(set_to[:-1]) == {1}
    monkeypatch.undo()
    assert torch.get_num_threads() == before


def test_a_reader_that_stops_early_leaves_no_threads(model: Classifier, images: list[str]):
    stream = predict_stream(model, map(Path, images), batch=2)
    next(stream)
    stream.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("dca-")]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_every_format_holds_every_image_once(model: Classifier, images: list[str], tmp_path: Path, suffix: str):
    output = tmp_path / f"out{suffix}"
    done = predict_to_file(model, [*images, images[0]], output, PredictionOptions(top=2, coverage=0.8))
    assert (done.images, done.predicted, done.unreadable) == (31, 31, 1)
    assert done.listed == (f"{tmp_path / 'bad.jpg'}: not an image, or in a format that is not opened",)
    rows = read(output)
    assert [row["path"] for row in rows] == images
    bad = rows.pop(10)
    assert bad["error"].startswith("not an image")
    assert not bad.get("label")
    expected = model.predict_details([row["path"] for row in rows], coverage=0.8)
    assert [row["label"] for row in rows] == list(model.classes_[expected.probabilities.argmax(axis=1)])
    assert np.allclose([float(row["probability"]) for row in rows], expected.probabilities.max(axis=1), atol=1e-6)
    assert np.allclose([float(row["p_value"]) for row in rows], expected.p_values, atol=1e-6)
    sets = [row["set"].split("; ") if suffix == ".csv" else row["set"] for row in rows]
    assert sets == expected.sets
    if suffix != ".jsonl":
        second = np.sort(expected.probabilities, axis=1)[:, -2]
        assert np.allclose([float(row["probability_2"]) for row in rows], second, atol=1e-6)
    assert [path.name for path in tmp_path.iterdir() if path.name != "bad.jpg"] == [output.name]


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let the process end in the `after`-th write to the journal, half of its bytes written."""
    append, calls = Journal._append, 0

    def dying(self: Journal, rows: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == after:
            lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
            self._file.write(lines[: len(lines) // 2 + 3])
            self._file.flush()
            raise KeyboardInterrupt
        append(self, rows)

    monkeypatch.setattr(Journal, "_append", dying)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("after", [1, 2, 3, 6])
def test_an_interrupted_file_is_continued_and_no_image_opened_twice(
    model: Classifier, images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
):
    output = tmp_path / "out.csv"
    predict_to_file(model, images, tmp_path / "whole.csv")
    with monkeypatch.context() as patch:
        interrupt(patch, after)
        with pytest.raises(KeyboardInterrupt):
            predict_to_file(model, images, output)
    assert not output.exists()
    kept = (tmp_path / "out.csv.partial").read_bytes().count(b"\n") - 1
    opened: list[str] = []
    whole = bulk.predict_stream

    def counting(model: Classifier, images: Any, **options: Any) -> Any:
        paths = list(images)
        opened.extend(map(str, paths))
        return whole(model, paths, **options)

    monkeypatch.setattr(bulk, "predict_stream", counting)
    done = predict_to_file(model, images, output)
    assert opened == images[max(kept, 0) :]
    assert done.predicted == len(opened)
    assert [row["path"] for row in read(output)] == images
    assert [row["label"] for row in read(output)] == [row["label"] for row in read(tmp_path / "whole.csv")]
    assert not (tmp_path / "out.csv.partial").exists()


def test_a_killed_command_continues_with_every_image_once(fitted: Path, photos: Path, tmp_path: Path):
    folder = tmp_path / "many"
    folder.mkdir()
    source = (photos / "test" / "fish" / "000.png").read_bytes()
    for n in range(1500):
        (folder / f"{n:04}.png").write_bytes(source)
    output = tmp_path / "out.jsonl"
    partial = tmp_path / "out.jsonl.partial"
    line = [*DCA, "predict", str(fitted), str(folder), "-o", str(output)]
    with start_process(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: partial.is_file() and partial.read_bytes().count(b"\n") > 100, process)
        process.kill()
    assert not output.exists(), "killed too late"
    before = partial.read_bytes().count(b"\n") - 1
    assert 100 <= before < 1500
    said = subprocess.run([*line, "--json"], capture_output=True, check=True)
    assert json.loads(said.stdout)["predicted_now"] == 1500 - before
    assert [row["path"] for row in read(output)] == sorted(str(path) for path in folder.iterdir())


def test_another_model_or_other_options_do_not_continue(
    model: Classifier, images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    output = tmp_path / "out.csv"
    with monkeypatch.context() as patch:
        interrupt(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            predict_to_file(model, images, output)
    with pytest.raises(UserError, match="unfinished rows of another command") as error:
        predict_to_file(model, images, output, PredictionOptions(top=3))
    assert error.value.details == ("top: 1 there, 3 here",)
    predict_to_file(model, images, output, PredictionOptions(top=3), overwrite=True)
    assert "label_3" in read(output)[0]
    with pytest.raises(UserError, match="exists"):
        predict_to_file(model, images, output, PredictionOptions(top=3))


@pytest.mark.usefixtures("small_batches")
def test_images_that_are_no_longer_wanted_are_left_out(
    model: Classifier, images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    output = tmp_path / "out.csv"
    with monkeypatch.context() as patch:
        interrupt(patch, 4)
        with pytest.raises(KeyboardInterrupt):
            predict_to_file(model, images, output)
    predict_to_file(model, images[5:], output)
    assert [row["path"] for row in read(output)] == images[5:]


def test_file_names_that_are_no_text_are_kept(model: Classifier, photos: Path, tmp_path: Path):
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png")
    Path(strange).write_bytes((photos / "test" / "fish" / "000.png").read_bytes())
    for suffix in (".csv", ".jsonl", ".parquet"):
        predict_to_file(model, [strange], tmp_path / f"out{suffix}")
    assert b"caf\xe9.png" in (tmp_path / "out.csv").read_bytes()
    assert read(tmp_path / "out.jsonl")[0]["path"] == strange
    assert read(tmp_path / "out.parquet")[0]["path"].endswith("caf\\udce9.png")


def test_images_are_copied_into_the_folder_of_their_class(model: Classifier, images: list[str], tmp_path: Path):
    sorted_folder = tmp_path / "sorted"
    predict_to_file(model, images, tmp_path / "out.jsonl", copy_to=sorted_folder)
    rows = [row for row in read(tmp_path / "out.jsonl") if "error" not in row]
    copies = sorted(str(path.relative_to(sorted_folder)) for path in sorted_folder.rglob("*.png"))
    assert sorted(row["copied_to"] for row in rows) == copies
    assert len(copies) == 30
    for row in rows:
        assert row["copied_to"].startswith(f"{row['label']}/")
        assert (sorted_folder / row["copied_to"]).read_bytes() == Path(row["path"]).read_bytes()
    assert not list(sorted_folder.rglob(".*"))


@pytest.mark.usefixtures("small_batches")
def test_copies_of_an_interrupted_command_are_not_made_twice(
    model: Classifier, images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    line: Any = {"copy_to": tmp_path / "sorted"}
    with monkeypatch.context() as patch:
        interrupt(patch, 4)
        with pytest.raises(KeyboardInterrupt):
            predict_to_file(model, images, tmp_path / "out.csv", **line)
    predict_to_file(model, images, tmp_path / "out.csv", **line)
    assert len([path for path in (tmp_path / "sorted").rglob("*") if path.is_file()]) == 30


def test_rejected_images_have_a_folder_of_their_own(model: Classifier, images: list[str], tmp_path: Path):
    predict_to_file(model, images, tmp_path / "out.csv", PredictionOptions(reject=1), copy_to=tmp_path / "sorted")
    rejected = [row for row in read(tmp_path / "out.csv") if row["label"] == "none of these"]
    assert rejected
    assert len(list((tmp_path / "sorted" / "none of these").iterdir())) == len(rejected)


def test_kinds_of_files_that_are_not_written_are_refused_first(model: Classifier, tmp_path: Path):
    with pytest.raises(UserError, match=r"predictions are written as .csv, .jsonl, .parquet") as error:
        predict_to_file(model, ["gone.jpg"], tmp_path / "out.xlsx")
    assert error.value.hint == "use out.csv"


def test_parquet_without_pyarrow_names_the_extra(model: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match="pyarrow") as error:
        predict_to_file(model, ["gone.jpg"], tmp_path / "out.parquet")
    assert "dca-prompt[parquet]" in error.value.hint


def test_a_second_process_is_refused(model: Classifier, images: list[str], tmp_path: Path):
    from dca.core.files import exclusive_lock

    with (
        exclusive_lock(tmp_path / "out.csv"),
        pytest.raises(UserError, match="another command is writing"),
    ):
        predict_to_file(model, images, tmp_path / "out.csv")


def test_parquet_is_written_in_row_groups(
    model: Classifier, images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from pyarrow import parquet

    monkeypatch.setattr("dca.model.prediction_files.ROW_GROUP", 10)
    predict_to_file(model, images, tmp_path / "out.parquet")
    assert parquet.ParquetFile(tmp_path / "out.parquet").num_row_groups == 4


def test_an_image_that_is_there_is_never_replaced(tmp_path: Path):
    from dca.model.prediction_files import ImageFolders

    for folder, colour in (("a", "red"), ("b", "blue"), ("c", "green")):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (8, 8), colour).save(tmp_path / folder / "1.png")
    (tmp_path / "out" / "cat").mkdir(parents=True)
    foreign = tmp_path / "out" / "cat" / "1.png"
    foreign.write_bytes((tmp_path / "c" / "1.png").read_bytes())
    folders = ImageFolders(tmp_path / "out", ["cat"])
    first = folders.copy(tmp_path / "a" / "1.png", "cat")
    second = folders.copy(tmp_path / "b" / "1.png", "cat")
    assert len({first, second, "cat/1.png"}) == 3
    assert foreign.read_bytes() == (tmp_path / "c" / "1.png").read_bytes()
    assert folders.copy(tmp_path / "c" / "1.png", "cat") == "cat/1.png"
