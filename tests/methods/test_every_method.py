"""What every method must do; a new method is tested by existing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from conftest import make_clip, short_recipe
from dca.backbones.clip import CLIP
from dca.backbones.clip.model import compute_digest
from dca.datasets.dataset import Dataset
from dca.methods.base import Method, TrainedMethod, TrainsOn, ValidationUse
from dca.methods.registry import all_methods, get_method
from dca.model.classifier import Classifier

METHODS = sorted(all_methods())


def short(name: str, **more: object) -> Classifier:
    return Classifier(name, seed=3, backbone=make_clip(), **short_recipe(name, **more))


@pytest.fixture(scope="module", params=METHODS)
def fitted(request: pytest.FixtureRequest, sample: Dataset) -> Classifier:
    return short(request.param).fit(sample)


def pictures(sample: Dataset) -> list[object]:
    return [item.image for item in sample.test]


def test_probabilities_are_finite_and_sum_to_one(fitted: Classifier, sample: Dataset) -> None:
    probs = fitted.predict_proba(pictures(sample))  # type: ignore[arg-type]
    assert probs.shape == (len(sample.test), len(sample.names))
    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-5)


def test_losses_are_finite_and_named(fitted: Classifier) -> None:
    for row in fitted.history_:
        assert all(np.isfinite(value) for value in row.values())
        named = {name.removeprefix("loss_") for name in row if name.startswith("loss_")}
        assert named
        assert named <= set(fitted.method_.term_titles), "what each means, for the titles of curves"


def test_same_seed_gives_the_same_weights(fitted: Classifier, sample: Dataset) -> None:
    again = short(fitted.method).fit(sample)
    one, other = fitted.method_.state_dict(), again.method_.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_backbone_is_bitwise_unchanged(fitted: Classifier) -> None:
    assert compute_digest(fitted.method_.clip) == compute_digest(make_clip())
    assert all(p.grad is None for p in fitted.method_.clip.parameters())


def test_gradients_reach_every_parameter_of_the_method(fitted: Classifier) -> None:
    method = fitted.method_
    if method.trains_on == "nothing":
        assert all(p.grad is None for p in method.parameters())
        return
    # As the last step left them; a method that trains in stages tests the others itself.
    gradients = {name: parameter.grad for name, parameter in method.named_parameters() if parameter.requires_grad}
    assert len(gradients) == len(list(method.parameters())) or len(method.stages(2)) > 1
    assert [name for name, gradient in gradients.items() if gradient is None] == []
    assert any(gradient.abs().max() > 0 for gradient in gradients.values())


@pytest.fixture(scope="module")
def mini() -> CLIP:
    return CLIP.from_pretrained("mini")


# With fewer augmented views, which cost most of the time; a blend is made of methods that are tested themselves.
@pytest.mark.parametrize("name", [name for name in METHODS if name != "blend"])
def test_it_beats_chance_by_far(name: str, sample: Dataset, mini: CLIP) -> None:
    known = vars(get_method(name).Options())
    few = {option: 2 for option in ("views", "train_views") if option in known}
    settings: dict[str, Any] = {**short_recipe(name, epochs=6), **few}
    model = Classifier(name, shots=4, seed=1, backbone=mini, device="cpu", **settings).fit(sample)
    assert model.evaluate(sample).accuracy > 3 / len(sample.names)


def test_saved_and_loaded_gives_the_same_probabilities(fitted: Classifier, sample: Dataset, tmp_path: Path) -> None:
    fitted.save_pretrained(tmp_path / "model")
    loaded = Classifier.from_pretrained(tmp_path / "model", backbone=make_clip())
    images = pictures(sample)[:7]
    assert np.array_equal(fitted.predict_proba(images), loaded.predict_proba(images))  # type: ignore[arg-type]


def test_interrupted_and_resumed_equals_a_straight_run(fitted: Classifier, sample: Dataset, tmp_path: Path) -> None:
    if fitted.method_.trains_on == "nothing":
        assert fitted.history_ == []
        return
    epoch_of = {"last": 0}

    def stop(stage: str, done: int, total: int, note: str) -> None:
        if stage == "training" and "epoch 2/" in note:
            epoch_of["last"] = 2
            raise KeyboardInterrupt

    import dca.training.loop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dca.training.loop, "SAVE_EVERY", 0.0)
        with pytest.raises(KeyboardInterrupt):
            short(fitted.method).fit(sample, progress=stop, folder=tmp_path)
    assert epoch_of["last"] == 2
    resumed = short(fitted.method).fit(sample, folder=tmp_path)
    one, other = fitted.method_.state_dict(), resumed.method_.state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_options_survive_json(fitted: Classifier) -> None:
    chosen = fitted.method_.options
    text = json.dumps(dataclasses.asdict(chosen))
    assert fitted.method_.parse_options(json.loads(text)) == chosen


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("epochs", [0, 2])
def test_the_order_of_classes_does_not_matter(name: str, epochs: int, sample: Dataset) -> None:
    """Same images, classes renumbered: the columns move, the numbers stay."""
    order = np.random.default_rng(0).permutation(len(sample.names))
    place = {int(old): new for new, old in enumerate(order)}

    def renumber(items: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(dataclasses.replace(i, label=place[i.label]) for i in items)  # type: ignore[type-var, attr-defined]

    moved = dataclasses.replace(
        sample,
        labels=tuple(sample.labels[o] for o in order),
        names=tuple(sample.names[o] for o in order),
        train=renumber(sample.train),  # type: ignore[arg-type]
        test=renumber(sample.test),  # type: ignore[arg-type]
    )
    images = pictures(sample)[:6]
    one = short(name, epochs=epochs).fit(sample).predict_proba(images)  # type: ignore[arg-type]
    other = short(name, epochs=epochs).fit(moved).predict_proba(images)  # type: ignore[arg-type]
    np.testing.assert_allclose(one[:, order], other, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("counts", [(1, 1), (3, 1), (1, 2, 4)])
def test_few_and_unequal_images_work(name: str, counts: tuple[int, ...], sample: Dataset) -> None:
    """One shot, two classes, a class with one image, unicode names."""
    names = ("café 東京", "naïve ½", "x")[: len(counts)]
    train = tuple(
        item for label, count in enumerate(counts) for item in [i for i in sample.train if i.label == label][:count]
    )
    tiny = dataclasses.replace(sample, labels=names, names=names, train=train, test=())
    model = short(name).fit(tiny)
    assert np.isfinite(model.predict_proba(pictures(sample)[:3])).all()  # type: ignore[arg-type]
    assert model.predict(pictures(sample)[0]) in names  # type: ignore[arg-type]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_what_it_is(name: str) -> None:
    method = get_method(name)
    assert issubclass(method, Method)
    assert method.name == name
    assert method.trains_on in get_args(TrainsOn)
    assert method.validation in get_args(ValidationUse)
    assert issubclass(method, TrainedMethod) is (method.trains_on != "nothing")
    assert hasattr(method, "step") is issubclass(method, TrainedMethod)
    assert re_year(method.paper)
    assert (method.__doc__ or "").strip()
    for field in dataclasses.fields(method.Options):
        assert field.metadata.get("help"), f"{name}.{field.name}"


def re_year(text: str) -> bool:
    return any(str(year) in text for year in range(2015, 2030))
