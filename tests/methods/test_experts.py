"""Leave-one-out scores against models that are literally refitted without the images."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from dca.methods.shared.experts import KernelRidge, LandmarkRidge, TextGaussian, image_weights
from oracles.variances import literal_variances


def unit(*shape: int, seed: int) -> Tensor:
    drawn = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return F.normalize(drawn + 0.5, dim=-1)


def literal(
    source: TextGaussian, rows: list[int], k: float, g: float, images: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Scores and squared distances of the images `rows`, or of `images`, by the module's equations without `rows`.

    ν, V, t̃ and the noise terms are those of all images.
    """
    x, y, C = source.x, source.labels, len(source.text)
    D = x.shape[1]
    seen = torch.tensor([i not in rows for i in range(len(x))])
    S = torch.zeros(D, D, dtype=torch.float64)
    centers = []
    for c in range(C):
        own = x[seen & (y == c)]
        if len(own):
            S += (own - own.mean(0)).T @ (own - own.mean(0))
        total = k * source.moved_text[c] + own.sum(0)
        centers.append(total / (k + len(own)) if k + len(own) > 0 else source.moved_text[c])
    sigma = S / source.nu + g * literal_variances(x, y)
    P, m = torch.linalg.inv(sigma), torch.stack(centers)
    z = x[rows] if images is None else images
    scores = z @ P @ m.T - (m @ P * m).sum(-1) / 2 + literal_noise(source, k, g)
    squares = torch.stack([((z - c) @ P * (z - c)).sum(-1) for c in m], dim=1)
    return scores, squares


def literal_noise(source: TextGaussian, k: float, g: float) -> Tensor:
    """½ T n_c / (k + n_c)² minus its mean, T from models that are refitted without each image that has no copy."""
    x, y, C = source.x, source.labels, len(source.text)
    distances: dict[int, list[float]] = {}
    for i, c in enumerate(y.tolist()):
        if (source.groups == source.groups[i]).sum() > 1 or not source.peers[i]:
            continue
        rest = torch.arange(len(x)) != i
        centers = torch.stack([x[rest & (y == other)].mean(0) for other in y.tolist()])
        residuals = (x - centers)[rest]
        sigma = residuals.T @ residuals / source.nu + g * literal_variances(x, y)
        d, n = x[i] - x[rest & (y == c)].mean(0), int((y == c).sum())
        distances.setdefault(c, []).append(float(d @ torch.linalg.inv(sigma) @ d) / (1 + 1 / (n - 1)))
    T = sum(sum(own) / len(own) for own in distances.values()) / max(len(distances), 1)
    n = torch.bincount(y, minlength=C).double()
    terms = T * n / (k + n).square().clamp_min(1e-12) / 2
    return terms - terms.mean()


tasks = st.builds(
    lambda counts, D, seed, copies: (counts, D, seed, copies),
    st.lists(st.integers(1, 5), min_size=2, max_size=4).filter(lambda counts: max(counts) > 1),
    st.integers(2, 12),
    st.integers(0, 10**6),
    st.integers(0, 3),
)


def make(task: tuple[list[int], int, int, int]) -> TextGaussian:
    """A task with `counts` images per class, of which the first `copies` + 1 leave together."""
    counts, D, seed, copies = task
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))]
    groups = torch.arange(len(y))
    groups[: copies + 1] = 0
    return TextGaussian.from_features(unit(len(y), D, seed=seed), y, unit(len(counts), D, seed=seed + 1), groups)


@settings(max_examples=60, deadline=None)
@given(tasks, st.sampled_from([0.0, 0.25, 1.0, 16.0]), st.sampled_from([0.1, 1.0, 100.0]))
def test_left_out_scores_are_those_of_a_refit_without_the_images(
    task: tuple[list[int], int, int, int], k: float, g: float
) -> None:
    source = make(task)
    assume(source.can_hold_out)
    scores, squares = source.whiten(g).held_out(k, corrected=False)
    for i in range(len(source.x)):
        together = (source.groups == source.groups[i]).nonzero()[:, 0].tolist()
        expected, distances = literal(source, together, k, g)
        at = together.index(i)
        size = 1 + expected.abs().max()
        assert (scores[i] - expected[at]).abs().max() < 1e-8 * size
        assert (squares[i] - distances[at]).abs().max() < 1e-8 * (1 + distances.abs().max())


def test_the_repair_is_the_ratio_of_two_expected_distances() -> None:
    source = make(([4, 3], 6, 3, 0))
    model, k = source.whiten(1.0), 2.0
    n = source.counts[source.labels] + k
    raw, squares = model.held_out(k, corrected=False)
    corrected, _ = model.held_out(k)
    own = source.labels[:, None] == torch.arange(2)
    assert torch.equal(raw[~own], corrected[~own])
    assert torch.allclose((corrected - raw)[own], squares[own] / 2 / n**2)


def test_the_linear_form_gives_the_scores() -> None:
    source = make(([3, 1, 4], 7, 5, 0))
    model, x = source.whiten(0.3), unit(9, 7, seed=9)
    W, b = model.linear(1.5)
    centers = torch.linalg.pinv(model.basis.T) @ model.centers(1.5).T  # (D, C), in their own coordinates
    P = model.basis @ model.basis.T
    distances = torch.stack([((x - m) @ P * (x - m)).sum(-1) for m in centers.T], dim=1)
    differences = (x @ W.T + b) + distances / 2 - model.noise_terms(1.5)  # ½ xᵀ P x, the same for all classes
    assert (differences - differences[:, :1]).abs().max() < 1e-9


def test_where_little_can_be_left_out_the_covariance_is_that_about_the_texts() -> None:
    y = torch.tensor([0, 1, 2, 2, 3, 4])
    source = TextGaussian.from_features(unit(6, 5, seed=1), y, unit(5, 5, seed=2))
    assert not source.can_hold_out
    d = source.x - source.moved_text[y]
    values, vectors = source.spectrum
    P = torch.linalg.inv(d.T @ d / 6 + 3 * d.square().sum() / 6 / 5 * torch.eye(5, dtype=torch.float64))
    assert torch.allclose(vectors / (values + 3) @ vectors.T, P)


def test_where_little_can_be_left_out_the_means_have_equal_length() -> None:
    y = torch.tensor([0, 1, 2, 2, 3, 4])
    source = TextGaussian.from_features(unit(6, 5, seed=1), y, unit(5, 5, seed=2))
    k, g, x = 0.7, 3.0, unit(4, 5, seed=3)
    W, b = source.whiten(g).linear(k)
    d = source.x - source.moved_text[y]
    P = torch.linalg.inv(d.T @ d / 6 + g * d.square().sum() / 6 / 5 * torch.eye(5, dtype=torch.float64))
    m = torch.stack([(k * source.moved_text[c] + source.x[y == c].sum(0)) / (k + (y == c).sum()) for c in range(5)])
    c = m - m.mean(0)
    lengths = torch.stack([(one @ P @ one).sqrt() for one in c])
    expected = (x - m.mean(0)) @ P @ c.T * lengths.mean() / lengths
    assert torch.allclose(x @ W.T + b, expected)
    assert source.whiten(g).mean_length(k) == pytest.approx(float(lengths.mean()))


def test_more_dimensions_than_vectors_give_the_scores_of_all_dimensions() -> None:
    y = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    source = TextGaussian.from_features(unit(8, 40, seed=1), y, unit(3, 40, seed=2))
    assert source.spectrum[0].shape == (11,)
    x, k, g = unit(5, 40, seed=3), 1.5, 0.3
    W, b = source.whiten(g).linear(k)
    expected, _ = literal(source, [], k, g, x)
    assert ((x @ W.T + b) - expected).abs().max() < 1e-8


def test_features_of_small_variance_count_more_and_few_images_say_little_about_them() -> None:
    generator = torch.Generator().manual_seed(0)
    width = torch.tensor([3.0] * 10 + [0.3] * 10)
    x = torch.randn(600, 20, dtype=torch.float64, generator=generator) * width
    many = TextGaussian.from_features(x, torch.arange(600) % 2, torch.zeros(2, 20)).deviations
    few = TextGaussian.from_features(x[:4], torch.tensor([0, 0, 1, 1]), torch.zeros(2, 20)).deviations
    assert float(few.max() / few.min()) < 1.5 < 5 < float(many.max() / many.min())


def test_features_of_a_relu_have_one_variance() -> None:
    x = torch.rand(40, 6, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1, 1, 9, 9, 9])
    signed = x.clone()
    signed[0, 0] = -0.1
    one, each = (TextGaussian.from_features(z, torch.arange(40) % 2, torch.zeros(2, 6)).deviations for z in (x, signed))
    assert float(one.max() / one.min()) == 1
    assert float(each.max() / each.min()) > 1.2


def test_the_noise_of_a_rare_mean_is_taken_out() -> None:
    # Same distribution in both classes: without the terms the rare class, whose mean is longer, is never predicted.
    drawn = torch.randn(404, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x, y = F.normalize(drawn, dim=-1), torch.tensor([0] * 200 + [1] * 4)
    source = TextGaussian.from_features(x[:204], y, torch.zeros(2, 300))
    model = source.whiten(1.0)
    W, b = model.linear(0.0)
    rare = ((x[204:] @ W.T + b).argmax(-1) == 1).double().mean()
    without = ((x[204:] @ W.T + b - model.noise_terms(0.0)).argmax(-1) == 1).double().mean()
    assert without < 0.02
    assert 0.3 < rare < 0.7


def test_copies_repair_the_distance_to_every_class_that_lost_one() -> None:
    source = make(([4, 3], 6, 3, 0))
    first = [int((source.labels == c).nonzero()[0]) for c in (0, 1)]
    source.groups[first] = 0
    _, groups = torch.unique(source.groups, return_inverse=True)
    source = TextGaussian(source.x, source.labels, source.text, groups)
    model, k = source.whiten(1.0), 2.0
    raw, squares = model.held_out(k, corrected=False)
    repaired, _ = model.held_out(k)
    n = source.counts + k
    expected = squares[first] * (1 - (n**2 - 1) / n**2) / 2
    assert torch.allclose((repaired - raw)[first], expected)


def test_fixed_shares_keep_the_weight_of_the_text() -> None:
    source, k, g = make(([4, 3], 6, 3, 0)), 2.0, 1.0
    held, _ = source.whiten(g).held_out(k, corrected=False, fixed_shares=True)
    for i, c in enumerate(source.labels.tolist()):
        rest = torch.arange(7) != i
        means = torch.stack([source.x[rest & (source.labels == o)].mean(0) for o in (0, 1)])
        residuals = (source.x - means[source.labels])[rest]
        P = torch.linalg.inv(residuals.T @ residuals / source.nu + g * literal_variances(source.x, source.labels))
        n = source.counts[:, None]
        m = (k * source.moved_text + n * means) / (k + n)
        scores = source.x[i] @ P @ m.T - (m @ P * m).sum(-1) / 2 + literal_noise(source, k, g)
        assert torch.allclose(held[i], scores), c


@settings(max_examples=40, deadline=None)
@given(tasks, st.sampled_from([0.01, 1.0, 10.0]))
def test_left_out_predictions_of_kernel_ridge_are_those_of_a_refit(
    task: tuple[list[int], int, int, int], rho: float
) -> None:
    source = make(task)
    C = len(source.text)
    ridge = KernelRidge(source.x, source.labels, C, source.groups, width=2.0)
    held = ridge.held_out(rho)
    K = torch.exp(-ridge.rate * (1 - source.x @ source.x.T))
    counts = torch.bincount(source.labels).double()
    omega = len(source.x) / (C * counts[source.labels])
    lam = rho * torch.linalg.eigvalsh(omega.sqrt()[:, None] * K * omega.sqrt()).mean()
    for i in range(len(source.x)):
        rest = (source.groups != source.groups[i]).nonzero()[:, 0]
        if not len(rest):
            continue
        G = torch.linalg.inv(K[rest][:, rest] + lam * torch.diag(1 / omega[rest]))
        expected = K[i, rest] @ G @ F.one_hot(source.labels[rest], C).double()
        assert (held[i] - expected).abs().max() < 1e-8


def test_the_rate_is_the_width_over_the_mean_distance_of_two_images() -> None:
    source = make(([3, 2], 5, 4, 0))
    ridge = KernelRidge(source.x, source.labels, 2, source.groups, width=2.0)
    pairs = [float(1 - a @ b) for i, a in enumerate(source.x) for b in source.x[:i]]
    assert abs(ridge.rate - 2 * len(pairs) / sum(pairs)) < 1e-9
    assert torch.allclose(ridge.kernel_values(source.x).diagonal(), torch.ones(5, dtype=torch.float64))


@settings(max_examples=25, deadline=None)
@given(tasks, st.sampled_from([0.0, 2.0]))
def test_scores_of_new_images_without_each_image_are_those_of_refits(
    task: tuple[list[int], int, int, int], k: float
) -> None:
    source = make((*task[:3], 0))
    assume(source.can_hold_out)
    every, D, C = torch.arange(len(source.x)), source.x.shape[1], len(source.text)
    new = unit(3, D, seed=task[2] + 7)
    found = source.whiten(1.0).without_each(every, k)(new)
    ridge = KernelRidge(source.x, source.labels, C, source.groups, width=2.0)
    predicted = ridge.without_each(every, 0.3)(new)
    for i in range(len(source.x)):
        expected = literal(source, [i], k, 1.0, new)[0]
        assert (found[:, i] - expected).abs().max() < 1e-8 * (1 + expected.abs().max())
        rest = every[every != i]
        K, omega = ridge.kernel_values(source.x), ridge._root.square()
        lam = 0.3 * torch.linalg.eigvalsh(omega.sqrt()[:, None] * K * omega.sqrt()).mean()
        G = torch.linalg.inv(K[rest][:, rest] + lam * torch.diag(1 / omega[rest]))
        expected = ridge.kernel_values(new)[:, rest] @ G @ ridge.targets[rest]
        assert (predicted[:, i] - expected).abs().max() < 1e-8


def literal_landmarks(ridge: LandmarkRidge, rho: float, rows: list[int], images: Tensor) -> Tensor:
    """Predictions (B, C) for images (B, D) by the weighted least squares over the landmarks without `rows`."""
    kernel = torch.exp(-ridge.rate * (1 - ridge.x @ ridge.keys.T))
    between = torch.exp(-ridge.rate * (1 - ridge.keys @ ridge.keys.T))
    omega = image_weights(ridge.labels, ridge.classes)
    rest = torch.tensor([i not in rows for i in range(len(ridge.x))])
    K, W = kernel[rest], torch.diag(omega[rest])
    targets = F.one_hot(ridge.labels[rest], ridge.classes).double()
    A = torch.linalg.solve(K.T @ W @ K + rho * between, K.T @ W @ targets)
    return torch.exp(-ridge.rate * (1 - images @ ridge.keys.T)) @ A


@pytest.mark.parametrize("rho", [0.03, 1.0])
def test_landmarks_give_the_least_squares_over_them_with_and_without_images(rho: float) -> None:
    source = make(([9, 4, 7], 8, 5, 2))
    ridge = LandmarkRidge.with_landmarks(source.x, source.labels, 3, source.groups, 2.0, 9)
    assert torch.bincount(source.labels[ridge.landmarks]).tolist() == [3, 3, 3]
    new, every = unit(4, 8, seed=11), list(range(20))
    found = ridge.kernel_values(new) @ ridge.coefficients(rho)
    assert (found - literal_landmarks(ridge, rho, [], new)).abs().max() < 1e-6
    held = ridge.held_out(rho)
    for i in every:
        together = (source.groups == source.groups[i]).nonzero()[:, 0].tolist()
        assert (held[i] - literal_landmarks(ridge, rho, together, source.x[i : i + 1])[0]).abs().max() < 1e-6, i
    assert torch.allclose(ridge.held_out(rho, torch.tensor([7, 0, 12])), held[[7, 0, 12]])
    alone = [i for i in every if (source.groups == source.groups[i]).sum() == 1]
    each = ridge.without_each(torch.tensor(alone), rho)(new)
    for n, i in enumerate(alone):
        assert (each[:, n] - literal_landmarks(ridge, rho, [i], new)).abs().max() < 1e-6


def test_all_images_as_landmarks_give_the_whole_regression() -> None:
    source = make(([5, 3], 6, 2, 1))
    whole = KernelRidge(source.x, source.labels, 2, source.groups, 2.0)
    ridge = LandmarkRidge.with_landmarks(source.x, source.labels, 2, source.groups, 2.0, 8)
    new = unit(3, 6, seed=4)
    for rho in (0.1, 1.0):
        expected = whole.kernel_values(new) @ whole.coefficients(rho)
        assert (ridge.kernel_values(new) @ ridge.coefficients(rho) - expected).abs().max() < 1e-6
        assert (ridge.held_out(rho) - whole.held_out(rho)).abs().max() < 1e-6
