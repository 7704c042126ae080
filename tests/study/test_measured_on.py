"""An experiment that is measured on validation images."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from dca.core.errors import UserError
from dca.study.experiment import Experiment
from dca.study.run import run_experiment


@pytest.fixture
def three_parts(photos: Path, tmp_path: Path) -> Path:
    """Photos with a validation part of three images per class."""
    data = tmp_path / "photos"
    shutil.copytree(photos, data)
    shutil.copytree(photos / "test", data / "val")
    return data


def test_the_model_is_that_of_the_test_part_and_no_test_image_is_opened(
    three_parts: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    spec = Experiment(data=str(three_parts), method="gda", shots=2, backbone=str(tiny_folder), measured_on="validation")
    usual = run_experiment(dataclasses.replace(spec, measured_on="test"), tmp_path / "test.dca", device="cpu").result
    for path in (three_parts / "test").rglob("*.png"):
        path.write_bytes(b"not an image")
    found = run_experiment(spec, tmp_path / "validation.dca", device="cpu")
    assert (found.result.measured_on, usual.measured_on) == ("validation", "test")
    assert (found.result.test_images, usual.test_images) == (10, 30)  # 1 of 3 is left per class
    assert found.result.selected_on == usual.selected_on == "strict: 2 validation images per class"
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("test.dca", "validation.dca"))
    assert one == other
    recorded = json.loads((found.folder / "spec.json").read_text(encoding="utf-8"))["spec"]
    assert recorded["measured_on"] == "validation"


def test_data_without_a_validation_part_is_refused(photos: Path, tiny_folder: Path, tmp_path: Path) -> None:
    spec = Experiment(data=str(photos), method="gda", shots=2, backbone=str(tiny_folder), measured_on="validation")
    with pytest.raises(UserError, match="photos has no validation part"):
        run_experiment(spec, tmp_path / "m.dca", device="cpu")
