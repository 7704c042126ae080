"""The commands and Python code in the data pages run as printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dca.cli import main
from helpers.miniatures import miniature
from helpers.small_images import make_folder

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("datasets.md", "your-own-images.md")


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [code for name, code in fenced if name == language]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """What the pages assume: data/eurosat and photos/ in the working folder."""
    miniature("eurosat", tmp_path / "data")
    make_folder(tmp_path / "photos", {"cat": 5, "dog": 5})
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_commands_run(place, page, capsys):
    commands = [
        line.split("#")[0] for b in blocks(page, "") for line in b.splitlines() if line.startswith("dca datasets")
    ]
    assert commands
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, command


@pytest.mark.parametrize("page", ["datasets.md", "your-own-images.md", "protocols.md"])
def test_python_runs(place, page):
    codes = blocks(page, "python")
    assert codes
    for code in codes:
        exec(compile(code, page, "exec"), {})
