"""What docs/studies.md shows is true."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from dca.study.specification import parse_specification

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_specification_of_the_page_can_be_read():
    (text,) = blocks("toml")
    assert len(parse_specification(tomllib.loads(text), "page").cells) == 2 * 3 * 3 * (1 + 2 * 2)


def test_the_python_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    for code in blocks("python"):
        exec(code, {})
    assert "Table 7 16 94.33" in capsys.readouterr().out
