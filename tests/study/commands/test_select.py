from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def spec_file(tmp_path: Path, photos: Path, tiny_folder: Path) -> Path:
    """Two settings of two methods, on photos with a validation part of three images per class."""
    data, path = tmp_path / "photos", tmp_path / "small.toml"
    shutil.copytree(photos, data)
    shutil.copytree(photos / "test", data / "val")
    path.write_text(
        f'[common]\ndata = "{data}"\nbackbone = "{tiny_folder}"\nshots = [1, 2]\nmeasured_on = "validation"\n'
        '[[grid]]\nmethod = "gda"\noptions = {views = [0, 1]}\n'
        '[[grid]]\nmethod = "zero_shot"\noptions = {ensemble = ["none", "seven"]}\n'
    )
    return path


def test_a_sweep_on_validation_images_ends_in_a_file(dca: Any, spec_file: Path, tmp_path: Path) -> None:
    runs, file = tmp_path / "runs", tmp_path / "selection.json"
    early = dca("study", "select", tmp_path, "--spec", spec_file, "-o", file)
    assert early.code == 2
    assert "8 cells of 8 of small.toml are not finished" in early.err
    assert "gda photos 1 shot seed 1 views=0" in early.err
    assert not file.exists()
    assert dca("study", "sweep", spec_file, "--runs", runs, "--workers", 1, "--device", "cpu", "-q").code == 0
    said = dca("study", "select", runs, "--spec", spec_file, "-o", file)
    assert said.code == 0
    assert [line.split()[0] for line in said.out.splitlines()] == ["gda", "zero_shot", "wrote"]
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert said.out.endswith(f"sha256 {digest}\n")
    value = json.loads(dca("study", "select", runs, "--spec", spec_file, "-o", tmp_path / "again.json", "--json").out)
    assert value.pop("sha256") == digest
    assert value == json.loads(file.read_text(encoding="utf-8"))
    assert (tmp_path / "again.json").read_bytes() == file.read_bytes()
    assert value["methods"]["gda"]["chosen"]["views"] in (0, 1)
    assert str(tmp_path) not in file.read_text(encoding="utf-8")
