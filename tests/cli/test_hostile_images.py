"""Files that no command may trip over: every one is refused with its reason, and no program is started for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bad_pictures import bad_files, class_folders
from PIL import EpsImagePlugin

# What is said of each file of `bad_files`.
REASONS = {
    "bomb.png": "more than 89 million pixels", "empty.jpg": "the file is empty", "text.png": "not an image",
    "truncated.jpg": "the file is truncated", "postscript.jpg": "in a format that is not opened",
    "thin.png": "one side is more than 200 times the other", "thinner.png": "one side is more than 200 times the other",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_ghostscript(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    calls = list[object]()
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args, **options: calls.append(args))
    yield
    assert calls == []


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two classes, one of them with bad files."""
    data = class_folders(tmp_path / "zoo", ("cat", "dog"), 2)
    assert set(bad_files(data / "cat")) == set(REASONS)
    return data


def find_reasons(lines: list[str]) -> dict[str, str]:
    """File name -> the reason that is given for it."""
    return {line.strip().partition(": ")[0].rpartition("/")[2]: line.partition(": ")[2] for line in lines}


def check_reasons(said: dict[str, str]) -> None:
    assert said.keys() == REASONS.keys()
    for name, reason in REASONS.items():
        assert reason in said[name]


@pytest.mark.filterwarnings("default::PIL.Image.DecompressionBombWarning")
def test_check_names_every_bad_file(dca: Callable[..., Any], data: Path):
    said = dca("datasets", "check", data, "--json")
    assert "Traceback" not in said.err
    (finding,) = [one for one in json.loads(said.out)["findings"] if "cannot be read" in one["what"]]
    check_reasons(find_reasons(finding["examples"]))


def test_fit_names_every_bad_file_or_leaves_it_out(
    dca: Callable[..., Any], data: Path, tiny_folder: Path, tmp_path: Path
):
    arguments = ("fit", data, "--backbone", tiny_folder, "--method", "zero_shot", "-o", tmp_path / "m.dca")
    refused = dca(*arguments)
    assert refused.code == 2
    assert "Traceback" not in refused.err
    assert all(reason in refused.err for reason in REASONS.values())
    said = dca(*arguments, "--skip-bad", "--json")
    assert said.code == 0
    check_reasons(find_reasons(json.loads(said.out)["skipped"]))


def test_predict_names_every_bad_file_or_leaves_it_out(dca: Callable[..., Any], data: Path, fitted: Path):
    refused = dca("predict", fitted, data)
    assert refused.code == 2
    assert "Traceback" not in refused.err
    assert all(reason in refused.err for reason in REASONS.values())
    said = dca("predict", fitted, data, "--skip-bad", "--json")
    assert len(json.loads(said.out)) == 4
    assert all(reason in said.err for reason in REASONS.values())
