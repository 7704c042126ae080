"""The specifications that come with the package."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dca.core.errors import UserError
from dca.datasets import catalog
from dca.methods.base import Method
from dca.methods.dca import PAPER_TABLE
from dca.methods.registry import all_methods, get_method
from dca.study.published_numbers import published_numbers
from dca.study.selection import RULE
from dca.study.specification import list_shipped, load_specification

ELEVEN, SHOTS, SEEDS = set(PAPER_TABLE), {1, 2, 4, 8, 16}, {1, 2, 3}
# Name -> cells and fits.
SIZES = {
    "paper/few-shot": (11 + 15 * 11 * 5 * 3, 11 + 15 * 11 * 5 * 3),
    "paper/domain-shift": (1 + 6 * 3, 1 + 6 * 3),
    "paper/components": (6 * 7 * 3, 6 * 7 * 3),
    "paper/metric": (9 * 3 * 5 * 3, 4 * 3 * 5 * 3),
    "paper/intra-loss": (3 * 11 * 2 * 3, 3 * 11 * 2 * 3),
    "paper/prompts": (6 * 2 * 2 * 3, 6 * 2 * 2 * 3),
    "paper/alpha-beta": (10 * 2 * 3, 10 * 2 * 3),
    "paper/gamma": (7 * 7 * 2 * 2 * 3, 2 * 3),
    "paper/seeds": (2 * 11 * 5 * 3, 2 * 11 * 5 * 3),
    "adapters/tip-adapter": (11 + 2 * 11 * 5 * 3, 11 + 2 * 11 * 5 * 3),
    "adapters/gda": (11 + 11 * 5 * 3, 11 + 11 * 5 * 3),
    "adapters/proker": (11 + 11 * 3, 11 + 11 * 3),
    "base-to-new": (11 + 12 * 11 * 3, 11 + 12 * 11 * 3),
    "cross-dataset": (1 + 8 * 3, 1 + 8 * 3),
    "transductive": (2 * (11 + 7 * 11 * 2 * 3), 2 * (11 + 7 * 11 * 2 * 3)),
    "selection": (97 * 3 * 2, 94 * 3 * 2),
}
PUBLISHED = [name for name in SIZES if name != "selection"]


def test_every_experiment_has_a_specification():
    assert set(list_shipped()) == set(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_a_specification_has_its_cells(name: str):
    study = load_specification(name)
    assert (len(study.cells), len({cell.experiment.id for cell in study.cells})) == SIZES[name]
    assert study.title
    assert bool(study.paper) == name.startswith("paper/")


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_experiment_is_as_published(name: str):
    for spec in {cell.experiment for cell in load_specification(name).cells}:
        assert all(catalog.find(data) is not None for data in (spec.data, *spec.targets))
        assert (spec.backbone, spec.rules) == ("RN50" if name.startswith("adapters/") else "vit-b-16", "paper")
        assert spec.seed in SEEDS
        assert spec.shots in SHOTS
        if spec.protocol in ("base-to-new", "cross-dataset", "domain-shift"):
            assert spec.kind.retarget is not Method.retarget, spec.method


def test_every_row_on_rn50_that_we_have_the_method_of_is_run_by_a_specification():
    cells = [cell for name in SIZES if name.startswith("adapters/") for cell in load_specification(name).cells]
    run = {(cell.experiment.method, cell.experiment.shots, cell.experiment.backbone) for cell in cells}
    rows = [number for number in published_numbers() if number.backbone == "RN50" and number.method]
    assert len({row.method for row in rows}) == 5
    for row in rows:
        # A row of zero-shot CLIP has no shots.
        assert (row.method, row.shots or 1, row.backbone) in run, row


def test_the_selection_has_one_budget_for_all_methods_and_opens_no_test_image():
    settings: dict[str, set[tuple[str, str]]] = {}
    cells = load_specification("selection").cells
    for cell in cells:
        assert cell.experiment.measured_on == "validation"
        found = json.dumps(dict(cell.experiment.changed_options)), json.dumps(dict(cell.head))
        settings.setdefault(cell.experiment.method, set()).add(found)
    # ProKeR and LP++ search on validation images themselves, and came after the selection.
    assert set(settings) == set(all_methods()) - {"blend", "proker", "lp_plus_plus"}
    for method, each in settings.items():
        assert 2 <= len(each) <= 6
        if get_method(method).trains_on == "images":
            assert len({options for options, _ in each}) == 3, "fits of each experiment"
    on_images = {cell.experiment for cell in cells if cell.experiment.kind.trains_on == "images"}
    assert len(on_images) == 13 * 3 * 6


def test_the_specification_of_the_selection_states_the_rule():
    text = " ".join(list_shipped()["selection"].read_text(encoding="utf-8").replace("#", " ").split())
    assert "larger than one standard error of that mean" in text
    assert "larger than one standard error of that mean" in RULE


def test_the_few_shot_table_has_all_methods_datasets_and_shots():
    cells = [cell for cell in load_specification("paper/few-shot").cells if cell.experiment.method != "zero_shot"]
    by_row: dict[str, set[tuple[str, Any, int]]] = {}
    for cell in cells:
        by_row.setdefault(cell.rows[0], set()).add((cell.experiment.data, cell.experiment.shots, cell.experiment.seed))
    assert len(by_row) == 15
    assert {"DCA", "DCA, plots", "DCA, printed"} < set(by_row)
    for found in by_row.values():
        assert found == {(data, shots, seed) for data in ELEVEN for shots in SHOTS for seed in SEEDS}


def test_cells_of_two_specifications_are_shared():
    few, seeds, components, metric = (
        {cell.id for cell in load_specification(f"paper/{name}").cells}
        for name in ("few-shot", "seeds", "components", "metric")
    )
    assert seeds < few
    assert len(components & few) == 7 * 3  # the last row is DCA
    assert len(metric & few) == 2 * 3 * 5 * 3  # DAPT with the cosine, DCA


@pytest.mark.parametrize("name", SIZES)
def test_a_dry_run_needs_no_data(name: str, dca: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DCA_DATA", raising=False)
    said = dca("study", "sweep", name, "--dry-run", "--json", "--runs", tmp_path / "runs")
    assert said.code == 0
    value = json.loads(said.out)
    assert len(value["cells"]) == SIZES[name][0]
    data = {place for cell in value["cells"] for place in (cell["data"], *cell["targets"])}
    assert sum(line.startswith("data ") for line in value["missing"]) == len(data)


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="unknown specification 'paper/fewshot'") as raised:
        load_specification("paper/fewshot")
    assert set(raised.value.hint.partition("one of: ")[2].split(", ")) == set(list_shipped())
