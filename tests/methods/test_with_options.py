from __future__ import annotations

from typing import Any

import pytest
import torch

from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.methods.base import Method, Problem
from dca.methods.registry import get_method
from oracles.images import Images

CLASSES = ("cat", "dog", "a photo", "x")


def finished(clip: CLIP, name: str, images: Images, **options: Any) -> Method:
    kind = get_method(name)
    problem = Problem(names=CLASSES, shots=3, seed=1)
    method = kind.build(clip, problem, kind.parse_options(options))
    with torch.no_grad():
        method.finish(images)
        return method.build_head()


FROM = {"center": "text", "gamma1": 100.0, "gamma2": 50.0}
CHANGES = [
    {"gamma1": 40.0, "gamma2": 3.0},
    {"gamma1": 1.0, "gamma2": 100.0, "floor": 0.01},
    {"center": "visual"},
    {"covariance": "ledoit_wolf"},
]
OF_DCA = [{"test_metric": "euclidean"}, {"normalize": False, "score": "negative"}, {"tau": 5.0, "eps": 0.1}]
OF_DCA += [{"gamma1": None, "gamma2": None}, {"center": "chosen"}]
OF_DCA += [{"anchors": "means"}, {"anchors": "both", "test_metric": "cosine"}]


@pytest.mark.parametrize("changes", [*CHANGES, *OF_DCA])
def test_a_head_made_again_is_that_of_a_fit_with_these_values(clip: CLIP, changes: dict[str, Any]):
    images = Images((3, 3, 1, 4))
    before, fresh = finished(clip, "dca", images, **FROM), finished(clip, "dca", images, **{**FROM, **changes})
    after = before.with_options(changes)
    f = before.encode(images.pixels)
    assert torch.equal(after.classify(f), fresh.classify(f))
    assert after.options == fresh.options
    assert not torch.equal(before.classify(f), after.classify(f))
    assert before.options.gamma1 == FROM["gamma1"], "the model itself stays"
    assert all(a is b for a, b in zip(before.parameters(), after.parameters(), strict=True))


@pytest.mark.parametrize("changes", CHANGES)
def test_methods_with_covariances_of_dca_have_the_same_options(clip: CLIP, changes: dict[str, Any]):
    images = Images((3, 3, 1, 4))
    before = finished(clip, "coop", images, test_metric="mahalanobis")
    fresh = finished(clip, "coop", images, test_metric="mahalanobis", **changes)
    f = before.encode(images.pixels)
    assert torch.equal(before.with_options(changes).classify(f), fresh.classify(f))


def test_texts_are_read_and_auto_is_the_default(clip: CLIP):
    method = finished(clip, "dca", Images((3, 3, 3, 3)))
    changed = method.with_options(["gamma1=700", "gamma2 = 20"])
    assert (changed.options.gamma1, changed.options.gamma2) == (700.0, 20.0)
    assert changed.with_options(["gamma1=auto", "gamma2=auto"]).options == method.options


def test_a_temperature_stays_with_the_head_it_was_fitted_for(clip: CLIP):
    method = finished(clip, "dca", Images((3, 3, 3, 3)))
    method.temperature = 2.0
    assert method.with_options({"gamma1": method.options.gamma1}) is method
    assert method.with_options({"gamma1": 9999.0}).temperature == 1.0
    assert method.temperature == 2.0


def test_setting_a_tensor_of_the_copy_leaves_the_original(clip: CLIP):
    method = finished(clip, "dca", Images((3, 3, 3, 3)))
    copied = method.with_options({"gamma1": 900.0})
    copied.text_features = torch.zeros(1)
    assert method.text_features.numel() > 1


@pytest.mark.parametrize(
    ("name", "options", "changes", "said"),
    [
        ("dca", {}, {"gamma1": 5.0, "n_prompts": 2}, r"n_prompts of this finished dca model.*gamma1, gamma2, floor"),
        ("coop", {}, {"gamma1": 5.0}, r"gamma1 of this finished coop model.*no option to change"),
        ("zero_shot", {}, {"ensemble": "seven"}, "ensemble of this .*no option to change"),
        ("dca", {}, {"gama1": 5.0}, "unknown option 'gama1'"),
        ("dca", {}, {"gamma1": -1.0}, "gamma1"),
    ],
)
def test_other_options_are_refused(clip: CLIP, name: str, options: dict[str, Any], changes: dict[str, Any], said: str):
    method = finished(clip, name, Images((2, 2, 2, 2)), **options)
    with pytest.raises(UserError, match=f"(?s){said}"):
        method.with_options(changes)


def test_head_options_are_options(clip: CLIP):
    from dca.methods.registry import all_methods

    for kind in all_methods().values():
        assert set(kind.head_options) <= set(kind.Options.__dataclass_fields__)
