"""A model measured on a shifted version of its dataset: classes by WordNet id, among the target's own."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.datasets.catalog import class_list_of, get
from dca.datasets.classes import distinct_labels, wordnet_ids
from dca.datasets.dataset import Dataset, LabelledImage
from dca.datasets.task import make_target
from dca.model.classifier import Classifier, _restrict_probabilities
from dca.model.inputs import match_classes
from dca.runs.evaluate import retarget_method
from dca.training.evaluate import predict_probabilities

SHORT = {"epochs": 1, "warmup_epochs": 0, "batch_size": 8}
# Two classes of ImageNet are called "sunglasses" and two "missile".
IDS = ("n01440764", "n04355933", "n03773504", "n04008634", "n04356056")
NAMES = ("tench", "sunglasses", "missile", "missile", "sunglasses")
SHIFTED = (4, 3, 0)


@pytest.fixture(scope="module")
def tiny() -> CLIP:
    return make_clip()


@pytest.fixture(scope="module")
def source(sample: Dataset) -> Dataset:
    """Images of the sample as five classes of ImageNet."""
    train = tuple(item for item in sample.train if item.label < len(IDS))
    labels = distinct_labels(NAMES, IDS)
    return Dataset("imagenet", labels, NAMES, train, keys=IDS, public="imagenet")


@pytest.fixture(scope="module")
def shifted(sample: Dataset) -> Dataset:
    """Three of these classes in another order, as ImageNet-R has them: their names are distinct here."""
    test = tuple(LabelledImage(i.image, SHIFTED.index(i.label)) for i in sample.test if i.label in SHIFTED)
    names, ids = ([row[c] for c in SHIFTED] for row in (NAMES, IDS))
    return Dataset("imagenet_r", tuple(names), tuple(names), (), test=test, keys=tuple(ids), public="imagenet_r")


def fitted(name: str, source: Dataset, clip: CLIP) -> Classifier:
    more: dict[str, Any] = SHORT if name in ("dca", "coop") else {}
    return Classifier(name, backbone=clip, device="cpu", **more).fit(source)


@pytest.mark.parametrize("name", ["dca", "coop", "zero_shot"])
def test_a_shifted_dataset_is_measured_as_in_the_protocol(name: str, source: Dataset, shifted: Dataset, tiny: CLIP):
    model = fitted(name, source, tiny)
    report = model.evaluate(shifted)
    target = make_target(source, shifted)
    assert target.from_source == SHIFTED
    images = [item.image for item in shifted.test]
    (expected,) = predict_probabilities([retarget_method(model.method_, target)], images, model._session)
    np.testing.assert_allclose(report.probabilities, expected, atol=1e-6)
    assert report.truth.tolist() == [item.label for item in shifted.test]
    assert report.labels == ("sunglasses (n04356056)", "missile (n04008634)", "tench")


@pytest.mark.parametrize("name", ["linear_probe", "closed_form", "gda"])
def test_methods_without_other_classes_narrow_their_probabilities(
    name: str, source: Dataset, shifted: Dataset, tiny: CLIP
):
    model = fitted(name, source, tiny)
    wide, narrow = model.evaluate(shifted, classes="all"), model.evaluate(shifted)
    assert wide.probabilities.shape[1] == 5
    assert wide.truth.tolist() == [SHIFTED[item.label] for item in shifted.test]
    own = wide.probabilities[:, list(SHIFTED)]
    np.testing.assert_allclose(narrow.probabilities, own / own.sum(axis=1, keepdims=True))
    assert narrow.accuracy >= wide.accuracy


def test_ordinary_images_of_some_classes_compete_with_all(sample: Dataset, tiny: CLIP):
    model = Classifier("zero_shot", backbone=tiny, device="cpu").fit(sample)
    some = tuple(item for item in sample.test if item.label in (2, 3))
    images, labels = [item.image for item in some], [sample.labels[item.label] for item in some]
    assert len(model.evaluate(images, labels).labels) == 10
    narrow = model.evaluate(images, labels, classes="target")
    assert narrow.labels == tuple(sample.labels[2:4])
    two = dataclasses.replace(model.method_.problem, names=sample.names[2:4])
    (expected,) = predict_probabilities([model.method_.retarget(two, [2, 3])], images, model._session)
    np.testing.assert_allclose(narrow.probabilities, expected, atol=1e-6)
    with pytest.raises(UserError, match="one class"):
        model.evaluate(images[:1], labels[:1], classes="target")
    with pytest.raises(UserError, match="unknown choice of classes"):
        model.evaluate(images, labels, classes="some")  # type: ignore[arg-type]


def test_a_folder_of_wordnet_ids_is_matched_and_competes_with_all(source: Dataset, shifted: Dataset, tiny: CLIP):
    ids = tuple(IDS[c] for c in SHIFTED)
    folder = dataclasses.replace(shifted, labels=ids, names=ids, keys=(), public="")
    model = fitted("zero_shot", source, tiny)
    report = model.evaluate(folder)
    assert len(report.labels) == 5
    assert report.truth.tolist() == [SHIFTED[item.label] for item in shifted.test]


@pytest.mark.parametrize("name", ["imagenet_a", "imagenet_r"])
def test_all_200_classes_are_the_right_ones_of_1000(name: str, source: Dataset):
    known, wanted = get("imagenet").class_list(), get(name).class_list()
    labels = distinct_labels([n for _, n in known], [key for key, _ in known])
    keys, names = (tuple(column) for column in zip(*wanted, strict=True))
    items = tuple(LabelledImage(source.train[0].image, y) for y in range(200))
    target = Dataset(name, names, names, (), test=items, keys=keys, public=name)
    matched = match_classes(target, labels, [n for _, n in known], "imagenet")
    assert [known[c][0] for c in matched.classes] == list(keys)
    assert [item.label for item in matched.items] == list(matched.classes)
    assert matched.by_id


def test_ids_are_known_of_all_classes_or_not_used():
    assert wordnet_ids(["tench", "my own class"], classes=class_list_of("imagenet")) == ()
    assert wordnet_ids(["River", "Forest"], ("River", "Forest"), class_list_of("eurosat")) == ()
    assert wordnet_ids(["tench"], classes=class_list_of("no such dataset")) == ()


def test_columns_of_impossible_classes_are_equal():
    probs = np.array([[1.0, 0.0, 0.0], [0.5, 0.25, 0.25]])
    assert _restrict_probabilities(probs, [2, 1]).tolist() == [[0.5, 0.5], [0.5, 0.5]]
