"""The examples in the data room's docstrings are true."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import dca.data

MODULES = [module.name for module in pkgutil.iter_modules(dca.data.__path__) if not module.ispkg]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(import_module(f"dca.data.{name}")).failed == 0
