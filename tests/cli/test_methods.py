from __future__ import annotations

import json
from typing import Any


def test_methods_prints_a_list_with_the_promised_keys(dca: Any):
    said = dca("methods", "--json")
    assert said.code == 0
    rows = {row["name"]: row for row in json.loads(said.out)}
    assert {"dca", "zero_shot"} <= set(rows)
    for row in rows.values():
        assert {"name", "paper", "trains_on", "trained_parameters", "summary"} == set(row)
        assert row["trains_on"] in ("images", "features", "nothing")
        assert row["paper"]
    assert rows["zero_shot"]["trained_parameters"] == 0
    listed = dca("methods").out
    assert all(name in listed for name in rows)


def test_dca_trains_21504_values_on_vit_b_16(dca: Any):
    assert json.loads(dca("methods", "show", "dca", "--json").out)["trained_parameters"] == 21_504
    assert "21,504" in dca("methods", "show", "dca").out


def test_show_lists_every_option_with_its_help(dca: Any):
    options = json.loads(dca("methods", "show", "dca", "--json").out)["options"]
    text = dca("methods", "show", "dca").out
    assert {"epochs", "alpha", "beta", "gamma1", "n_prompts"} <= {option["name"] for option in options}
    for option in options:
        assert f"  {option['name']} = " in text
        assert option["help"] in text


def test_json_before_show_counts_too(dca: Any):
    assert json.loads(dca("methods", "--json", "show", "dca").out)["name"] == "dca"


def test_an_unknown_method_or_command_suggests_the_nearest(dca: Any):
    said = dca("methods", "show", "zero_shoot")
    assert said.code == 2
    assert "Did you mean 'zero_shot'?" in said.err
    said = dca("methods", "shwo")
    assert said.code == 2
    assert "Did you mean 'show'?" in said.err


def test_hyphens_and_capitals_in_a_method_name_are_forgiven(dca: Any):
    assert json.loads(dca("methods", "show", "Zero-Shot", "--json").out)["name"] == "zero_shot"
