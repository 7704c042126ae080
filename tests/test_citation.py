"""The paper of DCA is cited with the same authors everywhere, and with no venue that is not established."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from dca.methods.registry import get_method

ROOT = Path(__file__).resolve().parents[1]
AUTHORS = ("Songlin Dong", "Zhengdong Zhou", "Chenhao Ding", "Yuhang He", "Xinyuan Gao", "Alex Kot", "Yihong Gong")
TITLE = "Diversity Covariance-Aware Prompt Learning for Vision-Language Models"
NUMBER = "2503.01531"


def test_citation_file_has_all_authors_in_the_order_of_the_paper() -> None:
    (paper,) = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["references"]
    assert tuple(f"{one['given-names']} {one['family-names']}" for one in paper["authors"]) == AUTHORS
    assert paper["title"] == TITLE
    assert NUMBER in paper["url"]
    assert not {"conference", "journal"} & paper.keys()


def test_bibtex_has_all_authors_in_the_order_of_the_paper() -> None:
    page = (ROOT / "docs" / "cite.md").read_text(encoding="utf-8")
    found = re.search(r"author\s*= \{(.*?)\},\n", page, re.S)
    assert found is not None
    names = [" ".join(reversed(name.split(", "))) for name in " ".join(found[1].split()).split(" and ")]
    assert tuple(names) == AUTHORS


def test_every_page_names_the_authors_in_order_and_the_preprint() -> None:
    shown = [
        get_method("dca").paper,
        *(_words(name) for name in ("README.md", "docs/math.md", "src/dca/methods/dca.py")),
    ]
    for text in shown:
        places = [text.find(name) for name in AUTHORS]
        assert -1 not in places
        assert places == sorted(places)
        assert TITLE in text
        assert NUMBER in text


def test_nothing_says_that_the_paper_appeared_at_a_conference() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "src").rglob("*.py")]
    wrong = re.compile(r"covariance-aware.{0,120}ICCV 2025", re.I | re.S)
    assert wrong.search("DCA: diversity and covariance-aware prompt learning (Dong et al., ICCV 2025).")
    assert [path.name for path in pages if wrong.search(path.read_text(encoding="utf-8"))] == []


def _words(name: str) -> str:
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())
