"""The examples in docstrings run as printed."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from dca.datasets import catalog, check, classes, corrections, dataset, draws, folder, load, sample, shifts


@pytest.mark.parametrize("module", [catalog, check, classes, corrections, dataset, draws, folder, load, sample, shifts])
def test_examples_in_docstrings_are_true(module: ModuleType) -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0
