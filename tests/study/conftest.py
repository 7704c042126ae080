"""A small study on the sample images with the tiny backbone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dca.study.specification import Specification, parse_specification

# Figures that depend on the machine and the moment.
TIMES = ("seconds", "evaluation_seconds")


@pytest.fixture
def study(photos: Path, tiny_folder: Path) -> Specification:
    """Seven cells in four fits; three of them share one."""
    common = {"data": str(photos), "backbone": str(tiny_folder), "shots": 2}
    grids = [
        {"method": ["gda", "zero_shot"]},
        {"method": "coop", "options": {"epochs": 1}},
        {"method": "dca", "options": {"epochs": 1}},
        {"method": "dca", "options": {"epochs": 1}, "head": {"gamma1": [500, 600], "gamma2": 100}},
    ]
    return parse_specification(
        {"common": common, "grid": [*grids, {**grids[3], "head": {"test_metric": "cosine"}}]}, "small"
    )


@pytest.fixture
def figures() -> Callable[[Path], dict[str, Any]]:
    """The result of each finished cell under a folder, without times."""

    def read(runs: Path) -> dict[str, Any]:
        found = {path.parent.name: json.loads(path.read_text()) for path in runs.glob("*/result.json")}
        return {id: {k: v for k, v in result.items() if k not in TIMES} for id, result in found.items()}

    return read
