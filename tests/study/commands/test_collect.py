"""dca study collect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helpers.made_runs import write_run


def test_runs_are_collected_and_the_report_reads_the_file(dca: Any, tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path / "runs", 0.5, method="gda", seed=seed)
    said = dca("study", "collect", tmp_path / "runs", "-o", tmp_path / "results.jsonl")
    assert said.code == 0
    assert "2 finished and 0 failed cells; 2 new, 0 changed" in said.out
    again = dca(
        "study", "collect", tmp_path / "runs", tmp_path / "results.jsonl", "-o", tmp_path / "results.jsonl", "--json"
    )
    assert json.loads(again.out) == {"added": 0, "changed": 0, "finished": 2, "failed": 0}
    said = dca("study", "report", tmp_path / "results.jsonl", "-o", tmp_path / "report", "--text-only")
    assert said.code == 0
    assert "report.md" in said.out
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "| gda | 50.00" in text
    assert ".svg" not in text
    assert not (tmp_path / "report" / "index.html").exists()


def test_what_cannot_be_collected_is_said(dca: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    said = dca("study", "collect", tmp_path / "empty", "-o", tmp_path / "r.jsonl")
    assert said.code == 2
    assert "no finished or failed runs" in said.err
    said = dca("study", "collect", tmp_path / "nowhere", "-o", tmp_path / "r.jsonl")
    assert said.code == 2
    assert not (tmp_path / "r.jsonl").exists()
