"""A sweep that is killed at random moments ends with the results of one that is not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from dca.study.specification import load_specification
from helpers.processes import DCA, PATIENCE, start_process, wait_until

KILLS = 5
SPEC = """
title = "At least 60 small cells"
[common]
data = "{data}"
backbone = "{backbone}"
seed = [1, 2, 3]
[[grid]]
method = ["gda", "closed_form", "tip_adapter", "zero_shot", "linear_probe"]
shots = [1, 2, 3]
[[grid]]
method = "dca"
shots = [2, 3]
options = {{epochs = 2, warmup_epochs = 1}}
head = {{gamma1 = [500, 600], test_metric = ["mahalanobis", "cosine"]}}
"""


def start(spec: Path, runs: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A sweep in a process of its own, with stored features of its own."""
    arguments = [
        "study",
        "sweep",
        str(spec),
        "--runs",
        str(runs),
        "--workers",
        "2",
        "--device",
        "cpu",
        "--retries",
        "3",
        "-q",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DCA_CACHE": str(runs.with_suffix(".cache"))}
    return start_process([*DCA, *arguments], env=environment)


def finished(runs: Path) -> set[str]:
    return {path.parent.name for path in runs.glob("*/result.json") if not path.parent.name.endswith(".partial")}


def require_equal(found: Any, wanted: Any) -> None:
    """Equal figures. Features are encoded in batches that depend on what is stored, so last bits may differ."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            if "accuracy" in name:
                assert found[name] == value
            require_equal(found[name], value)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            require_equal(one, other)
    else:
        assert found == (pytest.approx(wanted, rel=1e-4, abs=1e-6) if isinstance(wanted, float) else wanted)


@pytest.mark.slow
def test_a_sweep_killed_five_times_does_every_cell_once(
    tmp_path: Path, photos: Path, tiny_folder: Path, figures: Any
) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(SPEC.format(data=photos, backbone=tiny_folder))
    wanted = {cell.id for cell in load_specification(spec).cells}
    assert len(wanted) >= 60
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with start(spec, whole) as process:
        assert process.wait(timeout=2 * PATIENCE) == 0
    rng, marks = random.Random(0), dict[str, int]()
    for turn in range(KILLS):
        enough = len(finished(killed)) + rng.randint(1, 5)
        with start(spec, killed) as process:
            wait_until(lambda enough=enough: len(finished(killed)) >= enough, process)
            time.sleep(0.3 * rng.random())
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL, f"ended before kill {turn + 1}"
            time.sleep(1)  # its workers end by themselves
        for id in finished(killed):
            moment = (killed / id / "result.json").stat().st_mtime_ns
            assert marks.setdefault(id, moment) == moment, f"{id} was done twice"
    with start(spec, killed) as process:
        assert process.wait(timeout=2 * PATIENCE) == 0
    assert all((killed / id / "result.json").stat().st_mtime_ns == moment for id, moment in marks.items())
    assert wanted <= finished(killed) == finished(whole)
    for id, result in figures(whole).items():
        require_equal(figures(killed)[id], result)
    assert not list(killed.glob("*.partial")) + list(killed.glob("failed/*"))
