from __future__ import annotations

import sys
from types import ModuleType

import pytest

from dca.core.errors import UserError
from dca.model.shards import connect_ray, share_resources


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match="needs Ray") as raised:
        connect_ray()
    assert raised.value.hint == "pip install 'dca-prompt[ray]'"
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))  # as of an empty folder of this name
    with pytest.raises(UserError, match="needs Ray"):
        connect_ray()


def test_gpus_are_shared_in_equal_parts():
    assert share_resources({"CPU": 64, "GPU": 4}, "auto", None) == (16, 0.25)
    assert share_resources({"CPU": 64, "GPU": 4}, "auto", 2) == (2, 1)
    assert share_resources({"CPU": 64, "GPU": 4}, "auto", 6) == (6, 0.5)
    assert share_resources({"CPU": 64, "GPU": 4}, "cpu", None) == (64, 0)
    assert share_resources({}, "auto", None) == (1, 0)
