from __future__ import annotations

import importlib
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest

from dca import Classifier
from dca.methods.registry import DEFAULT_METHOD, get_method
from dca.methods.summary import load_measurements, markdown_table, mean_accuracy
from dca.runs.spec import FitSpec

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """scripts/method_table.py as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        return importlib.import_module("method_table")


def test_the_docs_list_the_methods_as_they_are(script: ModuleType) -> None:
    assert script.make_method_table() == script.pages.read_part(script.METHODS), "run: python scripts/method_table.py"


def test_accuracies_are_those_of_the_committed_results(script: ModuleType) -> None:
    """The table of the docs and measured.json, made again from the result files."""
    study, results = str(ROOT / "study" / "few-shot.toml"), ROOT / "study" / "results" / "study.jsonl"
    table, command = (
        script.make_study_table(study, results),
        "python scripts/method_table.py --results study/results/study.jsonl",
    )
    assert table == script.pages.read_part(script.STUDY), f"run: {command}"
    assert script.measured_accuracies(script.load_specification(study), results) == asdict(load_measurements()), (
        f"run: {command}"
    )


def test_a_row_says_what_a_method_learns_and_from_what() -> None:
    text = markdown_table([get_method("gda"), get_method("linear_probe"), get_method("clap"), get_method("dca")])
    cells = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()[2:]]
    assert sorted((row[1], row[3], row[5], row[6]) for row in cells) == [
        ("`clap`", "seconds", "frozen features", "51,200"),
        ("`dca`", "minutes", "images", "21,504"),
        ("`gda`", "seconds", "nothing is trained", "0"),
        ("`linear_probe`", "seconds", "frozen features, solved", "51,300"),
    ]
    assert cells[-1][1] == "`dca`"


def test_measured_settings_are_options_of_their_methods() -> None:
    assert all(mean_accuracy(name) for name in load_measurements().accuracy)
    assert mean_accuracy("no such method") is None
    for name, settings in load_measurements().settings.items():
        get_method(name).parse_options(settings)


def test_the_default_method_exists() -> None:
    assert get_method(DEFAULT_METHOD).name == DEFAULT_METHOD == Classifier().method == FitSpec(data="sample").method
