"""What docs/studies.md shows is true."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from dca.study.claims import claims
from dca.study.specification import load_specification, parse_specification, shipped

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


def test_the_table_of_specifications_is_complete():
    rows = re.findall(r"^\| `([\w/-]+)` \| .* \| ([\d,]+) \| ([\d,]+) \|$", PAGE, re.MULTILINE)
    stated = {name: (int(cells.replace(",", "")), int(fits.replace(",", ""))) for name, cells, fits in rows}
    studies = {name: load_specification(name).cells for name in shipped()}
    assert stated == {name: (len(cells), len({c.experiment.id for c in cells})) for name, cells in studies.items()}


def test_the_page_counts_the_claims():
    assert re.findall(r"(\d+) claims", PAGE) == [str(len(claims()))]
