from __future__ import annotations

import csv
import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from bad_pictures import bad_files, class_folders

from dca.cli.predict import format_rows
from dca.model.classifier import Classifier
from dca.model.prediction_files import escape_cell
from helpers.processes import DCA, start_process


def feed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_predict_prints_a_list_with_exactly_the_promised_keys(dca: Any, fitted: Path, photos: Path):
    paths = [photos / "test" / "fish" / "000.png", photos / "test" / "house" / "001.png"]
    said = dca("predict", fitted, *paths, "--top", 3, "--json")
    assert said.code == 0
    assert said.err == ""
    rows = json.loads(said.out)
    assert [row["path"] for row in rows] == [str(path) for path in paths]
    probabilities = Classifier.from_pretrained(fitted).predict_proba(paths)
    for row, expected in zip(rows, probabilities, strict=True):
        assert set(row) == {"path", "label", "probability", "top"}
        assert [set(best) for best in row["top"]] == [{"label", "probability"}] * 3
        assert row["top"][0] == {"label": row["label"], "probability": row["probability"]}
        assert [best["probability"] for best in row["top"]] == sorted(expected, reverse=True)[:3]


def test_columns_stand_under_each_other_whatever_the_names():
    from rich.cells import cell_len

    names = ("大熊猫", "🐶 dog", "cat", "nai\u0308ve")
    rows = [
        {
            **{"path": f"{name}/1.jpg", "label": name, "probability": 0.5},
            "top": [{"label": name, "probability": 0.5}, {"label": "cat", "probability": 0.1}],
        }
        for name in names
    ]
    first, second = zip(*(line.rsplit(" ", 1)[0].split(" 0.50 ") for line in format_rows(rows)), strict=True)
    assert len({cell_len(part) for part in first}) == 1
    assert len({cell_len(part) for part in second}) == 1


def test_top_is_at_most_the_number_of_classes(dca: Any, fitted: Path, photos: Path):
    said = dca("predict", fitted, photos / "test" / "fish" / "000.png", "--top", 99, "--json")
    (row,) = json.loads(said.out)
    assert len(row["top"]) == 10
    assert sum(best["probability"] for best in row["top"]) == pytest.approx(1, abs=1e-5)


def test_predict_writes_csv_that_csv_reads(dca: Any, fitted: Path, photos: Path, tmp_path: Path):
    odd = tmp_path / 'a, "b".png'
    odd.write_bytes((photos / "test" / "fish" / "000.png").read_bytes())
    said = dca("predict", fitted, odd, photos / "test" / "house", "--csv")
    assert "\r" not in said.out
    rows = list(csv.DictReader(io.StringIO(said.out)))
    assert len(rows) == 4
    assert rows[0]["path"] == str(odd)
    assert 0 <= float(rows[0]["probability"]) <= 1


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+x", "-x.jpg", "@sum", "\tx", "\rx", "\nx", "=", "-1+1"])
def test_what_a_spreadsheet_would_run_gets_an_apostrophe(text: str):
    assert escape_cell(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "cat", "a=b", "'=x", "-5", "+1.5", "5", "/photos/=x.jpg"])
def test_other_text_and_numbers_stay_as_they_are(text: str):
    assert escape_cell(text) == text


def test_a_formula_in_a_label_or_path_is_never_written_bare(
    dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class_folders(tmp_path / "zoo", ("=cmd", "@cat"), 1)
    options = ("--method", "zero_shot", "--backbone", tiny_folder, "-o", tmp_path / "m.dca")
    assert dca("fit", tmp_path / "zoo", *options).code == 0
    (tmp_path / "=x.png").write_bytes((photos / "test" / "fish" / "000.png").read_bytes())
    monkeypatch.chdir(tmp_path)
    rows = list(csv.reader(io.StringIO(dca("predict", tmp_path / "m.dca", "=x.png", "--top", 2, "--csv").out)))
    assert [row[0] for row in rows[1:]] == ["'=x.png", "'=x.png"]
    assert {row[1] for row in rows[1:]} == {"'=cmd", "'@cat"}
    (row,) = json.loads(dca("predict", tmp_path / "m.dca", "=x.png", "--top", 2, "--json").out)
    assert row["path"] == "=x.png"
    assert {best["label"] for best in row["top"]} == {"=cmd", "@cat"}


def test_paths_come_from_stdin_whatever_their_bytes(
    dca: Any, fitted: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    strange = os.fsencode(tmp_path) + b"/caf\xe9 .png"
    Path(os.fsdecode(strange)).write_bytes((photos / "test" / "fish" / "000.png").read_bytes())
    feed(monkeypatch, strange + b"\n\n" + os.fsencode(photos / "test" / "house") + b"\n")
    rows = json.loads(dca("predict", fitted, "-", "--json").out)
    assert len(rows) == 4
    assert os.fsencode(rows[0]["path"]) == strange


def test_empty_stdin_is_said(dca: Any, fitted: Path, monkeypatch: pytest.MonkeyPatch):
    feed(monkeypatch, b"\n")
    said = dca("predict", fitted, "-")
    assert said.code == 2
    assert "no images given" in said.err


def test_every_unreadable_image_is_listed_and_nothing_printed(dca: Any, fitted: Path, photos: Path, tmp_path: Path):
    names = bad_files(tmp_path)
    for form in ("--json", "--csv", "--quiet"):
        said = dca("predict", fitted, photos / "test" / "fish", tmp_path, form)
        assert said.code == 2
        assert said.out == ""
        for name in names:
            assert name in said.err


@pytest.mark.parametrize("form", ["--json", "--csv", "--quiet"])
def test_unreadable_images_can_be_skipped_by_name(dca: Any, fitted: Path, photos: Path, tmp_path: Path, form: str):
    names = [*bad_files(tmp_path), "gone.jpg"]
    good = photos / "test" / "fish"
    said = dca("predict", fitted, tmp_path, tmp_path / "gone.jpg", good, "x" * 5000, "--skip-bad", form)
    assert said.code == 0
    assert said.out == dca("predict", fitted, good, form).out
    assert len(said.err.splitlines()) == len(names) + 1
    for name in names:
        assert f"skipped {tmp_path / name}: " in said.err


def test_skipping_all_images_is_an_error(dca: Any, fitted: Path, tmp_path: Path):
    names = bad_files(tmp_path)
    said = dca("predict", fitted, tmp_path, "--skip-bad")
    assert said.code == 2
    assert said.out == ""
    assert all(name in said.err for name in names)


def test_all_missing_files_and_all_empty_folders_are_listed(dca: Any, fitted: Path, tmp_path: Path):
    said = dca("predict", fitted, tmp_path / "one.jpg", tmp_path / "two.jpg", "x" * 5000)
    assert said.code == 2
    assert "one.jpg" in said.err
    assert "two.jpg" in said.err
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    said = dca("predict", fitted, tmp_path / "a", tmp_path / "b")
    assert said.code == 2
    assert f"{tmp_path / 'a'} holds no images" in said.err
    assert f"{tmp_path / 'b'} holds no images" in said.err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--csv", "--json"], "--csv and --json cannot go together"),
        (["--top", "0"], "--top"),
        (["--backbone", "nowhere/at/all"], "no such file or folder"),
        (["--device", "gpu"], "device 'gpu' cannot be used"),
        (["--jsn"], "--json"),
    ],
)
def test_wrong_options_exit_2(dca: Any, fitted: Path, photos: Path, arguments: list[str], part: str):
    said = dca("predict", fitted, photos / "test" / "fish", *arguments)
    assert said.code == 2
    assert part in said.err
    assert said.out == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_here_is_what_is_said(dca: Any, fitted: Path, photos: Path, tmp_path: Path, device: str):
    for line in (("predict", fitted, photos / "test" / "fish"), ("fit", photos, "-o", tmp_path / "m.dca")):
        said = dca(*line, "--device", device)
        assert said.code == 2
        assert f"device '{device}' cannot be used: no CUDA device here" in said.err
        assert "fix: use --device auto or cpu\n" in said.err
        assert "backbone" not in said.err


def test_an_unknown_precision_is_not_blamed_on_the_backbone(dca: Any, fitted: Path, photos: Path):
    said = dca("predict", fitted, photos / "test" / "fish", "--precision", "fp8")
    assert said.code == 2
    assert said.err == "error: unknown precision 'fp8'\n  fix: use --precision auto, fp32 or bf16\n"


def test_what_is_no_model_is_said(dca: Any, photos: Path, tmp_path: Path):
    for place, part in ((tmp_path / "nowhere", "no such model folder"), (photos, "is not a dca model")):
        said = dca("predict", place, photos / "test" / "fish")
        assert said.code == 2
        assert part in said.err
        assert "dca fit" in said.err


def test_a_reader_that_leaves_early_is_no_error(fitted: Path, photos: Path):
    line = [*DCA, "predict", fitted, photos / "test", "--csv"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with start_process(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=buffered) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert said == b""


@pytest.fixture(scope="module")
def doubting(photos: Path, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the default method."""
    from dca.runs.run import run
    from dca.runs.spec import FitSpec

    target = tmp_path_factory.mktemp("doubting") / "m.dca"
    run(FitSpec(data=str(photos / "train"), backbone=str(tiny_folder)), target, device="cpu")
    return target


def test_rejected_images_are_none_of_these_in_every_form(dca: Any, doubting: Path, photos: Path):
    line = ("predict", doubting, photos / "test" / "fish", "--reject", 1)
    rows = json.loads(dca(*line, "--json").out)
    assert {row["label"] for row in rows if row["p_value"] < 1} == {"none of these"}
    assert all(row["top"][0]["label"] != "none of these" for row in rows)
    assert "none of these" in dca(*line).out
    assert "none of these" in dca(*line, "--csv").out


def test_a_rate_that_the_model_cannot_keep_is_refused_in_one_line(
    dca: Any, doubting: Path, photos: Path, tmp_path: Path
):
    for more in ((), ("-o", tmp_path / "out.csv")):
        said = dca("predict", doubting, photos / "test" / "fish", "--reject", 0.01, *more)
        assert said.code == 2
        assert said.out == ""
        assert (
            "needs 99 training images that can be left out, as many of each class; the model's are worth 40" in said.err
        )
        assert "use --reject 0.025, or fit with more images" in said.err
    assert not (tmp_path / "out.csv").exists()


def test_the_smallest_p_value_is_said_with_reject(dca: Any, doubting: Path, photos: Path):
    image = photos / "test" / "fish" / "000.png"
    said = "the smallest p-value of this model is 0.024: --reject takes no less"
    assert said in dca("predict", doubting, image, "--reject", 0.05).err
    assert said not in dca("predict", doubting, image).err
    assert "p-value: how usual an image is" in dca("predict", doubting, image).err
    assert dca("predict", doubting, image, "-q").err == ""


def test_sets_of_classes_are_printed_when_asked_for(dca: Any, doubting: Path, photos: Path):
    image = photos / "test" / "fish" / "000.png"
    (row,) = json.loads(dca("predict", doubting, image, "--set-coverage", 0.8, "--json").out)
    assert row["set"][0] == row["label"]
    assert "{" + ", ".join(row["set"]) + "}" in dca("predict", doubting, image, "--set-coverage", 0.8).out
    (plain,) = json.loads(dca("predict", doubting, image, "--json").out)
    assert "set" not in plain


def test_a_model_that_cannot_tell_says_how_to_fit_one_that_can(dca: Any, fitted: Path, photos: Path):
    said = dca("predict", fitted, photos / "test" / "fish", "--reject", 0.1)
    assert said.code == 2
    assert "cannot tell images of none of its classes" in said.err
    assert "--estimate" in said.err


def test_a_file_of_predictions_is_named_with_its_rate(dca: Any, fitted: Path, photos: Path, tmp_path: Path):
    output = tmp_path / "out.csv"
    said = dca("predict", fitted, photos / "test", "-o", output)
    assert said.code == 0
    assert said.out.startswith(f"30 images in {output}; ")
    assert "images/s" in said.out
    rows = list(csv.DictReader(io.StringIO(output.read_text(encoding="utf-8"))))
    assert len({row["path"] for row in rows}) == len(rows) == 30
    again = dca("predict", fitted, photos / "test", "-o", output)
    assert again.code == 2
    assert f"{output} exists" in again.err
    assert "--overwrite" in again.err


def test_unreadable_images_are_listed_and_the_file_is_written(dca: Any, fitted: Path, photos: Path, tmp_path: Path):
    (tmp_path / "mixed").mkdir()
    names = [*bad_files(tmp_path / "mixed"), "gone.jpg"]
    arguments = ("predict", fitted, photos / "test" / "fish", tmp_path / "mixed", tmp_path / "mixed" / "gone.jpg")
    said = dca(*arguments, "-o", tmp_path / "out.jsonl")
    assert said.code == 2
    assert all(f"cannot read {tmp_path / 'mixed' / name}: " in said.err for name in names)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 3 + len(names)
    assert sum("error" in row for row in rows) == len(names)
    said = dca(*arguments, "-o", tmp_path / "out.csv", "--skip-bad", "--json")
    assert said.code == 0
    assert json.loads(said.out)["unreadable"] == len(names)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--copy-to", "sorted"], "--copy-to needs -o"),
        (["-o", "out.xlsx"], "predictions are written as .csv, .jsonl, .parquet"),
        (["-o", "out.parquet", "--csv"], "cannot go together"),
    ],
)
def test_options_of_files_that_do_not_go_together(
    dca: Any, fitted: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, part: str
):
    monkeypatch.chdir(tmp_path)
    said = dca("predict", fitted, photos / "test" / "fish", *arguments)
    assert said.code == 2
    assert part in said.err
    assert not list(tmp_path.iterdir())


def test_copies_do_not_go_into_the_folder_of_the_images(dca: Any, fitted: Path, photos: Path, tmp_path: Path):
    said = dca("predict", fitted, photos, "-o", tmp_path / "out.csv", "--copy-to", photos / "sorted")
    assert said.code == 2
    assert "would be taken for new images" in said.err
    assert not (photos / "sorted").exists()


def test_images_are_sorted_into_folders(dca: Any, fitted: Path, photos: Path, tmp_path: Path):
    said = dca("predict", fitted, photos / "test", "-o", tmp_path / "out.csv", "--copy-to", tmp_path / "sorted")
    assert said.code == 0
    assert len(list((tmp_path / "sorted").rglob("*.png"))) == 30
