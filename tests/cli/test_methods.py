from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest


def test_methods_prints_a_list_with_the_promised_keys(dca: Any):
    said = dca("methods", "--json")
    assert said.code == 0
    rows = {row["name"]: row for row in json.loads(said.out)}
    assert {"dca", "zero_shot"} <= set(rows)
    for row in rows.values():
        assert {"name", "paper", "trains_on", "learns_from", "trained_parameters", "summary"} == set(row)
        assert row["trains_on"] in ("images", "features", "nothing")
        assert row["paper"]
    assert rows["zero_shot"]["trained_parameters"] == 0
    listed = dca("methods").out
    assert all(name in listed for name in rows)
    assert all(row["summary"].rstrip(".") in " ".join(listed.split()) for row in rows.values())


def test_the_listing_says_what_the_docs_say_a_method_learns_from(dca: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    lines = [line.split() for line in dca("methods").out.splitlines()]
    under = {line[0]: " ".join(after) for line, after in pairwise(lines) if line}
    assert under["linear_probe"] == "learns from frozen features, solved: 51,300 values"
    assert under["gda"] == "nothing is trained"
    assert under["dca"] == "learns from images: 21,504 values"
    assert "learns from: frozen features, solved" in dca("methods", "show", "linear_probe").out


def test_the_listing_keeps_to_the_width_of_the_terminal(dca: Any, monkeypatch: pytest.MonkeyPatch):
    for columns in (70, 80, 300):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert max(map(len, dca("methods").out.splitlines())) <= min(columns, 100)


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


def test_show_prints_limits_choices_and_defaults_that_are_empty(dca: Any):
    text = dca("methods", "show", "coop").out
    for part in ("epochs = auto  [at least 0]", "momentum = 0.9  [0 to 1]", "position = end  [end|middle|front]"):
        assert part in text
    assert "phrase = none\n" in text
    assert "templates = none\n" in dca("methods", "show", "gda").out


def test_show_leaves_out_what_has_no_effect(dca: Any):
    for name in ("linear_probe", "gda"):
        listed = {option["name"] for option in json.loads(dca("methods", "show", name, "--json").out)["options"]}
        assert not {"epochs", "optimizer", "momentum"} & listed
        text = dca("methods", "show", name).out
        assert "momentum = " not in text
        assert "not trained in steps" in text
    assert "not trained in steps" not in dca("methods", "show", "coop").out


def test_a_method_without_show_is_answered_with_the_command(dca: Any):
    for typed, meant in (("CoOp", "coop"), ("tip-adapter", "tip_adapter"), ("gdaa", "gda"), ("xyz", "NAME")):
        said = dca("methods", typed)
        assert said.code == 2
        assert f"fix: dca methods show {meant}\n" in said.err


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
