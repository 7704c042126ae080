"""The folder of an export: its files, what is measured, and what it may replace."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import make_clip
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset
from dca.export import folder as exporting
from dca.export.folder import export_onnx, load_comparison_images
from dca.export.program import describe_model
from dca.model.classifier import Classifier
from export.conftest import Finished

NAMES = {"model.onnx", "classes.json", "predict.py"}


def test_it_holds_three_files_that_were_compared_with_torch(exported: Finished) -> None:
    assert {path.name for path in exported.folder.iterdir()} == NAMES == set(exported.done.sizes)
    assert exported.done.parity.images == 100
    assert 0 < exported.done.parity.difference < 1e-5
    assert exported.done.parity.p_values is not None
    assert 0 < exported.done.parity.p_values < 1e-5
    assert exported.done.parity.sets == 0
    assert exported.done.cost is None
    assert exported.done.sizes["model.onnx"] == (exported.folder / "model.onnx").stat().st_size


def test_numbers_stay_numbers(exported: Finished, hundred: Dataset) -> None:
    model = Classifier("zero_shot", backbone=make_clip(), device="cpu")
    model.fit([item.image for item in hundred.train[:4]], [7, 7, 8, 8])  # type: ignore[arg-type]
    description = describe_model(model, "numbers")
    assert json.loads(json.dumps(description.to_dict()))["labels"] == [7, 8]


@pytest.mark.slow
def test_what_8_bits_cost_is_measured(exported: Finished, hundred: Dataset, tmp_path: Path) -> None:
    done = export_onnx(exported.model, tmp_path / "small", int8=True, data=hundred)
    cost = done.cost
    assert cost is not None
    assert cost.images == 100
    assert cost.accuracy == exported.model.score(hundred)
    assert cost.accuracy_int8 is not None
    assert abs(cost.accuracy - cost.accuracy_int8) <= (100 - cost.same) / 100 + 1e-9
    assert 1e-5 < cost.difference < 0.5, "8 bits are not 32"
    assert {path.name for path in done.folder.iterdir()} == NAMES
    assert done.sizes["model.onnx"] < exported.done.sizes["model.onnx"]


def test_without_data_the_sample_is_used_and_labelled_where_it_fits(exported: Finished) -> None:
    checked = load_comparison_images(exported.model, None)
    assert len(checked.images) == 100
    assert checked.truth is not None
    assert np.bincount(checked.truth).tolist() == [10] * 10
    others = dataclasses.replace(exported.model.method_.problem, names=tuple(f"thing {n}" for n in range(10)))
    model = Classifier()
    model._adopt(type("Method", (), {"problem": others})(), exported.model._session, others.names)  # type: ignore[arg-type]
    assert load_comparison_images(model, None).truth is None


def test_an_export_is_replaced_only_if_asked(exported: Finished, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds an export"):
        exporting.require_free(exported.folder, overwrite=False)
    exporting.require_free(exported.folder, overwrite=True)
    exporting.require_free(tmp_path / "new", overwrite=False)
    exporting.require_free(tmp_path, overwrite=False)  # empty


@pytest.mark.parametrize("content", [None, "{}", '{"library": "another"}'])
def test_other_folders_are_never_replaced(content: str | None, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    if content is not None:
        (tmp_path / "classes.json").write_text(content)
    with pytest.raises(UserError, match="is not an export"):
        exporting.require_free(tmp_path, overwrite=True)


def test_an_export_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "classes.json").write_text('{"library": "dca-prompt"}')
    assert exporting.holds_export(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    assert not exporting.holds_export(tmp_path)


def test_a_file_or_a_folder_above_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="is a file"):
        exporting.require_free(tmp_path / "file", overwrite=True)
    with pytest.raises(UserError, match="not a name for a new folder"):
        exporting.require_free(Path(".."), overwrite=True)


def test_nothing_is_left_of_an_export_that_fails(
    exported: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "convert", fail)
    with pytest.raises(UserError, match="No space left"):
        export_onnx(exported.model, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_another_precision_is_refused(exported: Finished, tmp_path: Path) -> None:
    clip = make_clip().with_dtype(torch.bfloat16)
    method = type("Method", (), {"encoder": clip})()
    model = Classifier()
    model.method_ = method  # type: ignore[assignment]
    with pytest.raises(UserError, match="cpu in bfloat16"):
        exporting.require_cpu(model)
    method.encoder = make_clip().with_dtype(torch.float32, features=torch.bfloat16)  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="cpu in float32, features bfloat16"):
        exporting.require_cpu(model)
    exporting.require_cpu(exported.model)
