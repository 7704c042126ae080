from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset
from dca.methods.base import Problem
from dca.methods.linear_probe import FINE, LinearProbe, LinearProbeOptions, best_decade, objective, solve
from dca.methods.shared.logistic import Logistic
from dca.methods.summary import parameter_count
from oracles import logistic
from oracles.frozen import cross_entropy, dot, softmax
from oracles.images import Images

CLASSES = ("cat", "dog", "a photo", "x")


def build(clip: CLIP, **options: object) -> LinearProbe:
    return LinearProbe.build(clip, Problem(names=CLASSES, shots=3), LinearProbeOptions(**options))  # type: ignore[arg-type]


def problem(N: int, D: int, C: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(N)
    labels = torch.arange(N) % C
    centers = torch.randn(C, D, generator=generator)
    return centers[labels] + 2 * torch.randn(N, D, generator=generator), labels


def test_it_has_51300_parameters_on_vit_b_16() -> None:
    assert parameter_count(LinearProbe) == 51300


def test_the_objective_equals_the_equation() -> None:
    x, y = problem(9, 5, 3)
    W, b = torch.randn(3, 5, generator=torch.Generator().manual_seed(1)), torch.tensor([0.1, -0.4, 0.2])
    logits = [[dot(w, f) + c for w, c in zip(W.tolist(), b.tolist(), strict=True)] for f in x.tolist()]
    expected = sum(dot(w, w) for w in W.tolist()) / 2 + 0.7 * len(x) * cross_entropy(logits, y.tolist())
    assert float(objective(W, b, x, y, 0.7)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("N", "D"), [(40, 12), (12, 40)])
@pytest.mark.parametrize("c", [1e-3, 0.316, 100.0])
def test_the_solution_is_scikit_learns(N: int, D: int, c: float) -> None:
    """More images than dimensions, and fewer: the solver then works in the span of the features."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    x, y = problem(N, D, 4)
    W, b = solve(x, y, 4, c, iterations=5000)
    theirs = linear_model.LogisticRegression(C=c, tol=1e-10, max_iter=20000).fit(x.double().numpy(), y.numpy())
    ours = (x.double() @ W.T + b).softmax(dim=-1)
    torch.testing.assert_close(ours, torch.from_numpy(theirs.predict_proba(x.double().numpy())), atol=1e-5, rtol=0)


def test_the_gradient_vanishes_at_the_solution() -> None:
    x, y = problem(30, 8, 3)
    W, b = solve(x, y, 3, 1.0, iterations=1000)
    W, b = W.requires_grad_(), b.requires_grad_()
    (objective(W, b, x.double(), y, 1.0) / len(x)).backward()
    assert float(W.grad.abs().max()) < 10 * FINE  # type: ignore[union-attr]
    assert float(b.grad.abs().max()) < 10 * FINE  # type: ignore[union-attr]


class Given:
    """Training features as they are stored, and validation features."""

    def __init__(self, features: torch.Tensor, labels: torch.Tensor, validation: Given | None = None) -> None:
        self.features, self.labels, self.validation = features, labels, validation

    def frozen_features(self, *, views: int = 0, mirrored: bool = False, crop_low: float = 0.08) -> torch.Tensor:
        return self.features


def searched(given: Given, classes: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """W, b and c of the method."""
    clip = make_clip()
    names = tuple(f"class {n}" for n in range(classes))
    method = LinearProbe.build(clip, Problem(names=names, shots=3), LinearProbeOptions())
    method.weight = torch.nn.Parameter(torch.zeros(classes, given.features.shape[1], dtype=torch.float64))
    method.bias = torch.nn.Parameter(torch.zeros(classes, dtype=torch.float64))
    chosen: list[float] = []
    solved = Logistic.solve

    def watching(self: Logistic, c: float, **how: Any) -> torch.Tensor:
        chosen.append(c)
        return solved(self, c, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Logistic, "solve", watching)
        method.finish(given)  # type: ignore[arg-type]
    return method.weight.detach(), method.bias.detach(), chosen[-1]


def assert_as_written(given: Given, classes: int) -> None:
    """The chosen c, W and b are those of L-BFGS from zero for every c, each run to its minimum."""
    assert given.validation is not None
    W, b, c = searched(given, classes)
    x, y = given.features, given.labels
    assert c == logistic.search(x, y, classes, given.validation.features, given.validation.labels)
    weight, bias = logistic.solve(x, y, classes, c)
    assert float((W - weight).abs().max() / weight.abs().max()) < 1e-6
    assert float((b - bias).abs().max() / bias.abs().max()) < 1e-6


@pytest.mark.parametrize(("N", "D", "C"), [(24, 6, 3), (16, 40, 4), (33, 9, 2)])
def test_the_search_equals_the_route_as_written(N: int, D: int, C: int) -> None:
    x, y = problem(2 * N, D, C)
    assert_as_written(Given(x[:N], y[:N], Given(x[N:], y[N:])), C)


def test_on_images_the_search_equals_the_route_as_written(sample: Dataset) -> None:
    clip = CLIP.from_pretrained("mini")

    def features(items: Any) -> tuple[torch.Tensor, torch.Tensor]:
        four = [item for item in items if item.label < 4]
        pixels = clip.preprocess([item.image for item in four])
        return clip.encode_image(pixels).detach(), torch.tensor([item.label for item in four])

    assert_as_written(Given(*features(sample.train), Given(*features(sample.test))), 4)


@pytest.mark.parametrize("features", ["raw", "unit"])
def test_probabilities_equal_the_equation(clip: CLIP, features: str) -> None:
    images = Images((3, 3, 3, 3))
    method = build(clip, features=features)
    method.finish(images)
    method.build_head()
    got = method.classify(method.encode(images.pixels))
    f = clip.encode_image(images.pixels).detach()
    f = F.normalize(f, dim=-1) if features == "unit" else f
    for row, x in zip(got, f.double().tolist(), strict=True):
        weights = zip(method.weight.tolist(), method.bias.tolist(), strict=True)
        expected = softmax([dot(w, x) + b for w, b in weights])
        torch.testing.assert_close(row.double(), torch.tensor(expected, dtype=torch.float64), atol=1e-5, rtol=0)


def test_without_validation_images_c_is_clips(clip: CLIP) -> None:
    images = Images((2, 2, 2, 2))
    searched, fixed = build(clip), build(clip, c=0.316)
    searched.finish(images)
    searched.build_head()
    fixed.finish(images)
    fixed.build_head()
    assert torch.equal(searched.weight, fixed.weight)


@pytest.mark.parametrize("best", [-6.7, -3.1, 0.0, 0.4, 1.9, 5.2])
def test_the_search_closes_in_on_the_best_c(best: float) -> None:
    assert best_decade(lambda decade: -abs(decade - best)) == pytest.approx(best, abs=2 / 2**7)


def test_the_search_takes_the_left_end_of_a_plateau() -> None:
    """Every c alike: the first power of ten, then always the left end."""
    assert best_decade(lambda decade: 1.0) == 5.0


def test_c_is_searched_on_the_validation_images(clip: CLIP) -> None:
    """The validation images carry other labels than the training images: they alone decide."""
    images = Images((4, 4, 4, 4))
    fitted = {}
    for name, labels in (("same", images.labels), ("other", (images.labels + 1) % 4)):
        images.validation = Images((4, 4, 4, 4))
        images.validation.labels = labels
        fitted[name] = build(clip)
        fitted[name].finish(images)
        fitted[name].build_head()
    same = fitted["same"].classify(clip.encode_image(images.pixels)).argmax(-1)
    assert torch.equal(same, images.labels)
    assert not torch.equal(fitted["same"].weight, fitted["other"].weight)


def test_c_must_be_positive() -> None:
    with pytest.raises(UserError, match="out of range"):
        LinearProbeOptions(c=0.0)


def test_held_out_predictions_are_those_of_leave_one_out(clip: CLIP) -> None:
    images = Images((3, 4, 1, 3))
    method = build(clip, c=0.5)
    method.finish(images)
    held = method.predict_held_out(images)
    assert held is not None
    assert held.how == "approximate leave-one-out"
    assert held.known.tolist() == [y != 2 for y in images.labels.tolist()], "the only image of its class has none"
    assert held.probabilities[held.known].sum(axis=1) == pytest.approx(1)
    seen = method.build_head().classify(method.encode_all(images)).double().detach().numpy()
    own = [(row, int(y)) for row, y in enumerate(images.labels) if y != 2]
    assert all(held.probabilities[place] < seen[place] for place in own), "an unseen image is less certain"


def test_near_copies_are_left_to_folds(clip: CLIP) -> None:
    images = Images((2, 2, 2, 2))
    images.groups = torch.tensor([0, 0, 1, 2, 3, 4, 5, 6])
    method = build(clip, c=0.5)
    method.finish(images)
    assert method.predict_held_out(images) is None
