"""The ONNX program equals the model: every method, batches of any size, on the sample."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from conftest import make_clip, short_recipe
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset
from dca.export import predict, program
from dca.methods.registry import all_methods
from dca.model.classifier import Classifier
from export.conftest import Finished

BATCHES = (1, 7, 64)


def in_batches(file: Path, crops: np.ndarray, size: int) -> np.ndarray:
    """Probabilities of an ONNX file, `size` images at a time."""
    session = predict.open_session(file, threads=1)
    return np.concatenate([predict.predict_batch(session, crops[i : i + size]) for i in range(0, len(crops), size)])


def require_equal(model: Classifier, file: Path, data: Dataset, tolerance: float = 1e-4) -> None:
    images = [item.image for item in data.test]
    crops = np.stack([predict.crop_image(image, model.method_.clip.preprocess.to_dict()) for image in images])  # type: ignore[arg-type]
    expected = model.predict_proba(images)  # type: ignore[arg-type]
    assert len(images) == 100
    for size in BATCHES:
        np.testing.assert_allclose(in_batches(file, crops, size), expected, atol=tolerance, rtol=0)


def converted(name: str, data: Dataset, folder: Path) -> tuple[Classifier, Path]:
    model = Classifier(name, seed=3, backbone=make_clip(), device="cpu", **short_recipe(name)).fit(data)
    program.convert(model.method_, folder / "model.onnx", program.describe_model(model._to_record()))
    return model, folder / "model.onnx"


def test_the_default_method_is_equal_in_batches(exported: Finished, hundred: Dataset) -> None:
    require_equal(exported.model, exported.folder / "model.onnx", hundred, tolerance=1e-5)


def test_dca_with_a_temperature_is_equal_in_batches(hundred: Dataset, tmp_path: Path) -> None:
    model = Classifier("dca", seed=3, backbone=make_clip(), device="cpu", **short_recipe("dca")).fit(hundred)
    model.method_.temperature = 1.7
    program.convert(model.method_, tmp_path / "model.onnx", program.describe_model(model._to_record()))
    require_equal(model, tmp_path / "model.onnx", hundred, tolerance=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(all_methods()))
def test_every_method_is_equal_in_batches(name: str, hundred: Dataset, tmp_path: Path) -> None:
    require_equal(*converted(name, hundred, tmp_path), hundred)


def test_a_wrong_program_is_found(exported: Finished, hundred: Dataset) -> None:
    """The comparison can fail: with other preprocessing the probabilities are not equal."""
    model = exported.model
    crops = np.stack([predict.crop_image(i.image, model.method_.clip.preprocess.to_dict()) for i in hundred.test])  # type: ignore[arg-type]
    found = in_batches(exported.folder / "model.onnx", crops[:, ::-1], 64)
    assert np.abs(found - model.predict_proba([i.image for i in hundred.test])).max() > 1e-3  # type: ignore[arg-type]


def test_the_file_says_what_it_takes(exported: Finished) -> None:
    graph = onnx.load(exported.folder / "model.onnx")
    about = {prop.key: prop.value for prop in graph.metadata_props}
    beside = json.loads((exported.folder / "classes.json").read_text(encoding="utf-8"))
    assert json.loads(about["labels"]) == beside["labels"] == exported.model.classes_.tolist()
    assert json.loads(about["preprocess"]) == beside["preprocess"]
    assert "cut the central 32 x 32 pixels" in beside["preprocess"]["steps"]
    (given,), (answer,) = graph.graph.input, graph.graph.output
    shape = [dim.dim_param or dim.dim_value for dim in given.type.tensor_type.shape.dim]
    assert [given.name, *shape[1:]] == ["images", *beside["input"]["shape"][1:]] == ["images", 32, 32, 3]
    assert isinstance(shape[0], str), "the batch is dynamic"
    assert given.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert (answer.name, answer.type.tensor_type.elem_type) == ("probabilities", onnx.TensorProto.FLOAT)


def test_the_file_holds_the_image_side_and_no_path(exported: Finished) -> None:
    content = (exported.folder / "model.onnx").read_bytes()
    assert b".py" not in content, "neither file names nor lines of this machine"
    clip = exported.model.method_.clip
    assert len(content) < 4 * sum(p.numel() for p in clip.visual.parameters()) + 200_000
    texts = sum(p.numel() for p in clip.text.parameters())
    assert 4 * texts > 60_000, "it would show if they were in the file"


def test_the_way_of_resizing_is_described() -> None:
    assert "resize to 32 x 32 pixels" in program.describe_preprocessing({"size": 32, "resize": None, "resample": 3})
    assert "the short side to 40 pixels" in program.describe_preprocessing({"size": 32, "resize": 40, "resample": 3})


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match="onnxscript") as caught:
        program.require_onnx()
    assert "pip install 'dca-prompt[onnx]'" in str(caught.value)
