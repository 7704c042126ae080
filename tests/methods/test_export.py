"""Every method as one program from pixels to probabilities, with a batch of any size."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from conftest import make_clip
from dca.core import seeds
from dca.methods.base import Batch, HeldOutPredictions, Method, Problem, TrainedMethod
from dca.methods.registry import all_methods, get_method
from dca.model.conformance import require_exported
from oracles.images import Images

CLASSES = ("cat", "dog", "a photo", "x", "café")
COUNTS = (3, 1, 2, 6, 3)
# Further heads, by method and options.
HEADS: list[tuple[str, dict[str, Any]]] = [
    ("dca", {"test_metric": "euclidean"}),
    ("dca", {"test_metric": "cosine"}),
    ("dca", {"center": "visual"}),
    ("dca", {"covariance": "oas"}),
    ("dca", {"score": "negative"}),
    ("coop", {"test_metric": "mahalanobis"}),
    ("coop", {"test_metric": "euclidean"}),
    ("cross_modal", {"form": "partial"}),
    ("vpt", {"placement": "maple"}),
    ("blend", {"trained": "tip_adapter"}),
]


class OneStep:
    """Fits another method as `finished` does, and says that it is worth something."""

    def __init__(self, images: Images) -> None:
        self.labels = images.labels

    def fit(self, kind: type[Method], chosen: Any) -> Method:
        return finished(kind.name, **dataclasses.asdict(chosen))

    def predict_held_out(self, kind: type[Method], chosen: Any, folds: int) -> HeldOutPredictions:
        right = F.one_hot(self.labels, len(CLASSES)).double()
        return HeldOutPredictions((0.9 * right + 0.1 / len(CLASSES)).numpy(), f"{folds}-fold cross-validation")


def finished(name: str, **options: object) -> Method:
    """A method after one step, with unequal numbers of images."""
    kind, images = get_method(name), Images(COUNTS)
    images.fitter = OneStep(images)
    method = kind.build(make_clip(), Problem(names=CLASSES, shots=3, seed=1), kind.Options(**options))  # type: ignore[arg-type]
    if isinstance(method, TrainedMethod):
        rows, labels = images.pixels, images.labels
        if method.trains_on == "features":
            rows, labels = method.training_rows(images)
        method.prepare(images)
        optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
        terms = method.step(Batch(rows[:8], labels[:8], seeds.generator(0, "test"))).terms
        torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    else:
        method.prepare(images)
    method.finish(images)
    return method.build_head()


# What methods of several kinds export; the others take the time of the test, not another way.
USUAL = ("clip_svd", "closed_form", "coop", "dca", "gallop", "maple", "tip_adapter_f", "two_sfs")
DEFAULTS = [
    pytest.param(name, {}, id=name, marks=[] if name in USUAL else [pytest.mark.slow]) for name in sorted(all_methods())
]


@pytest.mark.parametrize(("name", "options"), [*DEFAULTS, *HEADS])
def test_it_is_exported_with_a_dynamic_batch(name: str, options: dict[str, Any]) -> None:
    require_exported(finished(name, **options))


@pytest.mark.parametrize("name", ["zero_shot", "tip_adapter", "dca"])
def test_a_temperature_is_exported_with_it(name: str) -> None:
    method = finished(name)
    pixels = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        before = method.classify(method.encode(pixels))
        method.temperature = 1.7
        after = method.classify(method.encode(pixels))
    torch.testing.assert_close(after, (before.double().log() / 1.7).softmax(dim=-1))
    assert torch.equal(after.argmax(-1), before.argmax(-1))
    require_exported(method)
