"""A rate of false rejections that a model cannot keep is refused, with the way out."""

from __future__ import annotations

import dataclasses

import pytest

from conftest import make_clip
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset
from dca.model.classifier import Classifier
from dca.model.rejection import choose_rate, count_held_out, describe_limit, require_rate, round_up


def few_images(sample: Dataset, images: int) -> Classifier:
    """A model of three classes with this number of images of each."""
    train = tuple(item for item in sample.train if item.label < 3)
    part = dataclasses.replace(sample, labels=sample.labels[:3], names=sample.names[:3], train=train, test=())
    return Classifier(shots=images, backbone=make_clip(), device="cpu").fit(part)


def test_a_rate_below_the_smallest_p_value_is_refused_with_the_smallest_rate_and_the_images_that_it_takes(
    sample: Dataset,
) -> None:
    model, image = few_images(sample, 4), sample.test[0].image
    assert model.smallest_p_value == 1 / 13
    with pytest.raises(UserError) as caught:
        model.predict(image, reject=0.05)
    assert caught.value.problem == (
        "a rate of 0.05 false rejections needs 19 training images that can be left out, as many of each class; "
        "the model's are worth 12"
    )
    assert caught.value.hint == "use reject=0.077, or fit with more images, first of the classes that have the fewest"
    assert "--reject 0.077" in caught.value.render("cli")
    assert model.predict(image, reject=0.077) in [*model.classes_, "none of these"]


def test_the_smallest_rate_rejects_what_is_like_no_training_image(sample: Dataset) -> None:
    method = few_images(sample, 4).method_
    opposite = method.p_values(-method.image_features)
    assert opposite.tolist() == [1 / 13] * 12
    assert round_up(1 / 13) >= 1 / 13


def test_images_of_unequal_classes_are_worth_fewer(sample: Dataset) -> None:
    """C times the harmonic mean of their numbers: that of the rare class decides."""
    for method, options in (("closed_form", {}), ("gda", {"views": 0, "estimate": True})):
        train = tuple(item for n, item in enumerate(sample.train) if item.label == 0 or (item.label == 1 and n % 2))
        part = dataclasses.replace(sample, labels=sample.labels[:2], names=sample.names[:2], train=train, test=())
        model = Classifier(method, backbone=make_clip(), device="cpu", **options).fit(part)
        assert model.smallest_p_value == pytest.approx(1 / (1 + 2 * 2 / (1 / 4 + 1 / 2)))
        found = model.predict_features(-model.method_.adapt_features(model._encode([train[0].image], None)))
        assert found.p_values.min() >= model.smallest_p_value


def test_models_without_p_values_have_no_smallest(sample: Dataset) -> None:
    model = few_images(sample, 1)
    assert model.smallest_p_value is None
    with pytest.raises(UserError, match="cannot tell images of none of its classes"):
        model.predict(sample.test[0].image, reject=0.5)


def test_rates_that_are_no_shares_are_refused() -> None:
    for rate in (-0.1, 1.5, float("nan")):
        with pytest.raises(UserError, match="rate of false rejections"):
            require_rate(rate, 0.01)
    require_rate(0.0, 0.2)  # rejects nothing, as it says
    require_rate(None, None)


@pytest.mark.parametrize("n", [9, 12, 18, 19, 20, 500])
def test_the_rate_that_is_chosen_can_be_kept(n: int) -> None:
    smallest = 1 / (n + 1)
    rate = choose_rate(smallest)
    assert rate is not None
    assert smallest <= rate <= 0.1
    require_rate(rate, smallest)
    assert count_held_out(smallest) == n
    assert (describe_limit(smallest) is None) == (n >= 19)


def test_nothing_is_rejected_unasked_with_fewer_than_nine_images() -> None:
    assert choose_rate(1 / 9) is None
