from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from dca.core import device


def test_doctor_says_what_is_installed_and_what_will_be_used(dca: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = dca("doctor", "--json")
    assert said.code == 0
    report = json.loads(said.out)
    assert report["packages"]["torch"] == torch.__version__
    assert report["device"]
    assert report["precision"] in ("float32", "bfloat16")
    assert {"mini", "vit-b-16"} <= set(report["backbones"])
    assert report["environment"]["HF_HUB_OFFLINE"] == "1"


def test_doctor_says_the_same_to_people(dca: Any):
    report = json.loads(dca("doctor", "--json").out)
    text = dca("doctor").out
    assert f"dca {report['dca']}" in text
    for name in (*report["packages"], *report["backbones"]):
        assert name in text


def test_doctor_says_in_what_full_size_features_are_computed(dca: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for there, name in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(device, "multiplies_bf16", lambda there=there: there)
        assert json.loads(dca("doctor", "--json").out)["feature_precision"] == name
        said = "precision float32, bfloat16 for frozen features of full-size backbones"
        assert (said in dca("doctor").out) is there


def test_a_missing_package_is_said_and_not_fatal(dca: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dca.cli.doctor.installed_version", lambda package: None)
    said = dca("doctor")
    assert said.code == 0
    assert "not installed" in said.out
    assert "pip install 'dca-prompt[report]'" in said.out
