"""Settings are chosen by one rule, from complete results on validation images."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dca.core.errors import UserError
from dca.methods.registry import all_methods, get_method
from dca.study.selection import RULE, Setting, choose_setting, list_choices_unlike_defaults, select_options
from dca.study.specification import Cell, Specification, parse_specification
from dca.study.sweep import record_failure

COMMON = {"data": ["a", "b"], "shots": [4, 16], "measured_on": "validation"}
GRIDS: list[dict[str, Any]] = [
    {"method": "dca"},
    {"method": "dca", "options": {"epochs": 50}},
    {"method": "dca", "options": {"epochs": 100}},
    {"method": "dca", "head": {"center": "visual"}},
    {"method": "clap", "options": {"strength": 1}},
    {"method": "clap", "options": {"strength": 0.3}},
]
Write = Callable[..., None]


@pytest.fixture
def study() -> Specification:
    return parse_specification({"title": "Small", "common": COMMON, "grid": GRIDS}, "small")


@pytest.fixture
def write(tmp_path: Path, study: Specification) -> Write:
    """Write results: accuracies in the order of the study, four per setting."""

    def make(accuracies: Sequence[float | None]) -> None:
        for cell, accuracy in zip(study.cells, accuracies, strict=True):
            if accuracy is None:
                continue
            folder = tmp_path / cell.id
            folder.mkdir(exist_ok=True)
            spec = cell.experiment.to_dict()
            result = {"method": spec["method"], "protocol": "few-shot", "shots": spec["shots"], "seed": spec["seed"]}
            result |= {"accuracy": accuracy, "seconds": 1.0, "targets": []}
            (folder / "spec.json").write_text(json.dumps({"spec": spec, "head": dict(cell.head)}))
            (folder / "result.json").write_text(json.dumps(result))

    return make


FOUND = [
    *(0.50, 0.60, 0.70, 0.80),  # the reference of dca
    *(0.51, 0.61, 0.70, 0.80),
    *(0.54, 0.62, 0.73, 0.81),  # 2.5 points better, standard error 0.65
    *(0.40, 0.50, 0.60, 0.70),
    *(0.50, 0.60, 0.70, 0.80),  # the reference of clap
    *(0.60, 0.50, 0.71, 0.80),  # 0.25 points better, standard error 4.1
]


def test_the_best_setting_is_chosen_if_it_is_clearly_better(tmp_path: Path, study: Specification, write: Write):
    write(FOUND)
    found = select_options(study, tmp_path)
    dca, clap = found["methods"]["dca"], found["methods"]["clap"]
    assert dca["reference"] == {"center": None, "epochs": None}
    assert dca["chosen"] == {"center": None, "epochs": 100}
    assert [(one["options"], one["head"]) for one in dca["settings"]] == [
        ({"center": None, "epochs": None}, []),
        ({"center": None, "epochs": 50}, []),
        ({"center": None, "epochs": 100}, []),
        ({"center": "visual", "epochs": None}, ["center"]),
    ]
    assert clap["chosen"] == clap["reference"] == {"strength": 1.0}
    best = dca["settings"][2]
    gains = [0.04, 0.02, 0.03, 0.01]
    assert best["difference"] == pytest.approx(statistics.mean(gains))
    assert best["standard_error"] == pytest.approx(statistics.stdev(gains) / math.sqrt(4))
    assert best["n"] == 4
    assert list(best["runs"].values()) == FOUND[8:12]
    assert set(best["runs"]) <= {cell.id for cell in study.cells}
    assert (found["rule"], found["datasets"], found["shots"]) == (RULE, ["a", "b"], [4, 16])


def _record(folder: Path, cell: Cell, **options: Any) -> None:
    """Let the run in a folder have recorded the options it was made with."""
    record = {"spec": cell.experiment.to_dict(), "identity": {"options": {**options, "unknown today": 3}}}
    (folder / "spec.json").write_text(json.dumps(record))


def test_a_run_is_known_by_the_options_that_it_recorded(tmp_path: Path, study: Specification, write: Write):
    write(FOUND)
    cell = study.cells[-1]  # clap with strength=0.3
    _record(tmp_path / cell.id, cell, strength=0.3)
    found = select_options(study, tmp_path)
    (tmp_path / cell.id).rename(tmp_path / "of another default")
    runs = select_options(study, tmp_path)["methods"]["clap"]["settings"][1]["runs"]
    assert list(runs.values()) == list(found["methods"]["clap"]["settings"][1]["runs"].values())
    assert [*runs][-1] == "of another default"


def test_fits_with_other_defaults_than_todays_are_refused(tmp_path: Path, study: Specification, write: Write):
    write(FOUND)
    cell = study.cells[-1]
    _record(tmp_path / cell.id, cell, strength=0.5)
    with pytest.raises(UserError, match="1 cell of 24 of small") as raised:
        select_options(study, tmp_path)
    assert list(raised.value.details) == [f"{cell.id}  {cell.label}: strength=0.5 there, 0.3 today"]


def test_equal_results_give_equal_bytes(tmp_path: Path, study: Specification, write: Write):
    write(FOUND)
    one = json.dumps(select_options(study, tmp_path))
    write(FOUND)
    assert json.dumps(select_options(study, tmp_path)) == one
    assert str(tmp_path) not in one


@pytest.mark.parametrize(
    ("reference", "others", "chosen"),
    [
        ([0.5, 0.6], [[0.5, 0.6]], 0),  # equal
        ([0.5, 0.5], [[0.6, 0.49]], 0),  # less than one standard error
        ([0.5, 0.5], [[0.61, 0.52]], 1),
        ([0.5, 0.5], [[0.6, 0.6], [0.6, 0.6]], 1),  # of equal ones the first
        ([0.5, 0.5], [[0.6, 0.6], [0.9, 0.45]], 1),  # the other mean is higher, but by less than its standard error
        ([0.5, 0.5], [[0.4, 0.4]], 0),
    ],
)
def test_small_differences_and_ties_go_to_the_reference(reference: list[float], others: list[list[float]], chosen: int):
    settings = [Setting({}, (), dict(enumerate(row))) for row in (reference, *others)]  # type: ignore[arg-type]
    assert choose_setting(settings) is settings[chosen]


def test_an_experiment_that_diverged_has_the_accuracy_0(tmp_path: Path, study: Specification, write: Write):
    write([*FOUND[:8], None, *FOUND[9:]])
    record_failure(tmp_path, study.cells[8], "training diverged in epoch 2: loss term cls is not finite", "")
    row = select_options(study, tmp_path)["methods"]["dca"]
    assert 0.0 in row["settings"][2]["runs"].values()
    assert row["chosen"] == {"center": None, "epochs": 50}  # it would be 100 otherwise
    record_failure(tmp_path, study.cells[8], "out of memory", "")
    with pytest.raises(UserError, match="1 cell of 24"):
        select_options(study, tmp_path)


def test_missing_cells_are_listed_with_the_reason_where_there_is_one(
    tmp_path: Path, study: Specification, write: Write
):
    write([None, None, *FOUND[2:]])
    record_failure(tmp_path, study.cells[0], "no such folder", "")
    with pytest.raises(UserError, match="2 cells of 24 of small are not finished") as raised:
        select_options(study, tmp_path)
    first, second = study.cells[:2]
    assert list(raised.value.details) == [f"{first.id}  {first.label}: no such folder", f"{second.id}  {second.label}"]
    assert "dca study sweep small --runs" in raised.value.render("cli")


@pytest.mark.parametrize(
    ("common", "grid", "part"),
    [
        ({"data": "a", "shots": [1, 2]}, [{"method": "gda"}], "gda a 1 shot seed 1: measured on test images"),
        (
            COMMON,
            [{"method": "gda"}, {"method": "gda", "shots": 4, "options": {"views": 0}}],
            "not measured on the same",
        ),
        ({"data": "a", "measured_on": "validation"}, [{"method": "gda"}], "one experiment has no standard error"),
    ],
)
def test_a_study_that_compares_nothing_is_refused(
    common: dict[str, Any], grid: list[dict[str, Any]], part: str, tmp_path: Path
):
    with pytest.raises(UserError) as raised:
        select_options(parse_specification({"common": common, "grid": grid}, "wrong"), tmp_path)
    assert any(part in line for line in raised.value.details)


COMMITTED = Path(__file__).resolve().parents[2] / "study" / "selection.json"


def chosen(**methods: dict[str, Any]) -> dict[str, Any]:
    """The parts of a selection that are compared with the defaults."""
    rows = {method: {"chosen": options} for method, options in methods.items()}
    return {"datasets": ["eurosat", "caltech101"], "shots": [4, 16], "methods": rows}


def test_the_defaults_are_those_of_the_committed_selection():
    assert list_choices_unlike_defaults(json.loads(COMMITTED.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (chosen(coop={"learning_rate": 0.002, "phrase": None}), 0),
        (chosen(coop={"learning_rate": None, "phrase": "a photo of a"}), 0),  # published
        (chosen(clap={"strength": 0.03}), 0),  # what its default stands for
        (chosen(clap={"strength": 1.0}), 1),
        (chosen(dca={"gamma1": 100.0}), 0),  # published
        (chosen(closed_form={"templates": []}), 0),
    ],
)
def test_a_chosen_option_that_is_no_default_is_named(found: dict[str, Any], lines: int):
    assert len(list_choices_unlike_defaults(found)) == lines


def test_a_method_may_say_why_a_default_is_another(monkeypatch: pytest.MonkeyPatch):
    found = chosen(clap={"recipe": "paper"})
    (line,) = list_choices_unlike_defaults(found)
    assert line == "clap: recipe='paper' was chosen, the default is 'scaled'"
    monkeypatch.setattr(get_method("clap"), "kept_defaults", {"recipe": "it depends on the size of the features"})
    assert list_choices_unlike_defaults(found) == []
    lines = get_method("clap").explain_options()["defaults that are not those chosen on validation images"]
    assert lines == ["recipe: it depends on the size of the features"]


def test_reasons_are_given_for_options_that_exist():
    for kind in all_methods().values():
        assert all(hasattr(kind.Options(), name) and why for name, why in kind.kept_defaults.items()), kind.name
