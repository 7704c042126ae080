from __future__ import annotations

import importlib.util
from pathlib import Path

from dca.methods.registry import get_method
from dca.methods.summary import table

ROOT = Path(__file__).resolve().parents[2]


def test_the_docs_list_the_methods_as_they_are() -> None:
    spec = importlib.util.spec_from_file_location("method_table", ROOT / "benchmarks" / "method_table.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert script.filled(page) == page, "run: python benchmarks/method_table.py"


def test_a_row_says_what_a_method_learns_and_from_what() -> None:
    text = table([get_method("gda"), get_method("linear_probe"), get_method("clap"), get_method("dca")])
    cells = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()[2:]]
    assert [(row[1], row[3], row[4]) for row in cells] == [
        ("`gda`", "nothing is trained", "0"),
        ("`linear_probe`", "frozen features, solved", "51,300"),
        ("`clap`", "frozen features", "51,200"),
        ("`dca`", "images", "21,504"),
    ]
