"""Settings of the authors for single protocols."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dca.core.choices import PROTOCOLS, ProtocolName
from dca.core.options import changed_values
from dca.datasets.dataset import Dataset
from dca.methods.registry import all_methods, get_method
from dca.study.experiment import Experiment
from dca.study.run import run_experiment

TRANSFER = {
    "maple": {"depth": 3, "epochs": 2, "learning_rate": 0.0026},
    "promptsrc": {"depth": 3, "epochs": 20, "average_mean": 6.0, "average_spread": 10.0},
}
EXPECTED: dict[str, dict[ProtocolName, dict[str, Any]]] = {
    "maple": {"cross-dataset": TRANSFER["maple"], "domain-shift": TRANSFER["maple"]},
    "promptsrc": {
        "base-to-new": {"epochs": 20, "average_mean": 15.0, "average_spread": 1.0},
        "cross-dataset": TRANSFER["promptsrc"],
        "domain-shift": TRANSFER["promptsrc"],
    },
    "prolip": {"base-to-new": {"learning_rate": 1e-5}, "domain-shift": {"learning_rate": 1e-5}},
}


def spec(name: str, protocol: str, **given: Any) -> Experiment:
    return Experiment(**{"data": "x", "method": name, "protocol": protocol, "rules": "paper", **given})  # type: ignore[arg-type]


def test_recipes_by_protocol_are_those_of_the_authors_files() -> None:
    for name, kind in all_methods().items():
        for protocol in PROTOCOLS:
            wanted = EXPECTED.get(name, {}).get(protocol, {})
            assert kind.options_for_protocol(protocol, "paper") == wanted, (name, protocol)
            assert kind.options_for_protocol(protocol, "strict") == {}
            kind.parse_options(wanted)
        assert all(own.source.endswith(".yaml") for own in kind.protocol_options.values())


@pytest.mark.parametrize("name", ["maple", "promptsrc"])
def test_an_experiment_takes_them_with_the_selection_paper_only(name: str) -> None:
    for protocol, wanted in EXPECTED[name].items():
        found = spec(name, protocol)
        assert changed_values(found.options) == wanted
        assert found.changed_options == {}
        assert changed_values(spec(name, protocol, rules="strict").options) == {}
    assert changed_values(spec(name, "few-shot").options) == {}


def test_options_that_are_given_win_even_with_the_value_of_a_default() -> None:
    found = spec("maple", "domain-shift", options={"depth": 9, "epochs": 2})
    assert found.changed_options == {"depth": 9}
    assert changed_values(found.options) == {"epochs": 2, "learning_rate": 0.0026}, (
        "9 is the default of other protocols"
    )
    again = spec("maple", "domain-shift", options=found.options)
    assert again == found
    assert again.id == found.id
    assert found == spec("maple", "domain-shift", options=("depth=9",))
    assert found != spec("maple", "domain-shift")
    assert spec("maple", "domain-shift", options=()) == spec("maple", "domain-shift")


@pytest.mark.parametrize(("rules", "mean"), [("paper", 15.0), ("strict", 0.6)])
def test_a_run_trains_with_them(rules: str, mean: float, sample: Dataset, tiny_folder: Path, tmp_path: Path) -> None:
    """Few-shot averaging is around epoch 30 of 50, which is 0.6 of one epoch."""
    options = {"epochs": 1, "warmup_epochs": 0, "batch_size": 8}
    found = spec("promptsrc", "base-to-new", rules=rules, shots=1, backbone=str(tiny_folder), options=options)
    outcome = run_experiment(found, tmp_path / "model", dataset=sample, device="cpu")
    assert outcome.classifier is not None
    chosen = outcome.classifier.method_.options
    assert (chosen.epochs, chosen.average_mean) == (1, pytest.approx(mean))
    identity = json.loads((tmp_path / "model" / "spec.json").read_text(encoding="utf-8"))["identity"]
    assert identity["options"]["average_mean"] == pytest.approx(mean)


def test_the_command_lists_them_with_their_source(dca: Any) -> None:
    shown = " ".join(dca("methods", "show", "maple").out.split())
    assert "options of its authors in other protocols, taken with --rules paper:" in shown
    assert "domain-shift: depth=3 epochs=2 learning_rate=0.0026 (MaPLe's code: configs/trainers/MaPLe/" in shown
    row = json.loads(dca("methods", "show", "promptsrc", "--json").out)
    assert row["protocol_options"]["base-to-new"]["options"] == EXPECTED["promptsrc"]["base-to-new"]
    assert get_method("gda").explain_options() == {}
