from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from dca import Classifier, Spec
from dca.methods.registry import DEFAULT_METHOD, get_method
from dca.methods.summary import mean_accuracy, measured, table

ROOT = Path(__file__).resolve().parents[2]


PAGE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """benchmarks/method_table.py as a module."""
    spec = importlib.util.spec_from_file_location("method_table", ROOT / "benchmarks" / "method_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_docs_list_the_methods_as_they_are(script: ModuleType) -> None:
    assert script.filled(PAGE) == PAGE, "run: python benchmarks/method_table.py"


def test_accuracies_are_those_of_the_committed_results(script: ModuleType) -> None:
    """The table of the docs and measured.json, made again from the result files."""
    study, runs = ROOT / "experiments" / "few-shot.toml", ROOT / "experiments" / "runs" / "study"
    made = script.between(PAGE, script.STUDY_BEGIN, script.STUDY_END, script.study_table(str(study), runs))
    assert made == PAGE, "run: python benchmarks/method_table.py experiments/few-shot.toml experiments/runs/study"
    assert script.measured_accuracies(script.load_specification(str(study)), runs) == measured()


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
    """Every row of the table "On the embedded model" that is complete, to the rounding of its one digit."""
    section = PAGE.split("## On the embedded model")[1].split("## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| [\d,]+ \|$", section, re.MULTILINE)
    means = {name: cells.split(" | ")[4].split()[0] for name, cells in rows}
    known = {name: float(mean) for name, mean in means.items() if mean != "–"}
    assert set(known) == set(measured()["accuracy"])
    assert all(mean_accuracy(name) == pytest.approx(mean, abs=0.11) for name, mean in known.items())
    assert mean_accuracy("no such method") is None
    for name, settings in measured()["settings"].items():
        get_method(name).choose(settings)


def test_the_default_method_exists() -> None:
    assert get_method(DEFAULT_METHOD).name == DEFAULT_METHOD == Classifier().method == Spec(data="sample").method
