"""Leave-one-out scores against models that are literally refitted without the images."""

from __future__ import annotations

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from dca.methods.shared.experts import KernelRidge, TextGaussian


def unit(*shape: int, seed: int) -> Tensor:
    drawn = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return F.normalize(drawn + 0.5, dim=-1)


def literal(
    source: TextGaussian, rows: list[int], k: float, g: float, images: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Scores and squared distances of the images `rows`, or of `images`, by the module's equations without `rows`.

    ν, λ and t̃ are those of all images.
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
    every = sum((x[y == c] - x[y == c].mean(0)).square().sum() for c in range(C) if (y == c).any())
    sigma = S / source.nu + g * every / source.nu / D * torch.eye(D, dtype=torch.float64)
    P, m = torch.linalg.inv(sigma), torch.stack(centers)
    z = x[rows] if images is None else images
    scores = z @ P @ m.T - (m @ P * m).sum(-1) / 2
    squares = torch.stack([((z - c) @ P * (z - c)).sum(-1) for c in m], dim=1)
    return scores, squares


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
    assert torch.allclose(model.distance_correction(k), (n**2 - 1) / n**2)
    raw, squares = model.held_out(k, corrected=False)
    corrected, _ = model.held_out(k)
    own = source.labels[:, None] == torch.arange(2)
    assert torch.equal(raw[~own], corrected[~own])
    assert torch.allclose((corrected - raw)[own], squares[own] / 2 / n**2)


def test_the_linear_form_gives_the_scores() -> None:
    source = make(([3, 1, 4], 7, 5, 0))
    model, x = source.whiten(0.3), unit(9, 7, seed=9)
    W, b = model.linear(1.5)
    distances = model.distances(x, 1.5)
    differences = (x @ W.T + b) + distances / 2  # ½ xᵀ P x, the same for all classes
    assert (differences - differences[:, :1]).abs().max() < 1e-9


def test_where_little_can_be_left_out_the_covariance_is_that_about_the_texts() -> None:
    y = torch.tensor([0, 1, 2, 2, 3, 4])
    source = TextGaussian.from_features(unit(6, 5, seed=1), y, unit(5, 5, seed=2))
    assert not source.can_hold_out
    d = source.x - source.moved_text[y]
    values, vectors = source.spectrum
    assert torch.allclose(vectors * values @ vectors.T, d.T @ d / 6)


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
    found = source.whiten(1.0).scores_without_each(new, every, k)
    ridge = KernelRidge(source.x, source.labels, C, source.groups, width=2.0)
    predicted = ridge.predictions_without_each(new, every, 0.3)
    for i in range(len(source.x)):
        expected = literal(source, [i], k, 1.0, new)[0]
        assert (found[:, i] - expected).abs().max() < 1e-8 * (1 + expected.abs().max())
        rest = every[every != i]
        K, omega = ridge.kernel_values(source.x), ridge._root.square()
        lam = 0.3 * torch.linalg.eigvalsh(omega.sqrt()[:, None] * K * omega.sqrt()).mean()
        G = torch.linalg.inv(K[rest][:, rest] + lam * torch.diag(1 / omega[rest]))
        expected = ridge.kernel_values(new)[:, rest] @ G @ ridge.targets[rest]
        assert (predicted[:, i] - expected).abs().max() < 1e-8
