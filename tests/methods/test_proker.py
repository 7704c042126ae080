from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.clip import CLIP
from dca.methods.base import Problem
from dca.methods.proker import BY_SHOTS, COMMON, MAX_ROWS, PAPER_TABLE, ProKeR, ProKeROptions, grid_values
from dca.methods.shared.frozen_features import accuracy
from dca.methods.summary import parameter_count
from oracles.frozen import softmax
from oracles.images import Images
from oracles.proker import kernel, objective, predict, solve

CLASSES = ("cat", "dog", "a photo", "x")
SETTINGS: dict[str, Any] = {"beta": 1.7, "ridge": 0.3, "views": 0}


def build(clip: CLIP, images: Images, shots: int = 3, dataset: str = "", **options: Any) -> ProKeR:
    problem = Problem(names=CLASSES, shots=shots, dataset=dataset)
    method = ProKeR.build(clip, problem, ProKeROptions(**options))
    method.finish(images)  # type: ignore[arg-type]
    return method.build_head()


def unit_features(clip: CLIP, pixels: Tensor) -> list[list[float]]:
    return F.normalize(clip.encode_image(pixels).detach().double(), dim=-1).tolist()


def unit_texts(clip: CLIP) -> list[list[float]]:
    texts = clip.encode_text([f"a photo of a {name}." for name in CLASSES]).detach()
    return F.normalize(texts.double(), dim=-1).tolist()


@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (1, 1, 1, 1), (4, 1, 2, 3)])
@pytest.mark.parametrize("correction", ["code", "minimizer"])
@pytest.mark.parametrize("rows", ["views", "images"])
def test_probabilities_equal_the_equations(clip: CLIP, counts: tuple[int, ...], correction: Any, rows: Any) -> None:
    images = Images(counts)
    method = build(clip, images, **{**SETTINGS, "views": 2}, correction=correction, rows=rows)
    one, other = (unit_features(clip, images.view(v, 0.5)) for v in range(2))
    x, y = one + other, images.labels.tolist() * 2
    if rows == "images":
        means = [[(a + b) / 2 for a, b in zip(f, g, strict=True)] for f, g in zip(one, other, strict=True)]
        x, y = F.normalize(torch.tensor(means), dim=-1).tolist(), images.labels.tolist()
    new = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(4))
    minimizer, text = correction == "minimizer", unit_texts(clip)
    expected = [
        softmax([clip.tau * f for f in predict(query, x, y, text, beta=1.7, ridge=0.3, minimizer=minimizer)])
        for query in unit_features(clip, new)
    ]
    torch.testing.assert_close(
        method.classify(method.encode(new)).double(), torch.tensor(expected).double(), atol=2e-5, rtol=1e-4
    )


def test_the_minimizer_has_the_least_objective() -> None:
    """Σ ‖f(x_i) - y_i‖² + λ ‖f - f₀‖² of the solution, and of others near it."""
    generator = torch.Generator().manual_seed(0)
    x = F.normalize(torch.randn(5, 4, generator=generator, dtype=torch.float64), dim=-1).tolist()
    residuals = torch.randn(5, 3, generator=generator, dtype=torch.float64).tolist()
    gram = [[kernel(a, b, 2.0) for b in x] for a in x]
    ridge = 0.4

    def cost(A: list[list[float]]) -> float:
        left = [[residuals[i][c] - sum(gram[i][j] * A[j][c] for j in range(5)) for c in range(3)] for i in range(5)]
        return objective(left, A, gram, ridge)

    system = [[gram[i][j] / ridge + (i == j) for j in range(5)] for i in range(5)]
    best = [[value / ridge for value in row] for row in solve(system, residuals)]
    for i in range(5):
        for step in (-1e-3, 1e-3):
            moved = [list(row) for row in best]
            moved[i][1] += step
            assert cost(moved) > cost(best)


@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (4, 1, 2, 3)])
@pytest.mark.parametrize("views", [0, 3])
@pytest.mark.parametrize("correction", ["code", "minimizer"])
def test_held_out_predictions_are_those_of_a_model_without_the_image(
    clip: CLIP, counts: tuple[int, ...], views: int, correction: Any
) -> None:
    images = Images(counts)
    images.groups = images.groups.clone()
    images.groups[1] = images.groups[0]  # copies leave together
    method = build(clip, images, **{**SETTINGS, "views": views}, correction=correction)
    held = method.predict_held_out(images)  # type: ignore[arg-type]
    assert held is not None
    assert held.how == "leave-one-out"
    x = [unit_features(clip, images.view(v, 0.5)) for v in range(views)] or [unit_features(clip, images.pixels)]
    queries, groups, labels = unit_features(clip, images.pixels), images.groups.tolist(), images.labels.tolist()
    for i, query in enumerate(queries):
        kept = [j for j, group in enumerate(groups) if group != groups[i]]
        alone = labels[i] not in {labels[j] for j in kept}
        assert bool(torch.tensor(held.probabilities[i]).isnan().all()) is alone
        if alone:
            continue
        rows = [view[j] for view in x for j in kept]
        y = [labels[j] for _ in x for j in kept]
        values = predict(query, rows, y, unit_texts(clip), beta=1.7, ridge=0.3, minimizer=correction == "minimizer")
        expected = softmax([clip.tau * value for value in values])
        assert held.probabilities[i].tolist() == pytest.approx(expected, abs=1e-5)


def test_beta_and_ridge_are_the_first_best_of_the_grid(clip: CLIP) -> None:
    validation = Images((4, 4, 4, 4), seed=7)
    images = Images((3, 3, 3, 3), validation=validation)
    chosen = build(clip, images, views=0)
    scores = {}
    for beta in grid_values(*COMMON[0]):
        for ridge in grid_values(*COMMON[1]):
            fitted = build(clip, Images((3, 3, 3, 3)), views=0, beta=beta, ridge=ridge)
            scores[beta, ridge] = accuracy(fitted.classify(fitted.encode(validation.pixels)), validation.labels)
    best = next(pair for pair, score in scores.items() if score == max(scores.values()))
    assert tuple(chosen.beta_ridge.tolist()) == pytest.approx(best)
    assert max(scores.values()) > min(scores.values())
    options = chosen.options_for_folds(chosen.options)
    assert (options.beta, options.ridge) == pytest.approx(best)


def test_one_of_them_can_be_set_and_the_other_is_searched(clip: CLIP) -> None:
    images = Images((3, 3, 3, 3), validation=Images((2, 2, 2, 2), seed=7))
    method = build(clip, images, views=0, beta=2.0)
    assert float(method.beta_ridge[0]) == 2.0
    assert min(abs(float(method.beta_ridge[1]) - ridge) for ridge in grid_values(*COMMON[1])) < 1e-12


@pytest.mark.parametrize(("shots", "expected"), [(1, 1), (3, 2), (16, 16), (100, 16)])
def test_without_validation_images_they_are_those_of_imagenet_by_shots(clip: CLIP, shots: int, expected: int) -> None:
    method = build(clip, Images((3, 3, 3, 3)), shots=shots, views=0)
    assert tuple(method.beta_ridge.tolist()) == pytest.approx(BY_SHOTS[expected])


def test_the_grid_of_a_dataset_is_for_the_rules_of_the_paper_only(clip: CLIP) -> None:
    validation = Images((1, 1, 1, 1), seed=7)
    images = Images((1, 1, 1, 1), validation=validation)
    first = {
        rules: build(clip, images, dataset="oxford_pets", rules=rules, views=0, beta=1.0)
        for rules in ("paper", "strict")
    }
    pets = grid_values(*PAPER_TABLE["oxford_pets"][1])
    assert min(abs(float(first["paper"].beta_ridge[1]) - ridge) for ridge in pets) < 1e-12
    assert min(abs(float(first["strict"].beta_ridge[1]) - ridge) for ridge in grid_values(*COMMON[1])) < 1e-12


def test_many_views_become_one_row_per_image(clip: CLIP) -> None:
    images = Images((3, 3, 3, 3))
    assert len(build(clip, images, views=5).keys) == 60
    per_class = MAX_ROWS // 20 + 1
    many = build(clip, Images((per_class,) * 4), views=5, beta=1.0, ridge=0.1)
    assert len(many.keys) == 4 * per_class


def test_without_training_rows_of_weight_it_is_zero_shot(clip: CLIP) -> None:
    """A small λ leaves f₀: the correction has the factor λ."""
    method = build(clip, Images((2, 2, 2, 2)), **{**SETTINGS, "ridge": 1e-9, "beta": 20.0})
    new = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(4))
    text = torch.tensor(unit_texts(clip), dtype=torch.float32)
    expected = (clip.tau * method.encode(new) @ text.T).softmax(dim=-1)
    torch.testing.assert_close(method.classify(method.encode(new)), expected, atol=1e-5, rtol=1e-4)


def test_a_class_is_removed_with_its_column(clip: CLIP) -> None:
    method = build(clip, Images((2, 3, 1, 2)), **SETTINGS)
    f = method.encode(Images((2, 3, 1, 2)).pixels)
    kept = [0, 1, 3]
    whole, left = method.classify(f)[:, kept], method.without_class(2).classify(f)
    torch.testing.assert_close(left, whole / whole.sum(dim=1, keepdim=True), atol=1e-5, rtol=1e-4)


def test_nothing_is_trained_and_options_say_where_they_come_from() -> None:
    assert parameter_count(ProKeR) == 0
    sources = {field.name: field.metadata["source"] for field in dataclasses.fields(ProKeROptions)}
    assert sources["views"] == sources["correction"] == "its code"
