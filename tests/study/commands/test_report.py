from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from helpers.made_runs import write_run


def test_a_folder_of_runs_gets_a_report(dca: Callable[..., object], tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for seed in (1, 2):
        write_run(runs, 0.5 + seed / 100, method="gda", seed=seed)
    done = dca("study", "report", runs)
    assert done.code == 0, done.err
    assert f"wrote {runs / 'report' / 'index.html'} (" in done.out
    spec, selection = tmp_path / "study.toml", tmp_path / "frozen.toml"
    spec.write_text('[common]\ndata = "eurosat"\n[[grid]]\nname = "Gauss"\nmethod = "gda"\n')
    selection.write_text("options")
    other = tmp_path / "other" / "place"
    done = dca("study", "report", runs, "-o", other, "--spec", spec, "--selection", selection)
    assert done.code == 0, done.err
    text = (other / "report.md").read_text(encoding="utf-8")
    assert "| Gauss | 51.50 ± 0.71 |" in text
    assert f"frozen.toml, sha256 {hashlib.sha256(b'options').hexdigest()}" in text


def test_the_selection_beside_the_runs_is_shown(dca: Callable[..., object], tmp_path: Path) -> None:
    write_run(tmp_path, 0.5, method="gda")
    (tmp_path / "selection.json").write_text("{}")
    assert dca("study", "report", tmp_path, "-o", tmp_path / "report").code == 0
    digest = hashlib.sha256(b"{}").hexdigest()
    assert digest in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")


def test_a_row_with_another_default_than_the_selection_chose_says_so(
    dca: Callable[..., object], tmp_path: Path
) -> None:
    write_run(tmp_path, 0.5, method="closed_form")
    write_run(tmp_path, 0.6, method="gda")
    (tmp_path / "selection.json").write_text("{}")
    assert dca("study", "report", tmp_path, "-o", tmp_path / "report").code == 0
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert text.count("not as selected: ") == 1
    assert "not as selected: the row closed\\_form has the default of text\\_shots: 4 was chosen" in text


def test_mistakes_of_the_user_are_named(dca: Callable[..., object], tmp_path: Path, fitted: Path) -> None:
    write_run(tmp_path / "runs", 0.5, method="gda")
    done = dca("report", tmp_path / "runs")
    assert done.code == 2
    assert "runs holds no model" in done.err
    assert "dca study report RUNS" in done.err
    done = dca("study", "report", fitted)
    assert done.code == 2
    assert "no finished runs to report" in done.err
    assert not (fitted / "index.sqlite").exists(), "reading leaves nothing in the folder of a model"
    done = dca("study", "report", tmp_path / "runs", "--spec", "paper/nothing")
    assert done.code == 2
    assert "paper/nothing" in done.err
    done = dca("study", "report", tmp_path / "runs", "--selection", tmp_path / "none.toml")
    assert done.code == 2
    assert "none.toml: cannot be read" in done.err
    write_run(tmp_path / "validation", 0.5, method="gda", measured_on="validation")
    done = dca("study", "report", tmp_path / "validation")
    assert done.code == 2
    assert "no finished runs to report (1 measured on validation images only)" in done.err
