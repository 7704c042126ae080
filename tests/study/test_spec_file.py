from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dca.core.errors import UserError
from dca.study.experiment import Experiment
from dca.study.specification import list_shipped, load_specification, parse_specification


def cells(**table: Any) -> list[Any]:
    return list(parse_specification(table, "test").cells)


def test_a_grid_is_the_product_of_its_axes():
    made = cells(common={"data": ["a", "b"], "shots": [1, 2]}, grid=[{"method": ["gda", "dca"], "seed": [1, 2, 3]}])
    assert len(made) == 2 * 2 * 2 * 3
    assert made[0].experiment == Experiment(data="a", method="gda", shots=1, seed=1)
    assert {cell.id for cell in made} == {cell.experiment.id for cell in made}


def test_options_are_axes_too_and_those_of_lists_are_lists_of_lists():
    made = cells(
        grid=[{"data": "a", "method": "dca", "options": {"alpha": [1, 10], "phrases": [["a photo of"], ["this is"]]}}]
    )
    assert [dict(cell.experiment.changed_options) for cell in made] == [
        {"alpha": alpha, "phrases": (phrase,)} for alpha in (1.0, 10.0) for phrase in ("a photo of", "this is")
    ]
    (one,) = cells(grid=[{"data": "a", "method": "dca", "options": {"phrases": ["a photo of", "this is"]}}])
    assert one.experiment.options.phrases == ("a photo of", "this is")


def test_targets_are_one_value():
    common = {"data": "imagenet", "method": "dca", "protocol": "domain-shift"}
    (cell,) = cells(common={**common, "targets": ["imagenetv2", "imagenet_r"]})
    assert cell.experiment.targets == ("imagenetv2", "imagenet_r")


def test_equal_experiments_are_one_cell_with_both_rows():
    made = cells(
        common={"data": "a", "method": "dca"},
        grid=[{"name": "default"}, {"name": "M", "options": {"n_prompts": [1, 4]}}],
    )
    assert [cell.rows for cell in made] == [("default", "M"), ("M",)]


def test_a_grid_overrides_common_values_and_adds_to_common_options():
    common = {"data": "a", "method": "dca", "shots": 1, "options": {"alpha": 1}}
    made = cells(common=common, grid=[{}, {"shots": 2, "options": {"beta": 2}}])
    assert [(c.experiment.shots, dict(c.experiment.changed_options)) for c in made] == [
        (1, {"alpha": 1.0}),
        (2, {"alpha": 1.0, "beta": 2.0}),
    ]


def test_cells_of_a_head_have_one_spec_and_their_own_ids():
    made = cells(grid=[{"data": "a", "method": "dca", "head": {"gamma1": [100, 500], "center": ["text", "visual"]}}])
    assert len({cell.id for cell in made}) == 4
    assert {cell.experiment for cell in made} == {Experiment(data="a", method="dca")}
    assert dict(made[0].head) == {"center": "text", "gamma1": 100.0}
    as_float = cells(grid=[{"data": "a", "method": "dca", "head": {"center": "text", "gamma1": 100.0}}])
    assert as_float[0].id == made[0].id


def test_the_backbone_can_be_given():
    made = parse_specification(
        {"common": {"data": "a", "backbone": ["vit-b-16", "vit-b-32"]}}, "test", backbone="vit-l-14"
    )
    assert [cell.experiment.backbone for cell in made.cells] == ["vit-l-14"]


@pytest.mark.parametrize(
    ("table", "lines"),
    [
        ({"grids": []}, ["unknown key 'grids'. Did you mean 'grid'?"]),
        ({"common": {"seeds": [1], "shot": 1}}, ["common: unknown key 'seeds'", "common: unknown key 'shot'"]),
        ({"common": {"method": "dca"}}, ["grid 1: data is missing"]),
        ({"common": {"data": "a", "method": ["cop", "dac"]}}, ["unknown method 'cop'", "unknown method 'dac'"]),
        ({"common": {"data": "a", "method": "dca", "options": {"alpa": 1}}}, ["unknown option 'alpa'"]),
        ({"common": {"data": "a", "method": "dca", "options": {"alpha": [1, -1]}}}, ["alpha=-1.0: at least 0"]),
        ({"common": {"data": "a", "method": "gda", "head": {"gamma1": 1}}}, ["gamma1: no option of the head of gda"]),
        ({"common": {"data": "a", "shots": [0, "many"]}}, ["shots", "shots"]),
        ({"common": {"data": "a", "protocol": "fewshot"}}, ["unknown protocol 'fewshot'. Did you mean 'few-shot'?"]),
        ({"common": {"data": "a", "options": 3}}, ["common: options must be a table"]),
        ({"common": 3}, ["expected one table"]),
        ({"common": {"data": ["x/photos", "y/photos"]}}, ["same last part"]),
        ({"grid": [{"name": "one", "data": "a", "method": "cop"}]}, ["one: unknown method 'cop'"]),
    ],
)
def test_all_problems_are_named_at_once(table: dict[str, Any], lines: list[str]):
    with pytest.raises(UserError, match=r"^test: ") as raised:
        parse_specification(table, "test")
    assert len(raised.value.details) == len(lines)
    for line, wanted in zip(raised.value.details, lines, strict=True):
        assert wanted in line


def test_a_grid_without_values_has_no_cells():
    with pytest.raises(UserError, match="no cells"):
        parse_specification({"common": {"data": []}}, "test")


def test_a_file_is_read(tmp_path: Path):
    path = tmp_path / "my.toml"
    path.write_text('title = "Mine"\npaper = "Table 9"\n[common]\ndata = "sample"\nmethod = "gda"\n')
    study = load_specification(path)
    assert (study.name, study.title, study.paper, len(study.cells)) == ("my.toml", "Mine", "Table 9", 1)


def test_a_file_that_is_missing_or_no_toml_is_an_error(tmp_path: Path):
    with pytest.raises(UserError, match="no such file") as raised:
        load_specification(tmp_path / "none.toml")
    assert all(name in raised.value.hint for name in list_shipped())
    with pytest.raises(UserError, match="cannot be read"):
        load_specification(tmp_path)
    (tmp_path / "bad.toml").write_text("[common")
    with pytest.raises(UserError, match="not readable TOML"):
        load_specification(tmp_path / "bad.toml")
    (tmp_path / "bytes.toml").write_bytes(b'title = "\xff"')
    with pytest.raises(UserError, match="not readable TOML"):
        load_specification(tmp_path / "bytes.toml")


def test_auto_is_the_value_none_of_an_option():
    made = cells(grid=[{"data": "a", "method": "coop", "options": {"learning_rate": [0.002, "auto"]}}])
    assert [dict(cell.experiment.changed_options) for cell in made] == [{}, {"learning_rate": None}]
    (kept,) = cells(grid=[{"data": "a", "method": "clap", "options": {"multipliers": "none"}}])
    assert dict(kept.experiment.changed_options) == {"multipliers": "none"}


def test_settings_are_the_options_that_a_selection_chose_unless_a_grid_has_others(tmp_path: Path):
    chosen = {"clap": {"chosen": {"strength": 0.1, "recipe": "scaled"}}, "gda": {"chosen": {"views": 0}}}
    (tmp_path / "chosen.json").write_text(json.dumps({"methods": chosen}))
    path = tmp_path / "study.toml"
    path.write_text(
        'settings = "chosen.json"\n[common]\ndata = "a"\n[[grid]]\nmethod = ["clap", "gda", "coop"]\n'
        '[[grid]]\nmethod = "clap"\noptions = {strength = 0.5}\n'
    )
    found = [(cell.experiment.method, dict(cell.experiment.changed_options)) for cell in load_specification(path).cells]
    assert found == [("clap", {"strength": 0.1}), ("gda", {"views": 0}), ("coop", {}), ("clap", {"strength": 0.5})]


@pytest.mark.parametrize("content", ["{", "{}", '{"methods": []}', '{"methods": {"gda": {}}}', None])
def test_settings_that_are_no_selection_are_an_error(content: str | None, tmp_path: Path):
    if content is not None:
        (tmp_path / "chosen.json").write_text(content)
    with pytest.raises(UserError, match=r"chosen\.json"):
        parse_specification({"settings": "chosen.json", "common": {"data": "a"}}, "test", folder=tmp_path)
