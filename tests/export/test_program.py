"""The ONNX program equals the model: every method, batches of any size, on the sample."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from conftest import make_clip, short_recipe
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset
from dca.export import predict, program
from dca.export.folder import export_onnx
from dca.methods.registry import all_methods
from dca.model.classifier import Classifier
from export.conftest import Finished, Photos

BATCHES = (1, 7, 64)


def in_batches(folder: Path, images: Sequence[Any], size: int) -> predict.Predictions:
    """Predictions of an export, `size` images at a time."""
    model = predict.Model(folder, threads=1)
    model.batch = size
    return model.predict_details(images)


def require_equal(model: Classifier, folder: Path, images: Sequence[Any], tolerance: float = 1e-4) -> None:
    """Probabilities, p-values and ranks of 100 images are those of torch, for batches of any size."""
    assert len(images) == 100
    features = model._encode(images, None)
    probabilities, certainty = model.predict_proba(images), model.certainty()
    p_values, ranks = (
        one(features, torch.from_numpy(probabilities)) for one in (certainty.p_values, certainty.class_ranks)
    )
    for size in BATCHES:
        found = in_batches(folder, images, size)
        np.testing.assert_allclose(found.probabilities, probabilities, atol=tolerance, rtol=0)
        assert (p_values is None, ranks is None) == (found.p_values is None, found.ranks is None)
        if p_values is not None:
            np.testing.assert_allclose(found.p_values, p_values, atol=5 * tolerance, rtol=0)
        if ranks is not None:
            # A rank may change by one where a held-out image is as strange as the new one up to rounding.
            assert np.abs(found.ranks - ranks.ranks.numpy()).max() <= 1
            assert (found.ranks != ranks.ranks.numpy()).mean() < 0.01


def images_of(data: Dataset) -> list[Any]:
    return [item.image for item in data.test]


def convert_into(model: Classifier, folder: Path) -> Path:
    description = program.describe_model(model, "test")
    program.convert(model, folder / "model.onnx", description)
    (folder / "classes.json").write_text(json.dumps(description.to_dict()))
    return folder


def converted(name: str, data: Dataset, folder: Path) -> tuple[Classifier, Path]:
    model = Classifier(name, seed=3, backbone=make_clip(), device="cpu", **short_recipe(name)).fit(data)
    return model, convert_into(model, folder)


def test_the_default_method_is_equal_in_batches(exported: Finished, hundred: Dataset) -> None:
    require_equal(exported.model, exported.folder, images_of(hundred), tolerance=1e-5)


def test_dca_with_a_temperature_is_equal_in_batches(hundred: Dataset, tmp_path: Path) -> None:
    model = Classifier("dca", seed=3, backbone=make_clip(), device="cpu", **short_recipe("dca")).fit(hundred)
    model.method_.temperature = 1.7
    require_equal(model, convert_into(model, tmp_path), images_of(hundred), tolerance=1e-5)
    assert json.loads((tmp_path / "classes.json").read_text())["temperature"] == 1.7


def test_held_out_predictions_go_into_the_program(hundred: Dataset, tmp_path: Path) -> None:
    """Methods without p-values of their own use those of an estimate."""
    model = Classifier("gda", seed=3, backbone=make_clip(), device="cpu", estimate=True, views=0).fit(hundred)
    require_equal(model, convert_into(model, tmp_path), images_of(hundred), tolerance=1e-5)
    assert in_batches(tmp_path, [hundred.test[0].image], 1).ranks is not None


@pytest.mark.slow
def test_a_pool_is_one_file_with_all_towers(pool: Photos) -> None:
    files = {path.name for path in pool.folder.iterdir()}
    assert files == {"model.onnx", "classes.json", "predict.py"}
    about = json.loads((pool.folder / "classes.json").read_text())
    assert [given["shape"] for given in about["inputs"]] == [["batch", 64, 64, 3], ["batch", 224, 224, 3]]


@pytest.mark.slow
def test_the_default_with_its_pool_is_equal_on_photos(pool: Photos) -> None:
    require_equal(pool.model, pool.folder, pool.others, tolerance=1e-5)


@pytest.mark.slow
def test_8_bits_halve_a_pool(pool: Photos, tmp_path: Path) -> None:
    result = export_onnx(pool.model, tmp_path / "small", int8=True)
    assert result.sizes["model.onnx"] < 0.5 * (pool.folder / "model.onnx").stat().st_size
    found = predict.Model(tmp_path / "small").predict(pool.others)
    assert (found.argmax(axis=1) == pool.model.predict_proba(pool.others).argmax(axis=1)).mean() > 0.9  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(all_methods()))
def test_every_method_is_equal_in_batches(name: str, hundred: Dataset, tmp_path: Path) -> None:
    require_equal(*converted(name, hundred, tmp_path), images_of(hundred))


def test_a_wrong_program_is_found(exported: Finished, hundred: Dataset) -> None:
    """The comparison can fail: with other pixels the probabilities are not equal."""
    model, images = predict.Model(exported.folder), [item.image for item in hundred.test]
    crops = model.crop(images)  # type: ignore[arg-type]
    found = model.predict_crops([crop[:, ::-1] for crop in crops])
    assert np.abs(found.probabilities - exported.model.predict_proba(images)).max() > 1e-3  # type: ignore[arg-type]


def test_the_file_says_what_it_takes(exported: Finished) -> None:
    graph = onnx.load(exported.folder / "model.onnx")
    about = {prop.key: prop.value for prop in graph.metadata_props}
    beside = json.loads((exported.folder / "classes.json").read_text(encoding="utf-8"))
    assert json.loads(about["labels"]) == beside["labels"] == exported.model.classes_.tolist()
    assert json.loads(about["inputs"]) == beside["inputs"]
    (described,) = beside["inputs"]
    assert "cut the central 32 x 32 pixels" in described["preprocess"]["steps"]
    (given,), (answer, p_values, ranks) = graph.graph.input, graph.graph.output
    assert [one["name"] for one in beside["outputs"]] == [answer.name, p_values.name, ranks.name]
    assert p_values.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE
    assert ranks.type.tensor_type.elem_type == onnx.TensorProto.INT32
    assert beside["smallest_p_value"] == exported.model.smallest_p_value
    assert beside["set_images"] == 20
    shape = [dim.dim_param or dim.dim_value for dim in given.type.tensor_type.shape.dim]
    assert [given.name, *shape[1:]] == ["images", *described["shape"][1:]] == ["images", 32, 32, 3]
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
