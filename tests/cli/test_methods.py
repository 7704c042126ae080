from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from dca.cli.methods import format_methods
from dca.core.choices import DEFAULT_METHOD
from dca.methods.summary import MethodSummary, load_measurements, mean_accuracy

KEYS = {
    *("name", "default", "summary", "speed", "gpu", "mean_accuracy", "accuracy", "measured_with"),
    *("trains_on", "learns_from", "trained_parameters", "paper"),
}


def test_methods_prints_a_list_with_the_promised_keys(dca: Any):
    said = dca("methods", "--json")
    assert said.code == 0
    rows = {row["name"]: row for row in json.loads(said.out)}
    assert {"dca", "zero_shot"} <= set(rows)
    for row in rows.values():
        assert set(row) == KEYS
        assert row["trains_on"] in ("images", "features", "nothing")
        assert row["paper"]
        assert row["speed"] == ("minutes" if row["learns_from"] == "images" else "seconds")
        assert row["gpu"] == ("helps" if row["speed"] == "minutes" else "not needed")
    assert [name for name, row in rows.items() if row["default"]] == [DEFAULT_METHOD]
    assert rows["coop"]["accuracy"] == load_measurements().accuracy["coop"]
    assert set(rows["coop"]["accuracy"]) == {"EuroSAT", "Caltech101", "Flowers102"}
    assert rows["coop"]["mean_accuracy"] == pytest.approx(sum(rows["coop"]["accuracy"].values()) / 3, abs=0.05)
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


def test_the_listing_begins_with_advice_and_goes_by_speed_and_accuracy(dca: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    advice, *groups = dca("methods").out.split("\n\n")
    assert advice.startswith(f"Which method to choose:\n  {DEFAULT_METHOD}: what `dca fit` uses")
    assert "the most accurate of those that take seconds, " in advice
    assert groups[0].startswith("seconds on a CPU (frozen features):\n")
    assert groups[1].startswith("minutes on a CPU, a GPU helps (trained on images):\n")
    assert "EuroSAT, Caltech101 and Flowers102; 16 shots" in groups[2]
    for group in groups[:2]:
        figures = [float(line.split()[1]) for line in group.splitlines() if " %  " in line]
        assert len(figures) >= 7
        assert figures == sorted(figures, reverse=True)
    coop, tcp = (mean_accuracy(name) for name in ("coop", "tcp"))
    assert f"accuracy: {coop} %, mean test accuracy on EuroSAT" in dca("methods", "show", "coop").out
    assert f"accuracy: {tcp} % with --set weight=1.0, " in dca("methods", "show", "tcp").out
    assert "tcp" in groups[2]
    assert "measured with options that were chosen on validation images for mini" in " ".join(groups[2].split())
    assert "takes: seconds on a CPU" in dca("methods", "show", "gda").out


def test_a_method_without_a_figure_comes_last_and_shows_none():
    new = MethodSummary(
        *("a_new_one", True, "It is.", "seconds", "not needed", None, None, {}, "nothing", "nothing is trained", 0, "")
    )
    old = replace(new, name="old", default=False, mean_accuracy=50.0)
    lines = format_methods([new, old], 100)
    assert lines[1] == "  a_new_one: what `dca fit` uses; seconds on a CPU (frozen features)"
    assert lines[2] == "  old: the most accurate of those that take seconds, 50.0 %"
    assert [line.split() for line in lines if line.startswith(("  a_new", "  old"))][2:] == [
        ["old", "50.0", "%", "It", "is"],
        ["a_new_one", "It", "is"],
    ]


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
