from __future__ import annotations

import doctest
import hashlib
import json

import pytest
import torch

from dca.cli import cache, main
from dca.features.store import FeatureStore

KEYS = [hashlib.sha256(bytes([n])).hexdigest() for n in range(10)]
MINI = {"precision": "torch.float32", "backbone": "c620a0f0" * 8, "display": {"source": "mini"}}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DCA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


def fill(about):
    FeatureStore().get_or_compute(about, KEYS, lambda places: [torch.ones(len(places), 4)])


def test_each_backbone_and_precision_has_a_line(capsys):
    for about in (MINI, {**MINI, "precision": "torch.bfloat16"}, {"backbone": "abcdef" * 10}):
        fill(about)
    assert main(["cache"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert {line.split("  ")[-1] for line in lines} == {"mini c620a0f0, float32", "mini c620a0f0, bfloat16", "abcdefab"}
    assert all("10 features" in line and "160 bytes" in line for line in lines)


def test_other_facts_of_a_space_are_shown():
    assert doctest.testmod(cache).failed == 0
    assert cache.describe_space({"display": "mini", "seed": 7}) == "mini, seed 7"


def test_json_gives_the_whole_description(capsys, folder):
    fill(MINI)
    assert main(["cache", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["folder"] == str(folder)
    assert shown["limit_bytes"] == 4 * 2**30
    (space,) = shown["spaces"]
    assert space["about"] == MINI
    assert space["features"] == 10
    assert shown["bytes"] == space["bytes"] == 10 * 4 * 4


def test_clear_deletes_one_space_or_all(capsys):
    fill(MINI)
    fill({"backbone": "b"})
    name = FeatureStore().list_spaces()[0].name
    assert main(["cache", "clear", "nonsense"]) == 2
    assert len(FeatureStore().list_spaces()) == 2
    capsys.readouterr()
    assert main(["cache", "clear", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["freed_bytes"] == 160
    assert [space.name == name for space in FeatureStore().list_spaces()] == [False]
    assert main(["cache", "clear"]) == 0
    assert "freed 160 bytes" in capsys.readouterr().out
    assert main(["cache"]) == 0
    assert "0 bytes" in capsys.readouterr().out


def test_a_database_that_cannot_be_opened_is_an_error_of_the_user(capsys, folder):
    (folder / "features.sqlite").mkdir(parents=True)
    assert main(["cache"]) == 0  # nothing is stored
    (folder / "features.sqlite").rmdir()
    (folder / "features.sqlite").write_bytes(b"not a database, but as long as the header of one" * 4)
    (folder / ".features.lock").mkdir()  # the damaged file cannot be deleted
    assert main(["cache", "clear"]) == 2
    assert "cannot be read" in capsys.readouterr().err
