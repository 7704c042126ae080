from __future__ import annotations

import io
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dca.study.commands import sweep as command
from dca.study.specification import load_specification
from dca.study.sweep import SweepCounts
from dca.study.worker import CellResult, SweepEvent
from helpers.processes import DCA, PATIENCE, start_process, wait_until


@pytest.fixture
def spec_file(tmp_path: Path, photos: Path, tiny_folder: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(
        f'title = "Small"\n[common]\ndata = "{photos}"\nbackbone = "{tiny_folder}"\nshots = [1, 9]\n'
        '[[grid]]\nname = "Gauss"\nmethod = "gda"\n'
    )
    return path


def test_a_sweep_ends_with_what_is_done_and_what_failed(dca: Any, spec_file: Path, tmp_path: Path):
    runs = tmp_path / "runs"
    said = dca("study", "sweep", spec_file, "--runs", runs, "--workers", 1, "--device", "cpu", "--retries", 0)
    assert said.code == 2
    assert "small.toml: 2 cells, 0 done before, 1 now" in said.out
    assert "gda photos 9 shots seed 1: 10 of 10 classes have fewer than 9 training images" in said.out
    assert "1/2" in said.err
    again = dca("study", "sweep", spec_file, "--runs", runs, "--device", "cpu", "--dry-run", "--json")
    assert again.code == 0
    value = json.loads(again.out)
    assert [cell["finished"] for cell in value["cells"]] == [True, False]
    assert value["cells"][0]["id"] == load_specification(spec_file).cells[0].id
    assert (value["fits"], value["missing"]) == (1, [])
    assert value["expected_seconds"] > 0


def test_a_finished_sweep_says_so_in_json(dca: Any, spec_file: Path, tmp_path: Path):
    spec_file.write_text(spec_file.read_text().replace("[1, 9]", "[1]"))
    arguments = ("study", "sweep", spec_file, "--runs", tmp_path / "runs", "--device", "cpu", "--json", "-q")
    said = dca(*arguments)
    assert said.code == 0
    value = json.loads(said.out)
    assert (value["cells"], value["finished_before"], value["finished_now"], value["failed"]) == (1, 0, 1, [])
    assert json.loads(dca(*arguments).out)["finished_before"] == 1


def test_a_dry_run_lists_cells_time_and_what_is_missing(dca: Any, spec_file: Path, tmp_path: Path):
    said = dca("study", "sweep", spec_file, "--runs", tmp_path / "runs", "--backbone", "vit-l-14", "--dry-run")
    assert said.code == 0
    assert "small.toml: Small\n2 cells, 0 done before, 2 to do with 2 fits\n" in said.out
    assert "gda photos 1 shot seed 1" in said.out
    assert "expected time: unknown" in said.out
    assert "missing: backbone vit-l-14: " in said.out
    assert "--backbone PATH" in said.out
    assert not (tmp_path / "runs").exists()
    spec_file.write_text(spec_file.read_text().replace("[1, 9]", str(list(range(1, 60)))))
    assert "Gauss: 59 cells" in dca("study", "sweep", spec_file, "--dry-run", "--runs", tmp_path / "runs").out


def test_errors_of_a_specification_need_no_traceback(dca: Any, tmp_path: Path):
    said = dca("study", "sweep", "paper/none", "--dry-run")
    assert said.code == 2
    assert "error: unknown specification 'paper/none'" in said.err
    path = tmp_path / "bad.toml"
    path.write_text('[common]\ndata = "sample"\nmethod = ["cop", "gad"]\n')
    said = dca("study", "sweep", path, "--dry-run")
    assert said.code == 2
    assert "bad.toml: 2 problems" in said.err


def test_ctrl_c_ends_the_workers_and_says_how_to_go_on(spec_file: Path, tmp_path: Path):
    endless = spec_file.read_text().replace('"gda"', '"dca"\noptions = {epochs = 100000}').replace("[1, 9]", "[1, 2]")
    spec_file.write_text(endless)
    arguments = [
        "study",
        "sweep",
        str(spec_file),
        "--runs",
        str(tmp_path / "runs"),
        "--workers",
        "1",
        "--device",
        "cpu",
    ]
    with start_process([*DCA, *arguments], stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: list(tmp_path.glob("runs/*.partial")), process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "interrupted; the same command does the cells that are left" in err
    assert "Traceback" not in err


def test_the_live_table_shows_counts_and_running_cells(spec_file: Path):
    from rich.console import Console

    cells = load_specification(spec_file).cells
    counts = SweepCounts(total=2, done=0)
    counts.count(SweepEvent("started", cells[0]))
    counts.count(SweepEvent("failed", cells[1], CellResult(cells[1].id, 1.0, "no")))
    console = Console(file=io.StringIO(), width=100)
    console.print(command.build_table(counts))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("done", "running", "failed", "time left", "0/2", "gda photos 1 shot seed 1"):
        assert part in text
