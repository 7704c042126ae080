from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.cells import cell_len

from dca.cli.check_labels import format_check, format_doubtful
from dca.model.findings import DoubtfulLabel, LabelCheck, LabelConflict
from dca.model.records import Estimate


def row(number: int, image: str = "", given: str = "cat") -> DoubtfulLabel:
    return DoubtfulLabel(number, image or f"photos/cat/{number}.jpg", given, "dog", 0.95, 0.01 * number)


def check(doubtful: int, not_checked: int = 0, conflicts: int = 0) -> LabelCheck:
    pairs = tuple(LabelConflict((f"a{k}", f"b{k}"), ("cat", "dog")) for k in range(conflicts))
    alone = tuple(f"photos/emu/{k}.jpg" for k in range(not_checked))
    estimate = Estimate("leave-one-out", 0.9, 0.8, 0.95, 50)
    return LabelCheck(50 + not_checked, tuple(row(k) for k in range(doubtful)), pairs, alone, estimate)


def test_the_summary_counts_and_says_that_these_are_candidates():
    lines = format_check(check(3, not_checked=1, conflicts=1), 10.0, 2)
    assert lines[0] == "labels to check: 3 of 50 training images (another class at least 10 times as probable)"
    assert "estimated accuracy 90.0 %" in lines[1]
    assert lines[3].split() == ["photos/cat/0.jpg", "cat", "dog", "0.950", "0.000"]
    assert "1 more: --most 3 shows them" in lines
    assert "  a0 ~ b0 (cat ~ dog)" in lines
    assert "  photos/emu/0.jpg" in lines
    assert "candidates to look at, not facts" in lines[-1]


def test_nothing_found_is_said_in_two_lines():
    lines = format_check(check(0), 10.0, 40)
    assert lines[0].startswith("labels to check: 0 of 50 training images")
    assert len(lines) == 2


def test_long_lists_of_other_images_are_cut():
    lines = format_check(check(0, not_checked=9), 10.0, 40)
    assert lines[-1] == "  and 4 more; --json has all of them"


def test_the_table_stays_aligned_for_wide_names():
    lines = format_doubtful([row(1, given="大熊猫"), row(2)])
    starts = {cell_len(line[: line.index("0.950")]) for line in lines[1:]}
    assert len(starts) == 1
    assert format_doubtful([]) == []


def test_the_command_prints_paths_that_can_be_opened(dca: Any, photos: Path, tiny_folder: Path):
    said = dca("check-labels", photos, "--backbone", tiny_folder, "--odds", 1)
    assert said.code == 0, said.err
    assert " of 40 training images (another class at least 1 times" in said.out
    found = [line.strip().split("  ")[0] for line in said.out.splitlines() if ".png" in line]
    assert found
    assert all(Path(path).is_file() for path in found)
    assert not list(photos.parent.glob("*.dca"))


def test_json_has_all_unless_told_otherwise(dca: Any, photos: Path, tiny_folder: Path):
    line = ("check-labels", photos, "--backbone", tiny_folder, "--odds", 1, "--json")
    whole = json.loads(dca(*line).out)
    expected = {"data", "odds", "found", "images", "checked", "doubtful", "conflicts", "not_checked", "estimate"}
    assert set(whole) == expected
    assert len(whole["doubtful"]) == whole["found"]
    assert set(whole["doubtful"][0]) == {"image", "label", "suggested", "probability", "own"}
    two = json.loads(dca(*line, "--most", 2).out)
    assert two["doubtful"] == whole["doubtful"][:2]
    assert two["found"] == whole["found"]


def test_the_picture_is_drawn(dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path):
    path = tmp_path / "new" / "sheet.png"
    line = ("check-labels", photos, "--backbone", tiny_folder, "--odds", 1, "--plot", path)
    said = dca(*line)
    assert said.out.splitlines()[-1] == f"wrote {path}"
    with Image.open(path) as image:
        assert np.asarray(image.convert("L")).std() > 5
    assert json.loads(dca(*line, "--json").out)["plot"] == str(path)


def test_no_picture_is_written_where_nothing_is_found(dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path):
    path = tmp_path / "sheet.png"
    said = dca("check-labels", photos, "--backbone", tiny_folder, "--odds", 1e12, "--plot", path)
    assert said.out.splitlines()[-1] == f"nothing to draw: {path} is not written"
    assert not path.exists()


def test_a_picture_that_cannot_be_drawn_is_refused_before_any_work(
    dca: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("dca.model.findings.check_labels", lambda *_, **__: pytest.fail("too late"))
    said = dca("check-labels", photos, "--plot", tmp_path / "sheet.gif")
    assert said.code == 2
    assert "sheet.png" in said.err
