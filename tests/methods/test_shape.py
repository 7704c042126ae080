from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from dca import Classifier, Spec
from dca.methods.registry import DEFAULT_METHOD, get_method
from dca.methods.summary import mean_accuracy, measured, table

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
    assert sorted((row[1], row[3], row[5], row[6]) for row in cells) == [
        ("`clap`", "seconds", "frozen features", "51,200"),
        ("`dca`", "minutes", "images", "21,504"),
        ("`gda`", "seconds", "nothing is trained", "0"),
        ("`linear_probe`", "seconds", "frozen features, solved", "51,300"),
    ]
    assert cells[-1][1] == "`dca`"


def test_measured_figures_are_those_of_the_docs() -> None:
    """Every row of the table "On the embedded model" with its three accuracies, and no other."""
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    section = page.split("## On the embedded model")[1].split("## ")[0]
    rows = re.findall(r"^\| `(\w+)`[¹²³]? \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| [\d,]+ \|", section, re.MULTILINE)
    found = {name: dict(zip(measured()["test_images"], map(float, cells), strict=True)) for name, *cells in rows}
    assert measured()["accuracy"] == found
    assert mean_accuracy("coop") == 70.4
    assert mean_accuracy("no such method") is None
    for name, settings in measured()["settings"].items():
        get_method(name).choose(settings)


def test_the_default_method_exists() -> None:
    assert get_method(DEFAULT_METHOD).name == DEFAULT_METHOD == Classifier().method == Spec(data="sample").method
