"""The checks of scikit-learn that make sense for a classifier over images, and those that do not."""

from __future__ import annotations

import subprocess
import sys
import warnings
from copy import deepcopy

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.utils import estimator_checks, get_tags
from sklearn.utils.validation import check_is_fitted

import dca
from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.model.classifier import Classifier

APPLICABLE = (
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_parameters_default_constructible",
    "check_valid_tag_types",
)
# Check -> why it does not apply; the tests below have a counterpart where there is one.
NOT_APPLICABLE = {
    "check_no_attributes_set_in_init": "options of the method are kept in one attribute, `settings`",
    "check_set_params": "a classifier may refuse a method or an option that does not exist at once, not in `fit`",
    "check_do_not_raise_errors_in_init_or_set_params": "as check_set_params",
    "check_estimators_unfitted": "the error is a UserError, since scikit-learn is not required; below",
    "check_fit_idempotent": "fits on an array of numbers; below with images",
    "check_dict_unchanged": "fits on an array of numbers; below with images",
    "check_estimators_overwrite_params": "fits on an array of numbers; below with images",
    "check_estimators_fit_returns_self": "fits on an array of numbers; below with images",
    "check_dont_overwrite_attributes": "fits on an array of numbers; below with images",
    "check_classifiers_classes": "fits on an array of numbers; labels of all kinds are in test_classifier.py",
    "check_methods_sample_order_invariance": "fits on an array of numbers; below with images",
    "check_methods_subset_invariance": "fits on an array of numbers; below with images",
    "check_n_features_in": "an image has no number of features",
    "check_estimators_nan_inf": "an image has no NaN",
    "check_estimators_dtypes": "an image has one type",
    "check_estimator_sparse_array": "an image is not sparse",
    "check_fit1d": "a list of images is one-dimensional",
}


@pytest.mark.parametrize("name", APPLICABLE)
def test_check(name: str, clip: CLIP) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Estimator Classifier does not inherit", UserWarning)
        getattr(estimator_checks, name)("Classifier", Classifier("gda", views=0, alpha=1.0))


def test_every_check_has_its_place() -> None:
    assert [name for name in APPLICABLE if not hasattr(estimator_checks, name)] == []
    assert not {*APPLICABLE} & {*NOT_APPLICABLE}
    assert all(NOT_APPLICABLE.values())


def test_the_tags_are_those_of_a_classifier_over_a_list_of_images() -> None:
    assert is_classifier(Classifier())
    tags = get_tags(Classifier())
    assert tags.classifier_tags is not None
    assert tags.input_tags.one_d_array
    assert not tags.input_tags.two_d_array


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)) for _ in range(8)]


LABELS = ["a", "b"] * 4


def test_before_fit_it_says_so(images: list[Image.Image]) -> None:
    bare = Classifier()
    with pytest.raises(NotFittedError):
        check_is_fitted(bare)
    for method in ("predict", "predict_proba", "score"):
        with pytest.raises(UserError, match="not fitted yet") as caught:
            getattr(bare, method)(images)
        assert isinstance(caught.value, NotFittedError | dca.NotFittedError)
        assert isinstance(caught.value, NotFittedError)


def test_before_fit_it_says_so_without_scikit_learn() -> None:
    code = (
        "import sys, dca\n"
        "try:\n    dca.Classifier().predict('x.jpg')\n"
        "except dca.NotFittedError as error:\n    print(isinstance(error, ValueError), 'sklearn' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "True False\n"


def test_fit_is_idempotent_and_changes_no_parameter(clip: CLIP, images: list[Image.Image]) -> None:
    model = Classifier("gda", backbone=clip, views=0)
    before = deepcopy({name: value for name, value in model.get_params().items() if name != "backbone"})
    assert model.fit(images, LABELS) is model
    check_is_fitted(model)
    first, attributes = model.predict_proba(images), set(vars(model))
    assert model.fit(images, LABELS).predict_proba(images).tolist() == first.tolist()
    assert {name: value for name, value in model.get_params().items() if name != "backbone"} == before
    assert model.backbone is clip
    assert set(vars(model)) == attributes
    added = set(vars(model)) - set(vars(Classifier()))
    assert [name for name in added if not (name.endswith("_") or name.startswith("_"))] == []
    copied = clone(model)
    assert not hasattr(copied, "classes_")


def test_prediction_depends_on_the_image_alone_and_leaves_the_model_unchanged(
    clip: CLIP, images: list[Image.Image]
) -> None:
    model = Classifier("gda", backbone=clip, views=0).fit(images, LABELS)
    state = dict(vars(model))
    whole = model.predict_proba(images)
    np.testing.assert_allclose(model.predict_proba(images[::-1])[::-1], whole, atol=1e-6)
    np.testing.assert_allclose(np.concatenate([model.predict_proba([one]) for one in images]), whole, atol=1e-6)
    assert all(vars(model)[name] is value for name, value in state.items())


def test_parameters_are_set_and_read_by_name() -> None:
    model = Classifier("gda", shots=2, views=0)
    assert model.set_params(shots=4, views=3) is model
    assert model.get_params()["shots"] == 4
    assert model.get_params()["views"] == 3
    assert clone(model).get_params() == model.get_params()
