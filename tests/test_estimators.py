"""The estimators pass scikit-learn's checks, work in its tools, and equal the methods on the same features."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import has_fit_parameter

from dca import estimators
from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.estimators import (
    FeatureHead,
    GaussianTextHead,
    GDAHead,
    KernelRidgeHead,
    LinearProbeHead,
    NearestMeanHead,
    TipAdapterHead,
)
from dca.methods.base import Method, Problem
from dca.methods.gda import Estimate
from dca.methods.registry import get_method
from dca.methods.shared import product_of_experts
from dca.methods.shared.frozen_features import unit_mean
from oracles.images import Images

KINDS: list[type[FeatureHead]] = [getattr(estimators, name) for name in estimators.__all__]
CLASSES = ("cat", "dog", "fox")
DOCUMENTED = Path(__file__).parents[1] / "docs" / "estimators.md"


@pytest.fixture
def small_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two candidates of each number instead of eight, since scikit-learn's checks fit some hundred times."""
    for name in ("TEXT_SHOTS", "RIDGES", "KERNEL_RIDGES"):
        monkeypatch.setattr(product_of_experts, name, getattr(product_of_experts, name)[2:4])


def failures(estimator: FeatureHead) -> list[str]:
    """Checks of scikit-learn that an estimator does not pass."""
    results = check_estimator(estimator, on_fail=None, on_skip=None)
    assert len(results) > 40
    # Skipped unless an environment variable asks for arrays of other libraries.
    skipped = {row["check_name"] for row in results if row["status"] == "skipped"}
    assert skipped <= {"check_array_api_input"}
    return [f"{row['check_name']}: {row['exception']}" for row in results if row["status"] not in ("passed", "skipped")]


@pytest.mark.usefixtures("small_grids")
@pytest.mark.parametrize("kind", KINDS)
def test_check_estimator_passes(kind: type[FeatureHead]) -> None:
    assert failures(kind()) == []


@pytest.mark.slow
def test_check_estimator_passes_with_the_whole_grid() -> None:
    assert failures(GaussianTextHead()) == []


@pytest.fixture(scope="module")
def data() -> tuple[NDArray[np.float64], NDArray[np.str_], dict[str, NDArray[np.float64]]]:
    """Features about three centres, labels, and text vectors near the centres."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(3, 12))
    labels = np.repeat(CLASSES, 10)
    X = centers.repeat(10, axis=0) + rng.normal(size=(30, 12))
    text = centers + 0.5 * rng.normal(size=(3, 12))
    return X, labels, dict(zip(CLASSES, text, strict=True))


@pytest.mark.usefixtures("small_grids")
@pytest.mark.parametrize("kind", KINDS)
def test_pipeline_search_and_calibration(kind: type[FeatureHead], data: tuple) -> None:
    X, y, _ = data
    steps = make_pipeline(Normalizer(), PCA(6), kind())
    name = kind.__name__.lower()
    numbers = {key: value for key, value in kind().get_params().items() if isinstance(value, float)}
    grid = {"tau": [10.0, 100.0]} if "tau" in numbers else {next(iter(numbers)): [0.5, 2.0]}
    search = GridSearchCV(steps, {f"{name}__{key}": value for key, value in grid.items()}, cv=2, error_score="raise")
    assert search.fit(X, y).best_score_ > 0.6
    calibrated = CalibratedClassifierCV(kind(), cv=2).fit(X, y)
    assert calibrated.score(X, y) > 0.8
    np.testing.assert_allclose(calibrated.predict_proba(X).sum(axis=1), 1)


@pytest.mark.usefixtures("small_grids")
@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_are_the_softmax_of_the_logits(kind: type[FeatureHead], data: tuple) -> None:
    X, y, _ = data
    head = kind().fit(X, y)
    logits = head.decision_function(X)
    expected = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(head.predict_proba(X), expected / expected.sum(axis=1, keepdims=True), atol=1e-12)
    two = kind().fit(X[:20], y[:20])
    np.testing.assert_allclose(two.predict_proba(X)[:, 1], 1 / (1 + np.exp(-two.decision_function(X))), atol=1e-12)


def features_of(clip: CLIP, images: Images) -> NDArray[np.float32]:
    return images.frozen_features().numpy()


def fitted(clip: CLIP, images: Images, name: str, **options: object) -> Method:
    kind = get_method(name)
    method = kind.build(clip, Problem(names=CLASSES, shots=5), kind.parse_options(options))
    with torch.no_grad():
        method.finish(images)
        return method.build_head()


def parity() -> Iterator[object]:
    """Estimator, method and the options that they share."""
    yield pytest.param(GaussianTextHead, "closed_form", {}, id="closed form")
    yield pytest.param(GaussianTextHead, "closed_form", {"kernel_scale": 0.0, "text_shots": 2.0}, id="no kernel")
    yield pytest.param(GaussianTextHead, "closed_form", {"kernel_images": 5, "ridge": 3.0}, id="many images")
    for shrinkage in ("gda", "ledoit_wolf", "oas", "convex"):
        yield pytest.param(GDAHead, "gda", {"alpha": 0.3, "shrinkage": shrinkage}, id=f"gda {shrinkage}")
    yield pytest.param(TipAdapterHead, "tip_adapter", {"alpha": 2.5, "beta": 3.0}, id="tip adapter")
    yield pytest.param(LinearProbeHead, "linear_probe", {"c": 0.7}, id="linear probe")
    yield pytest.param(LinearProbeHead, "linear_probe", {"c": 5.0, "features": "unit"}, id="linear probe, unit")


@pytest.mark.parametrize("counts", [(5, 5, 5), (2, 7, 3), (1, 1, 1)])
@pytest.mark.parametrize(("kind", "name", "options"), list(parity()))
def test_an_estimator_equals_its_method(
    kind: type[FeatureHead], name: str, options: dict[str, object], counts: tuple[int, ...], clip: CLIP
) -> None:
    images, unseen = Images(counts), Images((4, 4, 4), seed=3)
    views = {"views": 0} if name in ("gda", "tip_adapter") else {}
    method = fitted(clip, images, name, **options, **views)
    with torch.no_grad():
        expected = method.classify(method.encode(unseen.pixels))
    head = kind(**options)
    if "text" in head.get_params():
        text = unit_mean(method.texts())  # type: ignore[attr-defined]
        head.set_params(text=text.numpy(), tau=clip.tau)
    head.fit(features_of(clip, images), np.array(CLASSES)[images.labels])
    # The method keeps float32 weights, whose logits reach some hundred.
    np.testing.assert_allclose(head.predict_proba(features_of(clip, unseen)), expected, atol=2e-4)


def test_the_nearest_mean_is_scikit_learn_s_nearest_centroid(data: tuple) -> None:
    X, y, _ = data
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    theirs = NearestCentroid().fit(unit, y).predict(unit)
    assert NearestMeanHead(metric="euclidean").fit(X, y).predict(X).tolist() == theirs.tolist()
    means = np.stack([unit[y == name].mean(axis=0) for name in CLASSES])
    cosine = unit @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T
    got = NearestMeanHead(tau=7.0).fit(X, y).decision_function(X)
    np.testing.assert_allclose(got - got.mean(axis=1, keepdims=True), 7 * (cosine - cosine.mean(axis=1)[:, None]))


def test_the_linear_probe_is_scikit_learn_s_logistic_regression(data: tuple) -> None:
    X, y, _ = data
    theirs = LogisticRegression(C=2.0, tol=1e-10, max_iter=10_000).fit(X, y)
    np.testing.assert_allclose(LinearProbeHead(c=2.0).fit(X, y).predict_proba(X), theirs.predict_proba(X), atol=1e-5)


def test_kernel_ridge_equals_the_equations(data: tuple) -> None:
    X, y, _ = data
    head = KernelRidgeHead(ridge=0.3, width=1.5, scale=4.0).fit(X, y)
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    apart = 1 - unit @ unit.T
    K = np.exp(-1.5 * apart / (apart.sum() / (30 * 29)))
    lam = 0.3 * np.linalg.eigvalsh(K).mean()
    A = np.linalg.solve(K + lam * np.eye(30), (y[:, None] == np.array(CLASSES)).astype(float))
    np.testing.assert_allclose(head.decision_function(X), 4 * K @ A, atol=1e-8)
    assert KernelRidgeHead().fit(X, y).scale_ > 1
    assert KernelRidgeHead().fit(X[::10], y[::10]).scale_ == 1


def test_text_is_given_by_row_or_by_label(data: tuple) -> None:
    X, y, text = data
    rows = np.stack([text[name] for name in CLASSES])
    for kind in (GaussianTextHead, GDAHead, TipAdapterHead):
        by_row, by_label, none = (kind(given).fit(X, y).predict_proba(X) for given in (rows, text, None))
        np.testing.assert_array_equal(by_row, by_label)
        assert np.abs(by_row - none).max() > 1e-3


def test_text_helps_where_images_are_few(data: tuple) -> None:
    X, y, text = data
    few = np.arange(0, 30, 5)
    assert GaussianTextHead(text).fit(X[few], y[few]).score(X, y) >= GaussianTextHead().fit(X[few], y[few]).score(X, y)
    # One row per class: nothing can be left out, and the rule for that case decides.
    assert GaussianTextHead(text).fit(X[::10], y[::10]).score(X, y) > 0.8
    assert GaussianTextHead().fit(X[::10], y[::10]).score(X, y) > 0.5


def test_a_dictionary_of_texts_survives_cross_validation_over_some_of_the_classes(data: tuple) -> None:
    X, y, text = data
    assert cross_val_score(GDAHead(text), X[:20], y[:20], cv=2, error_score="raise").mean() > 0.7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (np.ones((2, 12)), r"shape \(2, 12\).*3 classes and 12 features"),
        (np.ones((3, 11)), r"shape \(3, 11\)"),
        ({"cat": np.ones(12)}, r"(?s)no vector for some labels.*'dog'.*'fox'"),
        (np.full((3, 12), np.nan), "NaN"),
    ],
)
def test_wrong_texts_are_refused(text: object, message: str, data: tuple) -> None:
    X, y, _ = data
    for error in (UserError, ValueError):
        with pytest.raises(error, match=message):
            GDAHead(text).fit(X, y)


def test_wrong_options_are_refused(data: tuple) -> None:
    X, y, _ = data
    for head in (NearestMeanHead(metric="city"), LinearProbeHead(features="cube"), GDAHead(shrinkage="much")):
        with pytest.raises(UserError):
            head.fit(X, y)
    with pytest.raises(ValueError, match="one class, 'cat'"):
        GDAHead().fit(X[:10], y[:10])


@pytest.mark.usefixtures("small_grids")
@pytest.mark.parametrize("scale", [1e200, 1e-200, 1e300])
@pytest.mark.parametrize("kind", KINDS)
def test_the_scale_of_unit_features_changes_nothing(kind: type[FeatureHead], scale: float, data: tuple) -> None:
    X, y, text = data
    options = {"features": "unit"} if kind is LinearProbeHead else {}
    expected = kind(**options).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(kind(**options).fit(scale * X, y).predict_proba(scale * X), expected, atol=1e-9)
    if "text" in kind().get_params():
        scaled = {label: scale * vector for label, vector in text.items()}
        assert (kind(scaled).fit(X, y).predict(X) == kind(text).fit(X, y).predict(X)).all()


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_raw_features_of_a_size_that_decides_everything_are_refused(scale: float, data: tuple) -> None:
    X, y, _ = data
    with pytest.raises(ValueError, match="depends on their scale"):
        LinearProbeHead().fit(scale * X, y)
    if scale > 1:
        with pytest.raises(ValueError, match="depends on their scale"):
            LinearProbeHead().fit(X, y).predict_proba(scale * X)


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_has_limits(kind: type[FeatureHead], data: tuple) -> None:
    X, y, _ = data
    for name, usual in kind().get_params().items():
        if not isinstance(usual, int | float) and (usual is not None or name == "text"):
            continue
        for value in (float("nan"), float("inf"), -1.0, "much", True, 1e300):
            with pytest.raises(ValueError, match=rf"{name} is .*\n.*number from"):
                kind(**{name: value}).fit(X, y)


def test_kernel_ridge_takes_landmarks_where_rows_are_many(data: tuple) -> None:
    X, y, _ = data
    exact, few = KernelRidgeHead().fit(X, y), KernelRidgeHead(images=29).fit(X, y)
    assert few.head_.keys.shape == (14, 12)
    assert (few.predict(X) == exact.predict(X)).mean() > 0.9
    rng = np.random.default_rng(0)
    many = rng.integers(0, 3, 30_000)
    X = np.eye(3)[many] + 0.3 * rng.normal(size=(30_000, 3))
    assert KernelRidgeHead(images=200).fit(X, many).score(X[:1000], many[:1000]) > 0.9


# Every head that takes weights, in all of its variants.
WEIGHTED: list[FeatureHead] = [
    *(GDAHead(shrinkage=shrinkage, alpha=0.3) for shrinkage in get_args(Estimate)),
    TipAdapterHead(), LinearProbeHead(), LinearProbeHead(features="unit"), NearestMeanHead(),
    NearestMeanHead(metric="euclidean"),
]  # fmt: skip


@pytest.mark.parametrize("head", WEIGHTED, ids=repr)
def test_a_weight_is_a_number_of_equal_rows(head: FeatureHead, data: tuple) -> None:
    X, y, text = data
    if "text" in head.get_params():
        head = clone(head).set_params(text=text, tau=5.0)
    counts = np.random.default_rng(1).integers(0, 4, len(X))
    expected = clone(head).fit(X.repeat(counts, axis=0), y.repeat(counts)).predict_proba(X)
    np.testing.assert_allclose(clone(head).fit(X, y, sample_weight=counts).predict_proba(X), expected, atol=1e-8)
    ones = clone(head).fit(X, y, sample_weight=np.ones(len(X))).predict_proba(X)
    np.testing.assert_array_equal(ones, clone(head).fit(X, y).predict_proba(X))
    assert np.abs(expected - ones).max() > 1e-4


def test_the_documented_heads_take_weights() -> None:
    taking = {kind for kind in KINDS if has_fit_parameter(kind, "sample_weight")}
    assert taking == {type(head) for head in WEIGHTED}
    rows = [line for line in DOCUMENTED.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    table = {line.split("`")[1]: line.split("|")[-2].strip() for line in rows}
    assert table.keys() == {kind.__name__ for kind in KINDS}
    assert {name for name, words in table.items() if not words.startswith("no:")} == {kind.__name__ for kind in taking}


@pytest.mark.parametrize("factor", [1 / 30, 1e12])
def test_weights_that_are_no_numbers_of_rows_are_refused_where_these_decide(factor: float, data: tuple) -> None:
    X, y, _ = data
    with pytest.raises(ValueError, match=r"sample_weight sums to .*\n.*mean of 1"):
        GDAHead().fit(X, y, sample_weight=np.full(len(X), factor))
    for weight in (0.5, 1e10):
        assert GDAHead().fit(X, y, sample_weight=np.full(len(X), weight)).score(X, y) > 0.9


@pytest.mark.parametrize("weights", [[1.0, 2.0], np.full(30, np.nan), -np.ones(30), np.zeros(30)])
def test_wrong_weights_are_refused(weights: object, data: tuple) -> None:
    X, y, _ = data
    with pytest.raises(ValueError, match="sample_weight"):
        LinearProbeHead().fit(X, y, sample_weight=weights)


def test_without_scikit_learn_the_extra_is_named() -> None:
    code = "import sys; sys.modules['sklearn'] = None; import dca.estimators"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "dca-prompt[sklearn]" in found.stderr
    code = f"try:\n    {code}\nexcept ImportError:\n    print('caught')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "caught\n"
