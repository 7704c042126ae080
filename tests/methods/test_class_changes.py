"""One class more, one less, or another name: each against the same method built for those classes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset, LabelledImage
from dca.methods.base import Method
from dca.methods.registry import all_methods, get_method
from dca.model.classifier import Classifier
from dca.training.session import Session
from dca.training.support import ImageSupport
from oracles.dca import dense_covariance, dense_distance

CLASSES = 5
SHORT = {"epochs": 1, "warmup_epochs": 0, "batch_size": 8}
# Options with which the finished model uses more than one text feature per class.
PROMPTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name, kind in sorted(all_methods().items()) if kind.retarget is not Method.retarget),
    ("dca", {"test_metric": "euclidean"}),
    ("dca", {"center": "visual"}),
    ("dca", {"covariance": "ledoit_wolf"}),
    ("coop", {"test_metric": "mahalanobis"}),
    ("vpt", {"test_metric": "mahalanobis"}),
    ("coop", {"position": "middle"}),
]
OWN_TO_CLASSES = [("lamm", {}), ("coop", {"contexts": "class"}), ("dca", {"contexts": "class"})]
# 2SFS keeps the vectors of known classes and reads the names of new ones: tests/methods/test_two_sfs.py.
TEXT = [case for case in PROMPTS if case not in [*OWN_TO_CLASSES, ("two_sfs", {})]]
WORDS = ["-".join([name, *map(str, more.values())]) for name, more in TEXT]


@pytest.fixture(scope="module")
def tiny() -> CLIP:
    return make_clip()


@pytest.fixture(scope="module")
def five(sample: Dataset) -> Dataset:
    """The first classes of the sample; the sixth is for adding."""
    train = tuple(item for item in sample.train if item.label < CLASSES)
    return dataclasses.replace(sample, labels=sample.labels[:CLASSES], names=sample.names[:CLASSES], train=train)


def fitted(name: str, data: Dataset, clip: CLIP, **more: Any) -> Method:
    settings = {**SHORT, **more} if get_method(name).trains_on != "nothing" else more
    return Classifier(name, seed=3, backbone=clip, device="cpu", **settings).fit(data).method_


def support(items: Any, clip: CLIP) -> ImageSupport:
    return ImageSupport(list(items), Session(device="cpu"), clip, 3)


def features(rows: int = 6, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(rows, 16, generator=torch.Generator().manual_seed(seed)), dim=-1)


def features_for(method: Method) -> Tensor:
    """Features as `encode` gives them: of the image, for some methods followed by those of its patches."""
    rows = method.encode(torch.zeros(1, 3, 32, 32)).shape[1] // 16
    return features(6 * rows).reshape(6, -1)


def built(method: Method, names: tuple[str, ...], items: list[LabelledImage]) -> Method:
    """The literal twin: the method built for these names with the same parameters, and finished on these images."""
    other = type(method)(method.clip, dataclasses.replace(method.problem, names=names), method.options)
    other.load_state_dict(dict(method.named_parameters()), strict=False)
    with torch.no_grad():
        other.finish(support(items, method.clip))
    other.temperature = method.temperature
    return other.build_head()


@pytest.mark.parametrize(("name", "more"), TEXT, ids=WORDS)
def test_a_class_more_is_the_same_prompts_built_for_one_more_name(
    name: str, more: dict[str, Any], five: Dataset, sample: Dataset, tiny: CLIP
) -> None:
    method = fitted(name, five, tiny, **more)
    f = features_for(method)
    new = [item for item in sample.train if item.label == CLASSES]
    before = method.classify(f)
    added = method.with_class(sample.names[CLASSES], support(new, tiny))
    twin = built(method, sample.names[: CLASSES + 1], [*five.train, *new])
    assert added.problem.names == sample.names[: CLASSES + 1]
    assert added.options == method.options
    torch.testing.assert_close(added.classify(f), twin.classify(f), atol=1e-6, rtol=0)
    assert torch.equal(method.classify(f), before), "the method itself stays as it is"


@pytest.mark.parametrize(("name", "more"), TEXT, ids=WORDS)
def test_a_class_removed_and_added_again_is_the_same_model(
    name: str, more: dict[str, Any], five: Dataset, tiny: CLIP
) -> None:
    method = fitted(name, five, tiny, **more)
    f = features_for(method)
    own = [item for item in five.train if item.label == 2]
    again = method.without_class(2).with_class(five.names[2], support(own, tiny))
    expected = method.classify(f)[:, [0, 1, 3, 4, 2]]
    torch.testing.assert_close(again.classify(f), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("name", "more"), TEXT, ids=WORDS)
def test_another_name_is_the_same_prompts_on_that_name(
    name: str, more: dict[str, Any], five: Dataset, tiny: CLIP
) -> None:
    method = fitted(name, five, tiny, **more)
    f = features_for(method)
    names = (*five.names[:1], "a dog of the house", *five.names[2:])
    renamed, twin = method.with_name(1, names[1]), built(method, names, list(five.train))
    torch.testing.assert_close(renamed.classify(f), twin.classify(f), atol=1e-6, rtol=0)


# The closed form removes the class from its covariance, too: tests/methods/test_closed_form.py, test_blend.py.
@pytest.mark.parametrize("name", sorted({*all_methods()} - {"closed_form", "blend"}))
def test_without_a_class_the_others_share_its_probability(name: str, five: Dataset, tiny: CLIP) -> None:
    method = fitted(name, five, tiny, **({"n_prompts": 1} if name == "dca" else {}))
    f = features_for(method)
    if name.startswith("tip_adapter"):
        with pytest.raises(UserError, match="no class can be removed"):
            method.without_class(0)
        return
    left = method.without_class(1)
    kept = [0, 2, 3, 4]
    others = method.classify(f)[:, kept]
    assert left.problem.names == tuple(five.names[c] for c in kept)
    torch.testing.assert_close(left.classify(f), others / others.sum(1, keepdim=True), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["clap", "cross_modal", "gda", "linear_probe", "sim", "tip_adapter", "tip_adapter_f"])
def test_methods_over_frozen_features_say_that_a_new_class_needs_a_fit(name: str, five: Dataset, tiny: CLIP) -> None:
    method = fitted(name, five, tiny)
    with pytest.raises(UserError, match=f"this {name} model cannot take a new class") as caught:
        method.with_class("zebra", support([], tiny))
    assert "fit again" in caught.value.hint
    if name in ("linear_probe", "sim"):
        assert torch.equal(method.with_name(0, "zebra").classify(features()), method.classify(features()))
        return
    with pytest.raises(UserError, match="cannot read another name") as caught:
        method.with_name(0, "zebra")
    assert "--label-only" in caught.value.render("cli")


@pytest.mark.parametrize(("name", "more"), OWN_TO_CLASSES)
def test_prompts_of_single_classes_cannot_be_used_for_a_new_one(
    name: str, more: dict[str, Any], five: Dataset, tiny: CLIP
) -> None:
    method = fitted(name, five, tiny, **more)
    with pytest.raises(UserError, match="belongs to the classes it has"):
        method.with_class("zebra", support([], tiny))
    if name == "lamm":
        with pytest.raises(UserError, match="cannot read another name"):
            method.with_name(0, "zebra")


@pytest.mark.parametrize("more", [{}, {"center": "visual"}, {"covariance": "ledoit_wolf"}])
def test_a_class_without_images_takes_the_covariance_of_all(more: dict[str, Any], five: Dataset, tiny: CLIP) -> None:
    """As a class with one image does: the other distances stay, and its own is about its text."""
    method: Any = fitted("dca", five, tiny, **more)
    added: Any = method.with_class("zebra", support([], tiny))
    assert added.options.test_metric == "mahalanobis"
    assert added.train_counts.tolist() == [4] * CLASSES + [0]
    f = features()
    old, new = method.head.distances(f), added.head.distances(f)
    torch.testing.assert_close(new[..., :CLASSES], old, atol=1e-5, rtol=1e-4)
    assert torch.isfinite(added.classify(f)).all()


def test_the_covariance_of_all_images_is_about_their_own_texts(five: Dataset, tiny: CLIP) -> None:
    method: Any = fitted("dca", five, tiny, center="text", gamma1=100, gamma2=50)
    added: Any = method.with_class("zebra", support([], tiny))
    texts, shots = added.text_features.double(), method.class_features
    for m, f in enumerate(features(len(texts)).double()):
        apart = shots.features.double() - texts[m, shots.labels()]
        sigma = dense_covariance(apart, torch.zeros(16), 100.0, 50.0, normalize=True)
        found = added.head.distances(f[None].float())[0, m, -1]
        torch.testing.assert_close(found.double(), dense_distance(sigma, f, texts[m, -1]), atol=1e-4, rtol=1e-4)


def test_classes_without_any_images_are_compared_by_euclidean_distances(five: Dataset, tiny: CLIP) -> None:
    method: Any = fitted("dca", five, tiny)
    for name in ("zebra", "cat"):
        method = method.with_class(name, support([], tiny))
    for _ in range(CLASSES):
        method = method.without_class(0)
    assert method.options.test_metric == "euclidean"
    assert method.problem.names == ("zebra", "cat")
    assert torch.isfinite(method.classify(features())).all()


def test_as_many_views_of_new_images_are_stored_as_of_the_others(five: Dataset, sample: Dataset, tiny: CLIP) -> None:
    method: Any = fitted("dca", five, tiny, head_views=2)
    new = [item for item in sample.train if item.label == CLASSES]
    assert method.with_class("zebra", support(new, tiny)).train_counts.tolist() == [8] * (CLASSES + 1)


@pytest.mark.parametrize(
    ("name", "more"), [("dca", {}), ("dca", {"center": "visual"}), ("coop", {"test_metric": "mahalanobis"})]
)
@pytest.mark.parametrize("shots", [(1, 1, 1, 1, 1), (1, 4, 2, 1, 3)])
def test_one_shot_distances_stay_when_classes_are_dropped(
    name: str, more: dict[str, Any], shots: tuple[int, ...], five: Dataset, tiny: CLIP
) -> None:
    """A class with one image takes the covariance of all images of the fit, also in a model without some of them."""
    train = tuple(item for c in range(CLASSES) for item in [i for i in five.train if i.label == c][: shots[c]])
    method: Any = fitted(name, dataclasses.replace(five, train=train), tiny, **more)
    kept = [3, 0]
    problem = dataclasses.replace(method.problem, names=tuple(method.problem.names[c] for c in kept))
    f = features()
    before = method.head.distances(f)[..., kept]
    moved = method.retarget(problem, kept)
    again = method.without_class(1).without_class(1).without_class(2).retarget(problem, [1, 0])
    for other in (moved, again):
        torch.testing.assert_close(other.head.distances(f), before, atol=1e-6, rtol=1e-6)
        assert other.train_counts.tolist() == [1, 1]
        assert int(other.other_counts.sum()) == len(train) - 2
    copied = type(method)(tiny, problem, moved.options)
    copied.restore(moved.state_dict())
    assert torch.equal(copied.head.distances(f), moved.head.distances(f))
    added = moved.with_class("zebra", support([], tiny))
    torch.testing.assert_close(added.head.distances(f)[..., :2], before, atol=1e-6, rtol=1e-6)


def test_images_of_dropped_classes_are_stored_only_where_a_covariance_needs_them(five: Dataset, tiny: CLIP) -> None:
    method: Any = fitted("dca", five, tiny)
    assert method.without_class(0).other_features.numel() == 0
    other: Any = type(method)(tiny, method.problem, method.options)
    broken = {**method.state_dict(), "other_counts": torch.tensor([3])}
    with pytest.raises(UserError, match="other_features: shape"):
        other.restore(broken)
