"""The closed form times a trained method: head and weights against literal twins, and what is stored of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset, LabelledImage
from dca.methods import blend as module
from dca.methods.base import HeldOutPredictions, Problem
from dca.methods.blend import Blend, BlendWeights
from dca.model.classifier import Classifier
from dca.runs.spec import FitSpec
from dca.training.session import Session
from dca.training.support import ImageSupport
from oracles.images import Images

SHORT = {"epochs": 2, "folds": 2, "trained_options": {"warmup_epochs": 0, "batch_size": 8}}
GIVEN = BlendWeights(0.8, 0.4, 0.02, 0.1)


@pytest.fixture(scope="module")
def tiny() -> CLIP:
    return make_clip()


@pytest.fixture
def worth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every trained method is worth something: on random features none would be."""
    monkeypatch.setattr(module, "fit_blend_weights", lambda *_: GIVEN)


def fitted(data: Any, clip: CLIP, **more: Any) -> Classifier:
    return Classifier("blend", seed=3, backbone=clip, device="cpu", **{**SHORT, **more}).fit(data)


def pictures(sample: Dataset) -> list[Any]:
    return [item.image for item in sample.test[:6]]


@pytest.mark.usefixtures("worth")
@pytest.mark.parametrize("trained", ["dca", "coop", "tip_adapter"])
def test_the_product_of_two_models_that_are_fitted_alone(trained: str, sample: Dataset, tiny: CLIP) -> None:
    steps = trained != "tip_adapter"
    more = {} if steps else {"epochs": None, "trained_options": {}}
    model = fitted(sample, tiny, trained=trained, **more)
    alone = {"epochs": 2, "warmup_epochs": 0, "batch_size": 8} if steps else {}
    closed = Classifier("closed_form", seed=3, backbone=tiny, device="cpu").fit(sample)
    other = Classifier(trained, seed=3, backbone=tiny, device="cpu", **alone).fit(sample)
    images = pictures(sample)
    p = closed.predict_proba(images) ** 0.8 * other.predict_proba(images) ** 0.4
    np.testing.assert_allclose(model.predict_proba(images), p / p.sum(1, keepdims=True), atol=1e-6)
    assert model.method_.has_frozen_image_tower is (trained != "dca")
    own = model.method_.p_values(model.method_.encode(torch.zeros(1, 3, 32, 32)))
    assert torch.equal(own, closed.method_.p_values(closed.method_.encode(torch.zeros(1, 3, 32, 32))))
    estimate = Classifier(trained, seed=3, backbone=tiny, device="cpu", estimate=True, **alone).fit(sample).estimate_
    assert estimate is not None
    assert model.estimate_ is not None
    assert "fold cross-validation" in model.estimate_.how


@pytest.mark.usefixtures("worth")
def test_held_out_predictions_are_the_product_of_both(sample: Dataset, tiny: CLIP) -> None:
    model = fitted(sample, tiny)
    first = Classifier("closed_form", seed=3, backbone=tiny, device="cpu").fit(sample).training_images_
    assert model.estimate_ is not None
    assert model.estimate_.how == "4-fold cross-validation and 2-fold cross-validation"
    assert model.method_.temperature == 1.0
    assert [image.held_out for image in model.training_images_] != [image.held_out for image in first]
    assert model.method_.class_ranks(torch.zeros(1, 32)) is None
    assert model.method_.notes()[-1] == (
        "dca brought +2.0 points and a log-loss that is 0.100 lower, for training images that were left out "
        "(weights: closed form 0.80, dca 0.40)."
    )


def test_without_worth_the_model_is_the_closed_form(sample: Dataset, tiny: CLIP, tmp_path: Path) -> None:
    """Random features: prompts on them predict nothing."""
    model = fitted(sample, tiny)
    closed = Classifier("closed_form", seed=3, backbone=tiny, device="cpu").fit(sample)
    images = pictures(sample)
    assert model.method_.count_parameters() == 0
    assert not [name for name in model.method_.state_dict() if name.startswith("trained.")]
    assert np.array_equal(model.predict_proba(images), closed.predict_proba(images))
    assert model.estimate_ == closed.estimate_
    assert model.prediction_sets(images, coverage=0.8) == closed.prediction_sets(images, coverage=0.8)
    assert model.method_.learning_curve(0.7) == closed.method_.learning_curve(0.7)
    assert "dca brought nothing here" in model.method_.notes()[-1]
    model.save_pretrained(tmp_path / "model")
    loaded = Classifier.from_pretrained(tmp_path / "model", backbone=tiny, device="cpu")
    assert loaded.method_.trained is None
    assert loaded.method_.notes() == model.method_.notes()
    assert np.array_equal(loaded.predict_proba(images), closed.predict_proba(images))


def test_one_image_per_class_trains_nothing(sample: Dataset, tiny: CLIP) -> None:
    model = fitted(one_each(sample), tiny)
    assert model.method_.notes()[-1].startswith("dca was not trained")
    assert model.estimate_ is None
    assert model.method_.count_parameters() == 0


def one_each(sample: Dataset) -> Dataset:
    firsts = {item.label: item for item in reversed(sample.train)}
    return dataclasses.replace(sample, train=tuple(firsts.values()), val=(), test=())


@pytest.mark.usefixtures("worth")
def test_a_loaded_model_is_the_saved_one(sample: Dataset, tiny: CLIP, tmp_path: Path) -> None:
    model = fitted(sample, tiny)
    model.save_pretrained(tmp_path / "model")
    loaded = Classifier.from_pretrained(tmp_path / "model", backbone=tiny, device="cpu")
    images = pictures(sample)
    assert np.array_equal(model.predict_proba(images), loaded.predict_proba(images))
    assert loaded.method_.options == model.method_.options
    assert loaded.method_.trained.options == model.method_.trained.options
    assert loaded.method_.trained.options.learning_rate is not None, "found by training"
    assert loaded.get_params()["trained_options"] == SHORT["trained_options"], "a new fit takes what was given"
    assert loaded.method_.notes() == model.method_.notes()


@pytest.mark.usefixtures("worth")
def test_damaged_tensors_are_named_by_their_part(sample: Dataset, tiny: CLIP) -> None:
    method = fitted(sample, tiny).method_
    state = method.state_dict()
    for name, wrong, said in (
        ("weights", state["weights"][:2], "weights: shape (2,), expected (4,)"),
        ("weights", -state["weights"], "weights: exponents of at least 0 expected"),
        (
            "closed.hyperparameters",
            state["closed.hyperparameters"][:, :2],
            "closed: hyperparameters: shape (1, 2), expected (1, 6)",
        ),
        ("trained.visual.x", state["weights"], "trained: unexpected visual.x"),
        ("other", state["weights"], "unexpected other"),
    ):
        with pytest.raises(UserError, match="not those of a 'blend' model") as caught:
            method.restore({**state, name: wrong})
        assert said in caught.value.details
    alone = {**state, "weights": torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)}
    with pytest.raises(UserError, match="not those of a 'blend' model") as caught:
        method.restore(alone)
    assert all(line.startswith("unexpected trained.") for line in caught.value.details)


@pytest.mark.usefixtures("worth")
@pytest.mark.parametrize("part", ["fold 1/2", "fold 2/2", "epoch 2/2"])
def test_an_interrupted_fit_continues_to_the_same_model(
    part: str, sample: Dataset, tiny: CLIP, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dca.training.loop.SAVE_EVERY", 0.0)
    straight = fitted(sample, tiny)
    notes: list[str] = []

    def stop(stage: str, done: int, total: int, note: str) -> None:
        if part in note and "epoch 2/2" in note and ("fold" in part or "fold" not in note):
            raise KeyboardInterrupt

    model = Classifier("blend", seed=3, backbone=tiny, device="cpu", **SHORT)
    with pytest.raises(KeyboardInterrupt):
        model.fit(sample, progress=stop, folder=tmp_path)
    model.fit(sample, progress=lambda stage, done, total, note: notes.append(note), folder=tmp_path)
    assert not any(f"{part}  training  epoch 1/" in note for note in notes), "the first epoch was kept"
    assert all(note.startswith("dca  ") for note in notes if "epoch" in note)
    one, other = straight.method_.state_dict(), model.method_.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert straight.estimate_ == model.estimate_


@pytest.mark.usefixtures("worth")
def test_classes_change_in_both_parts(sample: Dataset, tiny: CLIP) -> None:
    five = tuple(item for item in sample.train if item.label < 5)
    data = dataclasses.replace(sample, labels=sample.labels[:5], names=sample.names[:5], train=five, test=(), val=())
    method: Any = fitted(data, tiny).method_
    new = [LabelledImage(item.image, 5) for item in sample.train if item.label == 5]
    support = ImageSupport(new, Session(device="cpu"), tiny, 3)
    f = F.normalize(torch.randn(4, 2, 16, generator=torch.Generator().manual_seed(0)), dim=-1).flatten(1)
    for changed, closed, trained in (
        (
            method.with_class("zebra", support),
            method.closed.with_class("zebra", support),
            method.trained.with_class("zebra", support),
        ),
        (method.without_class(2), method.closed.without_class(2), method.trained.without_class(2)),
        (method.with_name(1, "ox"), method.closed.with_name(1, "ox"), method.trained.with_name(1, "ox")),
    ):
        p = closed.classify(f[:, :16]).double() ** 0.8 * trained.classify(f[:, 16:]).double() ** 0.4
        found = changed.classify(f).double()
        torch.testing.assert_close(found, p / p.sum(1, keepdim=True), atol=1e-6, rtol=0)
        again = Blend.build(tiny, changed.problem, changed.options)
        again.restore(changed.state_dict())
        assert torch.equal(again.classify(f), changed.classify(f))
    with pytest.raises(UserError, match="no class can be removed from a tip_adapter model"):
        fitted(data, tiny, trained="tip_adapter", epochs=None, trained_options={}).method_.without_class(0)


def test_options_of_the_trained_method_have_one_form() -> None:
    spec = FitSpec(data="sample", method="blend", options={"trained": "CoOp", "epochs": 5})
    assert spec == FitSpec(data="sample", method="blend", options={"trained": "coop", "trained_options": {"epochs": 5}})
    assert spec == FitSpec(data="sample", method="blend", options=("trained=coop", "epochs=5"))
    assert spec.changed_options == {"trained": "coop", "trained_options": {"epochs": 5}}
    assert Blend.parse_options({"trained_options": {"n_prompts": 4, "epochs": None}}) == Blend.parse_options({})


def test_wrong_options_are_named(sample: Dataset) -> None:
    for given, said in (
        ({"trained": "no_such"}, "no_such"),
        ({"trained": "blend"}, "blend cannot be blended"),
        ({"trained": "closed_form"}, "closed_form cannot be blended"),
        ({"trained": "gda", "epochs": 5}, "gda is not trained in steps"),
        ({"trained_options": {"n_prompts": 0}}, "out of range"),
    ):
        with pytest.raises(UserError, match=said):
            Classifier("blend", **given).fit(sample)


def test_validation_images_are_those_of_the_trained_method() -> None:
    for name, use in (("dca", "none"), ("linear_probe", "few"), ("gda", "full")):
        assert Blend.validation_for(Blend.parse_options({"trained": name})) == use


def test_it_says_that_it_needs_the_engine(tiny: CLIP) -> None:
    method = Blend.build(tiny, Problem(names=("cat", "dog"), shots=3), Blend.parse_options(SHORT))
    with pytest.raises(ValueError, match=r"Support\.fitter"):
        method.finish(Images((3, 3)))


def test_a_clairvoyant_method_is_taken_in_and_a_noisy_one_is_not(tiny: CLIP) -> None:
    images = Images((6, 6, 6))

    class Given:
        def __init__(self, p: torch.Tensor) -> None:
            self.p = p

        def fit(self, kind: Any, chosen: Any) -> Any:
            return kind.build(tiny, Problem(names=("a", "b", "c"), shots=6), chosen)

        def predict_held_out(self, kind: Any, chosen: Any, folds: int) -> HeldOutPredictions:
            return HeldOutPredictions(self.p.numpy(), "given")

    right = 0.8 * F.one_hot(images.labels, 3).double() + 0.2 / 3
    noise = torch.rand(18, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).softmax(-1)
    for p, taken in ((right, True), (noise, False)):
        method = Blend.build(tiny, Problem(names=("a", "b", "c"), shots=6), Blend.parse_options({}))
        images.fitter = Given(p)  # type: ignore[assignment]
        method.finish(images)
        assert (method.trained is not None) is taken
        assert (method.blend_weights.second > 0) is taken
