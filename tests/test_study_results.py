"""The committed study: its specifications can be read, and its selection and report are those of its results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dca.datasets.shifts import SHIFTS
from dca.methods.registry import all_methods
from dca.study.experiment import Experiment
from dca.study.index import collect, read_results
from dca.study.report.folder import write_runs_report
from dca.study.report.subject import read_subject
from dca.study.selection import select_options
from dca.study.specification import load_specification

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "study"
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml"))
THREE = {"eurosat", "caltech101", "oxford_flowers"}


def specs(name: str) -> dict[str, Experiment]:
    return {cell.experiment.id: cell.experiment for cell in load_specification(FOLDER / f"{name}.toml").cells}


@pytest.mark.parametrize("name", NAMES)
def test_a_specification_is_of_the_embedded_model_and_the_three_datasets(name: str) -> None:
    found = specs(name).values()
    assert {spec.data for spec in found} == THREE
    assert {(spec.backbone, spec.rules, spec.measured_on) for spec in found} == {("mini", "strict", "test")}
    assert {spec.seed for spec in found} <= {1, 2, 3}


def test_the_few_shot_study_has_every_method_shot_and_seed() -> None:
    cells = {(s.method, s.data, s.shots, s.seed) for s in specs("few-shot").values() if s.method != "zero_shot"}
    methods = set(all_methods()) - {"zero_shot"}
    wanted = {(m, d, k, s) for m in methods for d in THREE for k in (1, 2, 4, 8, 16) for s in (1, 2, 3)}
    assert cells == {cell for cell in wanted if cell[0] != "blend" or cell[2] <= 4}


def test_the_domain_shifts_are_of_their_own_dataset_and_complete() -> None:
    for spec in specs("domain-shift").values():
        assert set(spec.targets) == {f"{spec.data}@{kind}" for kind in SHIFTS}


def test_finished_models_of_the_few_shot_study_are_used_again() -> None:
    few = set(specs("few-shot"))
    assert set(specs("gamma")) < few
    assert len(set(specs("metric")) & few) == 18 + 27 + 27, "DCA, DAPT with the cosine, GDA"
    assert len(set(specs("components")) & set(specs("metric"))) == 2 * 18, "the baseline, and DCA itself"


@pytest.mark.parametrize("name", ["study", "selection"])
def test_the_results_are_as_they_are_collected(name: str, tmp_path: Path) -> None:
    """Sorted by id, each once; nearly all with the ids of today's defaults."""
    committed, again = FOLDER / "results" / f"{name}.jsonl", tmp_path / "again.jsonl"
    collect([committed], again)
    assert again.read_bytes() == committed.read_bytes()
    specifications = [str(FOLDER / f"{name}.toml") for name in NAMES] if name == "study" else ["selection"]
    wanted = {cell.id for source in specifications for cell in load_specification(source).cells}
    results = read_results(committed)
    ids = {one.id for one in (*results.records, *results.failures)}
    assert len(ids & wanted) > 0.75 * len(ids)


def test_the_selection_is_what_the_committed_results_give() -> None:
    found = select_options(load_specification("selection"), FOLDER / "results" / "selection.jsonl")
    assert json.loads(json.dumps(found)) == json.loads((FOLDER / "selection.json").read_text(encoding="utf-8"))


def test_the_committed_report_is_that_of_the_committed_results(tmp_path: Path) -> None:
    """Every table of the report, with the ids of the runs behind each number, made again from the results."""
    (names,) = re.findall(r"^SPECIFICATIONS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(names.split()) == NAMES
    specifications = [str(FOLDER / f"{name}.toml") for name in names.split()]
    subject = read_subject(
        FOLDER / "results" / "study.jsonl", specifications=specifications, selection=FOLDER / "selection.json"
    )
    made = write_runs_report(subject, tmp_path / "report", text_only=True).parent / "tables"
    committed = FOLDER / "report" / "tables"
    assert sorted(path.name for path in made.iterdir()) == sorted(path.name for path in committed.iterdir())
    other = [path.name for path in made.iterdir() if path.read_bytes() != (committed / path.name).read_bytes()]
    assert not other, "run: make study-tables"
