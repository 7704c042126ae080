"""Names, labels and paths that others wrote never reach a terminal as anything but visible text."""

from __future__ import annotations

import ast
import csv
import io
import json
import logging
import shutil
import struct
import time
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from bad_pictures import class_folders, picture

import dca
from dca.cli import common, main
from dca.core.errors import UserError
from dca.core.progress import log_lines, notebook_line
from dca.core.text import LONGEST_NAME, make_visible, name_fault
from dca.model import checkpoint
from dca.model.classifier import Classifier

# A forged row, the codes of a terminal (7 and 8 bit), changes of direction, things of no width, ends of lines.
HOSTILE = (
    *("a\nb.jpg  dog 1.00", "\x1b[2J", "\x9b2J", "\x07", "\x7f", "gpj.\u202eevil", "\u2066x\u2069", "\u200e", "\u061c"),
    *("zero\u200bwidth", "a\u200db", "\ufeff", "\u2028", "\u2029", "\r", "\t", "\x85", "\U000e0041"),
)
FINE = ("大熊猫", "👩‍🌾", "می‌خواهم", "naïve", "O'Brien & Söhne", "a b", "100 %")


def is_plain(text: str) -> bool:
    """Whether there is nothing in a text that a terminal obeys, but for the ends of lines."""
    return all(unicodedata.category(c) not in ("Cc", "Cf", "Zl", "Zp", "Cs") for c in text.replace("\n", ""))


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_terminal_obeys_is_made_visible(text: str) -> None:
    shown = make_visible(text)
    assert is_plain(shown)
    assert "\n" not in shown
    assert shown != text
    assert make_visible(shown) == shown


@pytest.mark.parametrize("text", FINE)
def test_what_a_terminal_shows_stays_as_it_is(text: str) -> None:
    assert make_visible(text) == text
    assert name_fault(text) == ""


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert make_visible("caf\udce9") == "caf\ufffd"


def test_every_line_of_every_command_passes_one_function() -> None:
    """Nothing but `print_lines` and `emit` writes to the terminal; the script for a shell is our own text."""
    root = Path(dca.__file__).parent
    found = []
    for path in [*root.glob("cli/*.py"), *root.glob("study/commands/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            words = ast.unparse(node.func)
            if words in ("print", "click.echo", "click.secho") or words.endswith((".stdout.write", ".stderr.write")):
                found.append((path.relative_to(root).as_posix(), words))
    assert sorted(set(found)) == [
        ("cli/common.py", "click.echo"),
        ("cli/completion.py", "click.echo"),
        ("cli/predict.py", "sys.stdout.write"),  # CSV
    ]


def test_a_file_name_forges_no_row(dca: Any, fitted: Path, tmp_path: Path) -> None:
    names = [f"{text.replace('/', '')}.jpg" for text in HOSTILE]
    for name in names:
        picture(1).save(tmp_path / name)
    told = dca("predict", fitted, tmp_path)
    assert told.code == 0, told.err
    assert len(told.out.splitlines()) == len(names)
    assert is_plain(told.out)
    assert r"a\nb.jpg  dog 1.00.jpg" in told.out
    (tmp_path / names[0]).write_bytes(b"no image")
    for more in ([], ["--skip-bad"]):
        told = dca("predict", fitted, tmp_path, *more)
        assert is_plain(told.err)
        assert r"a\nb.jpg  dog 1.00.jpg" in told.err
        assert all("\nb.jpg" not in stream for stream in (told.out, told.err))


def test_json_and_csv_hold_the_names_as_they_are(dca: Any, fitted: Path, tmp_path: Path) -> None:
    paths = [tmp_path / f"{text.replace('/', '')}.jpg" for text in HOSTILE]
    for path in paths:
        picture(1).save(path)
    told = dca("predict", fitted, *paths, "--json")
    assert [row["path"] for row in json.loads(told.out)] == list(map(str, paths))
    assert is_plain(told.out)
    table = dca("predict", fitted, *paths, "--csv").out
    assert [row["path"] for row in csv.DictReader(io.StringIO(table, newline=""))] == list(map(str, paths))


def test_csv_on_a_terminal_is_visible(dca: Any, fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(1).save(tmp_path / "a\x1b[2J.jpg")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert is_plain(dca("predict", fitted, tmp_path, "--csv").out)


def test_errors_logs_and_progress_are_visible(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = UserError("no \x1b[2J", details=["a\nb", "c\u202e"], hint="look\x07")
    assert is_plain(error.render("cli"))
    assert error.render("cli").splitlines() == [r"no \x1b[2J", r"  a\nb", r"  c\u202e", r"  fix: look\x07"]
    record = logging.LogRecord("dca", logging.WARNING, "", 0, "%s is left out", ("a\nb\x1b",), None)
    assert common.VisibleFormatter().format(record) == r"a\nb\x1b is left out"
    monkeypatch.setattr("dca.core.progress.LINE_EVERY", 0.0)
    log_lines()("stage", 1, 2, "note\n\x1b")
    with notebook_line() as progress:
        progress("stage", 1, 2, "note\x1b[2J")
    told = capsys.readouterr()
    assert told.err == r"stage 1/2  note\n\x1b" + "\n"
    assert r"note\x1b[2J" in told.out
    assert main(["--no\x1b[2J"]) == 2
    assert main(["fit", "no\nsuch\x1bfolder"]) == 2
    assert is_plain(capsys.readouterr().err)


@pytest.mark.parametrize("name", ["a\nb", "cat\u202egod", "zero\u200bwidth", "none of these", "None_of-these"])
def test_a_class_folder_with_such_a_name_is_refused_by_name(dca: Any, tmp_path: Path, name: str) -> None:
    class_folders(tmp_path / "photos", ("cat", name))
    told = dca("fit", tmp_path / "photos", "-o", tmp_path / "m.dca")
    assert told.code == 2
    assert is_plain(told.err)
    shown = f"'{name.replace('_', ' ')}'" if name_fault(name).endswith("of the classes") else repr(name)
    assert shown in told.err or f"'{name}'" in told.err
    assert not (tmp_path / "m.dca").exists()


@pytest.mark.parametrize("name", ["cat\u202egod", "a\nb", "none of these", "x" * (LONGEST_NAME + 1)])
def test_such_a_class_is_added_by_no_way(dca: Any, fitted: Path, tmp_path: Path, name: str) -> None:
    model = Path(shutil.copytree(fitted, tmp_path / "m.dca"))
    for line in (("add-class", model, name), ("add-class", model, "zebra", "--label", name)):
        told = dca(*line)
        assert told.code == 2
        assert "a name that a class cannot have" in told.err
    told = dca("rename-class", model, "fish", name)
    assert told.code == 2
    images = [picture(n) for n in range(4)]
    with pytest.raises(UserError, match="names that a class cannot have"):
        Classifier().fit(images, ["cat", "cat", name, name])
    raw = json.loads((model / "config.json").read_text())
    for where in (raw["labels"], raw["problem"]["names"]):
        kept, where[0] = where[0], name
        (model / "config.json").write_text(json.dumps(raw))
        checkpoint.write_manifest(model)
        with pytest.raises(UserError, match=r"config\.json is damaged"):
            Classifier.from_pretrained(model)
        where[0] = kept


def test_a_name_of_six_megabytes_is_refused_at_once(dca: Any, tmp_path: Path) -> None:
    photos, name = class_folders(tmp_path / "photos", ("cat", "dog")), "so long " * 750_000
    (photos / "classnames.json").write_text(json.dumps({"dog": name}))
    (tmp_path / "list.csv").write_text(f"path,label\nphotos/cat/0.jpg,cat\nphotos/dog/0.jpg,{'x' * 100_000}\n")
    began = time.process_time()
    for data in (photos, tmp_path / "list.csv"):
        told = dca("fit", data, "-o", tmp_path / "m.dca")
        assert told.code == 2
        assert f"characters; at most {LONGEST_NAME}" in told.err
        assert len(told.err) < 1000
    assert time.process_time() - began < 5


def test_a_file_of_very_many_tensors_is_refused_at_once(dca: Any, fitted: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(fitted, tmp_path / "m.dca"))
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"t{n}": empty for n in range(400_000)}).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    checkpoint.write_manifest(model)
    picture(1).save(picture_file := tmp_path / "new.jpg")
    began = time.process_time()
    told = dca("predict", model, picture_file)
    assert time.process_time() - began < 5
    assert told.code == 2
    assert "model.safetensors: describes its tensors in" in told.err
