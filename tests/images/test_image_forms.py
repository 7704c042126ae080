from __future__ import annotations

import doctest
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dca.core.errors import UserError
from dca.images import convert as pixels
from dca.model import classifier as parameters
from dca.model import prediction_files as image_folders
from dca.model import prediction_files as prediction_tables
from dca.model.classifier import Classifier
from dca.model.inputs import is_data_frame
from dca.runs import plots


@pytest.fixture(scope="module")
def model(photos: Path, tiny_folder: Path) -> Classifier:
    return Classifier("gda", backbone=str(tiny_folder), views=0, device="cpu").fit(photos)


@pytest.fixture(scope="module")
def image(photos: Path) -> Path:
    return photos / "test" / "fish" / "000.png"


class Columns:
    """The least that a data frame has."""

    def __init__(self, **columns: list[Any]) -> None:
        self._columns, self.columns = columns, list(columns)

    def __getitem__(self, name: str) -> list[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


def test_one_image_in_any_form_has_one_answer(model: Classifier, image: Path):
    levels = np.asarray(Image.open(image).convert("RGB"))
    expected = model.predict_proba(image)
    forms = [levels, levels / 255, torch.from_numpy(levels.copy()).permute(2, 0, 1), image.read_bytes()]
    forms += [bytearray(image.read_bytes()), memoryview(image.read_bytes()), io.BytesIO(image.read_bytes())]
    for form in forms:
        assert np.allclose(model.predict_proba(form), expected, atol=1e-6)
    assert model.predict(levels) == model.predict(image)
    assert isinstance(model.predict(levels), str)
    with image.open("rb") as file:
        assert model.predict(file) == model.predict(image)


def test_several_images_in_one_array_or_list(model: Classifier, photos: Path):
    paths = sorted((photos / "test").rglob("*.png"))[:4]
    levels = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in paths])
    expected = model.predict_proba(paths)
    tensor = torch.from_numpy(levels).permute(0, 3, 1, 2)
    for form in (levels, tensor, list(levels), [path.read_bytes() for path in paths], np.array(list(map(str, paths)))):
        assert np.allclose(model.predict_proba(form), expected, atol=1e-6)
    assert model.predict(levels).tolist() == model.predict(paths).tolist()


def test_data_frames_have_a_column_of_paths(model: Classifier, photos: Path, tiny_folder: Path):
    pandas = pytest.importorskip("pandas")
    paths = [str(path) for path in sorted((photos / "train").rglob("*.png"))]
    labels = [Path(path).parent.name for path in paths]
    expected = model.predict(paths).tolist()
    for frame in (pandas.DataFrame({"Path": paths, "label": labels}), Columns(path=paths, label=labels)):
        assert is_data_frame(frame)
        assert model.predict(frame).tolist() == expected
        assert model.score(frame) == model.score(paths, labels)
    assert model.predict(pandas.Series(paths)).tolist() == expected
    own = Classifier("gda", backbone=str(tiny_folder), views=0, device="cpu")
    frame = pandas.DataFrame({"file": paths, "species": labels})
    assert own.fit(frame, "species").predict(frame).tolist() == expected
    assert own.fit(frame, frame["species"]).predict(frame).tolist() == expected


def test_a_frame_without_such_a_column_names_those_it_has(model: Classifier):
    for call in (model.predict, model.score):
        with pytest.raises(UserError, match=r"no column with .*: its columns are a, b"):
            call(Columns(a=[1], b=[2]))


def test_a_column_of_labels_that_is_not_there_is_named(model: Classifier):
    with pytest.raises(UserError, match=r"unknown column 'speces'\. Did you mean 'species'\?"):
        model.score(Columns(path=["a.jpg"], species=["cat"]), "speces")


@pytest.mark.parametrize("url", ["https://example.com/a.jpg", "s3://bucket/a.jpg", "data:image/png;base64,AAAA"])
def test_addresses_are_refused_with_a_way_out(model: Classifier, dca: Any, fitted: Path, url: str):
    for form in (url, [url]):
        with pytest.raises(UserError, match="is a URL") as caught:
            model.predict(form)
        assert "urlretrieve" in caught.value.hint
    said = dca("predict", fitted, url)
    assert said.code == 2
    assert "curl -O URL" in said.err


def test_every_image_that_is_none_is_listed(model: Classifier, image: Path):
    with pytest.raises(UserError, match="3 of 4 images cannot be used") as caught:
        model.predict([image, b"hello", np.zeros((2, 2, 9)), 7])
    assert [line.partition(":")[0] for line in caught.value.details] == ["number 1", "number 2", "number 3"]
    with pytest.raises(UserError, match="open as text"), image.with_name("x.txt").open("w+") as file:
        model.predict(file)
    image.with_name("x.txt").unlink()


# Copies and pickles


def test_a_pickle_predicts_the_same_and_has_no_backbone(model: Classifier, photos: Path, tiny_folder: Path):
    data = pickle.dumps(model)
    backbone = (tiny_folder / "model.safetensors").stat().st_size
    assert len(data) < backbone / 2
    again = pickle.loads(data)
    assert again.get_params() == model.get_params()
    assert np.array_equal(again.predict_proba(photos / "test"), model.predict_proba(photos / "test"))
    assert again.training_images_ == model.training_images_
    assert again.score(photos) == model.score(photos)


def test_labels_of_any_type_come_back_from_a_pickle(photos: Path, tiny_folder: Path):
    paths = sorted((photos / "train" / "fish").glob("*.png")) + sorted((photos / "train" / "house").glob("*.png"))
    labels = [("fish", 1)] * 4 + [("house", 2)] * 4
    model = Classifier("gda", backbone=str(tiny_folder), views=0, device="cpu").fit(paths, labels)
    assert list(pickle.loads(pickle.dumps(model)).classes_) == [("fish", 1), ("house", 2)]


def test_copies_share_the_backbone_and_nothing_that_changes(model: Classifier):
    import copy

    deep, flat = copy.deepcopy(model), copy.copy(model)
    assert deep.method_.clip is flat.method_.clip is model.method_.clip
    deep.set_params(shots=3, views=1)
    deep.history_.append({"epoch": 1.0})
    assert (model.shots, model.method_options) == (None, {"views": 0})
    assert model.history_ != deep.history_


def test_an_unfitted_classifier_can_be_pickled():
    bare = pickle.loads(pickle.dumps(Classifier("coop", shots=4, epochs=2)))
    assert bare.get_params() == Classifier("coop", shots=4, epochs=2).get_params()
    assert not hasattr(bare, "method_")


# Parameters


def test_repr_is_short_and_names_what_was_given(clip: Any):
    assert repr(Classifier()) == "Classifier()"
    assert repr(Classifier("dca", shots=16, epochs=5)) == "Classifier('dca', shots=16, epochs=5)"
    assert repr(Classifier(backbone=clip, estimate=True)) == "Classifier(backbone='tiny', estimate=True)"


def test_set_params_knows_names_at_once():
    bare = Classifier("gda")
    with pytest.raises(UserError, match=r"unknown parameter 'shot'. Did you mean 'shots'\?"):
        bare.set_params(shot=4)
    with pytest.raises(UserError, match="unknown parameter 'epochz'"):
        bare.set_params(method="dca", epochz=4)
    assert bare.get_params() == Classifier("gda").get_params()
    assert bare.set_params(method="dca", epochs=3).method_options == {"epochs": 3}


# Examples


@pytest.mark.parametrize("module", [pixels, image_folders, parameters, plots, prediction_tables])
def test_examples_in_docstrings_are_true(module: ModuleType):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
