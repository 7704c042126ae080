"""The examples in the docstrings of dca.data are true."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import dca.data

MODULES = ["dca.data"] + [module.name for module in pkgutil.walk_packages(dca.data.__path__, "dca.data.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(import_module(name)).failed == 0
