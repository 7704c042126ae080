"""Classes that are added to, removed from and renamed in a finished model, in memory and on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset
from dca.model import checkpoint
from dca.model.card import model_card
from dca.model.classifier import Classifier
from dca.model.records import ClassAdded, ClassRenamed, HeldOutPrediction, ModelBefore, OptionsChanged

SHORT = {"epochs": 1, "warmup_epochs": 0, "batch_size": 8}
METHODS = ["dca", "coop"]


@pytest.fixture(scope="module")
def tiny() -> CLIP:
    return make_clip()


def nine(sample: Dataset, out: int) -> Dataset:
    """The sample without its class `out`."""
    kept = [c for c in range(10) if c != out]

    def items(all_items: Any) -> Any:
        return tuple(dataclasses.replace(i, label=kept.index(i.label)) for i in all_items if i.label != out)

    labels, names = (tuple(row[c] for c in kept) for row in (sample.labels, sample.names))
    return dataclasses.replace(sample, labels=labels, names=names, train=items(sample.train), test=items(sample.test))


def images_of(sample: Dataset, label: int, part: str = "train") -> list[Any]:
    return [item.image for item in getattr(sample, part) if item.label == label]


def fitted(name: str, data: Dataset, clip: CLIP | str, **more: Any) -> Classifier:
    return Classifier(name, seed=3, backbone=clip, device="cpu", **{**SHORT, **more}).fit(data)


@pytest.mark.parametrize("name", METHODS)
def test_an_added_class_is_predicted_for_its_images(name: str, sample: Dataset) -> None:
    cactus = sample.names.index("cactus")
    model = fitted(name, nine(sample, cactus), "mini", epochs=0)
    own = images_of(sample, cactus, "test")
    assert "cactus" not in model.predict(own)
    added = model.add_class("cactus", images_of(sample, cactus))
    assert (added.predict(own) == "cactus").mean() > 0.5


@pytest.mark.parametrize("name", METHODS)
def test_a_changed_model_is_saved_and_loaded_as_it_is(name: str, sample: Dataset, tiny: CLIP, tmp_path: Path) -> None:
    model = fitted(name, sample, tiny)
    changed = model.add_class("zebra", images_of(sample, 0)).remove_class(sample.labels[4])
    changed = changed.rename_class("zebra", "a cat").add_class("dog")
    changed.save_pretrained(tmp_path / "m.dca")
    loaded = Classifier.from_pretrained(tmp_path / "m.dca", backbone=tiny, device="cpu")
    images = images_of(sample, 2, "test")
    assert np.array_equal(changed.predict_proba(images), loaded.predict_proba(images))
    assert loaded.classes_.tolist() == [*sample.labels[:4], *sample.labels[5:], "a cat", "dog"]
    assert loaded.lineage_ == changed.lineage_
    assert [change.kind for change in loaded.lineage_] == ["added", "removed", "renamed", "added"]
    assert (loaded.training_images_, loaded.method_.problem) == (changed.training_images_, changed.method_.problem)
    assert model.classes_.tolist() == list(sample.labels), "the model itself stays as it is"
    assert model.lineage_ == ()


def test_the_draw_follows_the_classes(sample: Dataset, tiny: CLIP) -> None:
    model = fitted("coop", sample, tiny)
    first, *others = model.training_images_
    model.training_images_ = (dataclasses.replace(first, held_out=HeldOutPrediction(4, 0.9, 0.1)), *others)
    left = model.remove_class(sample.labels[4])
    assert left.training_images_[0].held_out is None, "figures of another model"
    assert [image.label for image in left.training_images_] == [c for c in range(9) for _ in range(4)]
    assert {image.sha256 for image in left.training_images_} == {
        image.sha256 for image in model.training_images_ if image.label != 4
    }
    again = left.add_class(sample.names[4], images_of(sample, 4), label=sample.labels[4])
    assert [image.label for image in again.training_images_][-4:] == [9] * 4
    assert {image.sha256 for image in again.training_images_} == {image.sha256 for image in model.training_images_}
    order = [*range(4), *range(5, 10), 4]
    images = [item.image for item in sample.test]
    np.testing.assert_allclose(again.predict_proba(images), model.predict_proba(images)[:, order], atol=1e-6)
    assert again.evaluate(sample).accuracy == model.evaluate(sample).accuracy
    assert again.evaluate([item.image for item in sample.train[:6]], [sample.labels[0]] * 6).seen_in_training == 6


def test_the_lineage_says_what_was_done_to_which_weights(sample: Dataset, tiny: CLIP, tmp_path: Path) -> None:
    model = fitted("coop", sample, tiny)
    model.results_ = {"dataset": "animals", "accuracy": 0.9, "zero_shot_accuracy": 0.5, "test_images": 30}
    model.save_pretrained(tmp_path / "m.dca")
    weights = hashlib.sha256((tmp_path / "m.dca" / "model.safetensors").read_bytes()).hexdigest()
    added = Classifier.from_pretrained(tmp_path / "m.dca", backbone=tiny).add_class("sea_lion", images_of(sample, 0))
    (done,) = added.lineage_
    assert isinstance(done, ClassAdded)
    assert (done.label, done.name) == ("sea_lion", "sea lion")
    assert [image.sha256 for image in done.images] == [image.sha256 for image in model.training_images_[:4]]
    assert done.before == ModelBefore(weights, model.results_, None)
    assert added.results_ == {"dataset": "animals"}, "its accuracy is not known"
    card = model_card(added._to_record())
    assert "accuracy has not been measured since" in card
    assert "- added 'sea_lion' with 4 images" in card
    assert "90.0 %" not in card


def test_another_label_keeps_probabilities_and_figures(sample: Dataset, tiny: CLIP) -> None:
    model = Classifier("gda", backbone=tiny, views=0).fit(sample)
    model.results_ = {"accuracy": 0.9}
    renamed = model.rename_class(sample.labels[1], 1671, label_only=True)
    assert renamed.classes_.tolist() == [sample.labels[0], 1671, *sample.labels[2:]]
    assert renamed.method_.problem.names == sample.names
    assert renamed.results_ == {"accuracy": 0.9}
    assert np.array_equal(renamed.predict_proba(sample.test[0].image), model.predict_proba(sample.test[0].image))
    (change,) = renamed.lineage_
    assert isinstance(change, ClassRenamed)
    assert (change.new_label, change.new_name) == (1671, sample.names[1])
    assert "measured since" not in model_card(renamed._to_record())
    with pytest.raises(UserError, match="cannot read another name"):
        model.rename_class(sample.labels[1], "zebra")


def test_the_area_under_the_curve_is_that_of_the_fit_or_not_known(sample: Dataset, tiny: CLIP) -> None:
    model = Classifier("zero_shot", backbone=tiny).fit(sample)
    first = sample.labels[0]
    assert len(model.held_out_auc_) == 10
    assert model.rename_class(first, "x", label_only=True).held_out_auc_ == model.held_out_auc_
    for changed in (model.add_class("zebra"), model.remove_class(first), model.rename_class(first, "zebra")):
        assert changed.held_out_auc_ == ()
        assert changed._to_record().held_out_auc == ()
    head = Classifier("dca", backbone=tiny, epochs=0, shots=2, estimate=True).fit(sample)
    assert len(head.held_out_auc_) == 10
    assert head.with_options(gamma1=300).held_out_auc_ == ()


def test_numbers_are_found_as_numbers_and_as_text(sample: Dataset, tiny: CLIP) -> None:
    images = [item.image for item in sample.train]
    model = Classifier("zero_shot", backbone=tiny).fit(images, [item.label for item in sample.train])
    for label in (3, "3"):
        assert model.remove_class(label).classes_.tolist() == [0, 1, 2, *range(4, 10)]
    assert model.add_class("zebra", label=10).predict(images[0]) in range(11)


def test_wrong_classes_are_refused_in_words(sample: Dataset, tiny: CLIP) -> None:
    model = Classifier("zero_shot", backbone=tiny).fit(sample)
    first, second = (str(label) for label in sample.labels[:2])
    cases: list[tuple[Any, str]] = [
        (lambda: model.add_class(first.upper()), f"has a class '{first}' already"),
        (lambda: model.add_class("zebra", label=first), f"has a class '{first}' already"),
        (lambda: model.add_class(first, label="zebra"), f"has a class '{first}' already"),
        (lambda: model.add_class(" "), "a name that a class cannot have"),
        (lambda: model.add_class("zebra", "nothing.jpg"), "no such file"),
        (lambda: model.remove_class(f"{first}s"), f"unknown class '{first}s'. Did you mean '{first}'"),
        (lambda: model.rename_class("zebra", "x"), "unknown class 'zebra'"),
        (lambda: model.rename_class(first, second), f"has a class '{second}' already"),
        (lambda: Classifier().add_class("x"), "not fitted"),
        (lambda: Classifier().remove_class("x"), "not fitted"),
    ]
    for call, problem in cases:
        with pytest.raises(UserError) as caught:
            call()
        assert problem in caught.value.problem
        assert caught.value.hint
    assert model.rename_class(first, first.upper()).classes_[0] == first.upper(), "its own name may be spelled anew"


def test_two_classes_stay(sample: Dataset, tiny: CLIP) -> None:
    model = Classifier("zero_shot", backbone=tiny).fit(sample)
    for label in sample.labels[:8]:
        model = model.remove_class(label)
    with pytest.raises(UserError, match="the model has 2 classes; at least 2 must be left"):
        model.remove_class(sample.labels[8])


def test_a_wrong_lineage_is_not_read(sample: Dataset, tiny: CLIP, tmp_path: Path) -> None:
    model = Classifier("zero_shot", backbone=tiny).fit(sample).add_class("zebra").rename_class("zebra", "cat")
    model.save_pretrained(tmp_path / "m.dca")
    raw = json.loads((tmp_path / "m.dca" / "config.json").read_text())

    def problems(lineage: Any) -> list[str]:
        changed = {**raw, "lineage": lineage}
        if lineage is None:
            del changed["lineage"]
        (tmp_path / "m.dca" / "config.json").write_text(json.dumps(changed))
        try:
            checkpoint.read_record(tmp_path / "m.dca")
        except UserError as error:
            return list(error.details)
        return []

    assert problems(None) == ["lineage: a JSON array expected"]
    assert problems(raw["lineage"]) == []
    assert problems({}) == ["lineage: a JSON array expected"]
    added, renamed = raw["lineage"]
    options = {"change": "options", "options": {"gamma1": [1.0, 2.0]}, "version": "1", "before": {"weights": "0"}}
    assert problems([options]) == []
    assert len(problems([{**options, "options": {"gamma1": 2.0}}, {**options, "options": [1, 2]}])) == 2
    for n, wrong in enumerate(
        [
            3,
            {},
            {**added, "change": "sold"},
            {**added, "images": [3]},
            {**added, "before": {}},
            {**options, "before": {}},
            {**added, "before": {"weights": "0", "estimate": {"n": 1}}},
        ]
    ):
        assert problems([wrong]) == ["lineage[0]: a change of a class or of options expected"], n
    assert problems([added, {**renamed, "new_name": 3}]) == ["lineage[1]: a change of a class or of options expected"]


def test_the_head_is_made_again_in_memory_and_on_disk(sample: Dataset, tiny: CLIP, tmp_path: Path):
    model = fitted("dca", sample, tiny, shots=2)
    other = model.with_options(gamma1=300, gamma2=20)
    fresh = fitted("dca", sample, tiny, shots=2, gamma1=300.0, gamma2=20.0, alpha=0.0)
    fresh.method_.load_state_dict(model.method_.state_dict())
    fresh.method_.build_head()
    images = [item.image for item in sample.test[:4]]
    assert np.array_equal(other.predict_proba(images), fresh.predict_proba(images))
    assert not np.array_equal(other.predict_proba(images), model.predict_proba(images))
    assert other.estimate_ is None
    assert other.method_options == {**SHORT, "gamma1": 300.0, "gamma2": 20.0}
    other.save_pretrained(tmp_path / "m.dca")
    again = Classifier.from_pretrained(tmp_path / "m.dca", backbone=tiny)
    assert np.array_equal(again.predict_proba(images), other.predict_proba(images))
    assert again.lineage_[-1] == other.lineage_[-1]
    assert isinstance(again.lineage_[-1], OptionsChanged)
    assert again.lineage_[-1].options == {"gamma1": (500.0, 300.0), "gamma2": (300.0, 20.0)}
    assert "set gamma1=300.0 (was 500.0), gamma2=20.0 (was 300.0)" in model_card(again._to_record())
    assert model.with_options(gamma1=500) is model


def test_an_option_that_training_reads_is_refused(sample: Dataset, tiny: CLIP):
    with pytest.raises(UserError, match=r"(?s)epochs of this finished dca model cannot be changed.*gamma1, gamma2"):
        fitted("dca", sample, tiny).with_options(epochs=3)
    with pytest.raises(UserError, match="not fitted"):
        Classifier("dca").with_options(gamma1=3)
