from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from dca.core.errors import UserError
from dca.methods.shared import metric
from dca.methods.shared.class_features import ClassFeatures
from dca.methods.shared.gaussian import GAMMAS, Gaussian
from dca.methods.shared.heads import ClassPrecisions, MahalanobisHead
from oracles.dca import dense_covariance, dense_distance

PAIRS = [*sorted(set(GAMMAS.values())), (50.0, 0.0), (5.0, 0.0), (1.0, 1.0 - 1e-3)]


def units(*shape: int, seed: int, spread: float = 1.0) -> Tensor:
    """Random unit vectors around a common direction, float64."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(shape[-1], generator=generator, dtype=torch.float64)
    return F.normalize(base + spread * torch.randn(shape, generator=generator, dtype=torch.float64), dim=-1)


def mahalanobis_head(
    x: Tensor, u: Tensor, gammas: tuple[float, float], center: str, normalize: bool = True
) -> MahalanobisHead:
    """x: (C, K, D)."""
    gaussian = Gaussian("additive", gamma1=gammas[0], gamma2=gammas[1], normalize=normalize)
    shots = ClassFeatures(x.flatten(0, 1), torch.full((len(x),), x.shape[1]))
    return MahalanobisHead.from_text(u, shots, gaussian, tau=100.0, center=center)


# For classes with several images, and the γ of those with one.
UNEQUAL = Gaussian("additive", gamma1=600.0, gamma2=100.0, normalize=True, single=(500.0, 300.0))


@pytest.mark.parametrize("center", ["visual", "text"])
@pytest.mark.parametrize("gammas", PAIRS)
@pytest.mark.parametrize("K", range(2, 17))
def test_structured_distance_equals_the_dense_inverse(K: int, gammas: tuple[float, float], center: str) -> None:
    C, M, N, D = 3, 2, 4, 24
    x, u, f = units(C, K, D, seed=K), units(M, C, D, seed=100 + K), units(N, D, seed=200 + K)
    for normalize in (True, False):
        head = mahalanobis_head(x, u, gammas, center, normalize)
        got = head.distances(f)
        for m, c, n in itertools.product(range(M), range(C), range(N)):
            middle = x[c].mean(0) if center == "visual" else u[m, c]
            expected = dense_distance(dense_covariance(x[c], middle, *gammas, normalize), f[n], u[m, c])
            assert abs(got[n, m, c] - expected) <= 1e-8 * abs(expected)


@pytest.mark.parametrize("center", ["visual", "text"])
@pytest.mark.parametrize(("C", "D"), [(5, 24), (30, 12)])
def test_one_shot_uses_one_pooled_covariance(C: int, D: int, center: str) -> None:
    """K = 1, with fewer and with more images than dimensions (the QR branch)."""
    M, N, gammas = 2, 3, GAMMAS[1]
    x, u, f = units(C, 1, D, seed=1), units(M, C, D, seed=2), units(N, D, seed=3)
    got = mahalanobis_head(x, u, gammas, center).distances(f)
    for m in range(M):
        rows = x[:, 0] - u[m] if center == "text" else x[:, 0] - x[:, 0].mean(0)
        sigma = dense_covariance(rows, torch.zeros(D, dtype=x.dtype), *gammas, normalize=True)
        for c, n in itertools.product(range(C), range(N)):
            expected = dense_distance(sigma, f[n], u[m, c])
            assert abs(got[n, m, c] - expected) <= 1e-8 * abs(expected)


@pytest.mark.parametrize("center", ["visual", "text"])
def test_unbalanced_classes_use_their_own_or_the_pooled_covariance(center: str) -> None:
    counts, D, M = [4, 1, 2, 1], 16, 2
    features = units(sum(counts), D, seed=4)
    labels = torch.tensor(counts).cumsum(0).new_tensor([0] * 4 + [1] + [2] * 2 + [3])
    u, f = units(M, 4, D, seed=5), units(3, D, seed=6)
    shots = ClassFeatures.group(features, labels, 4)
    got = MahalanobisHead.from_text(u, shots, UNEQUAL, tau=1.0, center=center).distances(f)
    for m, c in itertools.product(range(M), range(4)):
        mine = features[labels == c]
        if counts[c] > 1:
            middle = mine.mean(0) if center == "visual" else u[m, c]
            sigma = dense_covariance(mine, middle, 600.0, 100.0, True)
        else:
            rows = features - (features.mean(0) if center == "visual" else u[m, labels])
            sigma = dense_covariance(rows, torch.zeros(D, dtype=rows.dtype), 500.0, 300.0, True)
        for n in range(3):
            torch.testing.assert_close(got[n, m, c], dense_distance(sigma, f[n], u[m, c]), rtol=1e-8, atol=0)


def test_class_covariances_of_l_in_equal_the_dense_ones() -> None:
    counts, D = [4, 1, 2, 1], 16
    labels = torch.tensor([0] * 4 + [1] + [2] * 2 + [3])
    features = units(sum(counts), D, seed=7)
    table = ClassPrecisions.from_features(ClassFeatures.group(features, labels, 4), UNEQUAL, torch.float64)
    delta = units(4, D, seed=8)
    got = metric.quadratic_form(table[torch.arange(4)], delta)
    for c in range(4):
        mine, gammas = (features[labels == c], (600.0, 100.0)) if counts[c] > 1 else (features, (500.0, 300.0))
        sigma = dense_covariance(mine, mine.mean(0), *gammas, True)
        expected = delta[c] @ torch.linalg.inv(sigma) @ delta[c]
        torch.testing.assert_close(got[c], expected, rtol=1e-8, atol=0)


gammas_and_shape = {
    "K": st.integers(2, 16),
    "D": st.integers(3, 40),
    "seed": st.integers(0, 10**6),
    "gamma2": st.floats(0, 500),
    "more": st.floats(0.1, 500),
}


@settings(max_examples=60, deadline=None)
@given(**gammas_and_shape)
def test_shrinkage_is_positive_definite_whenever_gamma1_exceeds_gamma2(
    K: int, D: int, seed: int, gamma2: float, more: float
) -> None:
    x = units(K, D, seed=seed)
    U = metric.class_covariance_factors(x[None], torch.tensor([K]))
    form = metric.precision(U, gamma2 + more, gamma2)
    delta = units(D, seed=seed + 1)[None]
    assert metric.quadratic_form(form, delta)[0] > 0
    sigma = dense_covariance(x, x.mean(0), gamma2 + more, gamma2, True)
    torch.testing.assert_close(sigma.diagonal(), torch.ones(D, dtype=x.dtype))
    assert torch.linalg.eigvalsh(sigma)[0] > 0


@settings(max_examples=40, deadline=None)
@given(**gammas_and_shape, scale=st.floats(0.01, 100))
def test_distance_ignores_the_scale_of_the_covariance(
    K: int, D: int, seed: int, gamma2: float, more: float, scale: float
) -> None:
    U = metric.class_covariance_factors(units(1, K, D, seed=seed), torch.tensor([K]))
    f, u = units(3, D, seed=seed + 1), units(1, D, seed=seed + 2)
    assume(D * metric.mean_entries(U)[0].min() * min(scale, 1) ** 2 > 10 * metric.FLAT)
    one = metric.mahalanobis(metric.precision(U, gamma2 + more, gamma2), f, u)
    other = metric.mahalanobis(metric.precision(scale * U, gamma2 + more, gamma2), f, u)
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(K=st.integers(2, 16), D=st.integers(3, 40), seed=st.integers(0, 10**6))
def test_strong_shrinkage_gives_the_euclidean_distance(K: int, D: int, seed: int) -> None:
    U = metric.class_covariance_factors(units(1, K, D, seed=seed), torch.tensor([K]))
    f, u = units(3, D, seed=seed + 1), units(1, D, seed=seed + 2)
    got = metric.mahalanobis(metric.precision(U, 1e9, 0.0), f, u)
    torch.testing.assert_close(got, metric.euclidean(f, u), rtol=1e-5, atol=1e-7)


@settings(max_examples=40, deadline=None)
@given(R=st.integers(1, 9), D=st.integers(2, 30), seed=st.integers(0, 10**6))
def test_mean_entries_equal_those_of_the_dense_matrix(R: int, D: int, seed: int) -> None:
    U = torch.randn(R, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    sigma = U.T @ U
    v_d, v_o = metric.mean_entries(U)
    torch.testing.assert_close(v_d, sigma.diagonal().mean())
    torch.testing.assert_close(v_o, (sigma.sum() - sigma.trace()) / (D * (D - 1)))


@settings(max_examples=40, deadline=None)
@given(K=st.integers(2, 9), D=st.integers(3, 30), seed=st.integers(0, 10**6))
def test_precision_times_solves_with_the_dense_matrix(K: int, D: int, seed: int) -> None:
    x, u = units(K, D, seed=seed), units(1, D, seed=seed + 1)
    form = metric.precision(metric.class_covariance_factors(x[None], torch.tensor([K])), 20.0, 3.0)
    expected = torch.linalg.solve(dense_covariance(x, x.mean(0), 20.0, 3.0, True), u[0])
    torch.testing.assert_close(metric.precision_times(form, u)[0], expected, rtol=1e-8, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(N=st.integers(1, 6), C=st.integers(1, 6), D=st.integers(1, 30), seed=st.integers(0, 10**6))
def test_euclidean_equals_the_sum_of_squares(N: int, C: int, D: int, seed: int) -> None:
    f, u = units(N, D, seed=seed), units(2, C, D, seed=seed + 1)
    expected = (f - u[:, :, None]).square().sum(-1)
    torch.testing.assert_close(metric.euclidean(f, u), expected)


def test_equal_images_of_a_class_fall_back_to_the_identity() -> None:
    x = units(1, 1, 8, seed=1).expand(1, 4, 8)
    form = metric.precision(metric.class_covariance_factors(x, torch.tensor([4])), 500.0, 300.0)
    f, u = units(3, 8, seed=2), units(1, 8, seed=3)
    torch.testing.assert_close(metric.mahalanobis(form, f, u), metric.euclidean(f, u))


def test_an_indefinite_covariance_names_class_and_gammas() -> None:
    D = 16
    ones = torch.ones(D, dtype=torch.float64)
    spread = torch.stack([ones, -ones, 2 * ones, -2 * ones]) + units(4, D, seed=1)
    with pytest.raises(UserError, match="gamma1=100, gamma2=500") as caught:
        metric.precision(torch.stack([units(4, D, seed=2), spread]), 100.0, 500.0)
    assert "class 1" in caught.value.details


def test_an_indefinite_class_far_down_the_list_is_named_by_its_own_number() -> None:
    """The head is made of batches of classes; the error names the place in the whole list."""
    C, D = 70, 16
    x = units(C, 4, D, seed=3)
    ones = torch.ones(D, dtype=torch.float64)
    x[66] = torch.stack([ones, -ones, 2 * ones, -2 * ones])
    with pytest.raises(metric.IndefiniteError) as caught:
        mahalanobis_head(x, units(1, C, D, seed=4), (1.0, 1.0 + 1e-9), "visual")
    assert 66 in caught.value.classes


def test_scores_by_hand() -> None:
    d = torch.tensor([0.5, 1.0])
    torch.testing.assert_close(metric.softmax_inputs(d, 100.0, 0.0), torch.tensor([200.0, 100.0]))
    torch.testing.assert_close(metric.softmax_inputs(d, 100.0, 0.0, "negative"), torch.tensor([-25.0, -50.0]))


def test_stored_statistics_of_imagenet_stay_below_40_mb() -> None:
    shots = ClassFeatures(torch.zeros(16_000, 512), torch.full((1000,), 16))
    stored = sum(t.numel() * t.element_size() for t in (shots.features, shots.counts))
    assert stored < 40e6


def test_the_head_never_holds_a_matrix_of_d_by_d_per_class() -> None:
    """The largest tensor while a head of 200 classes is made and used: K + 2 rows per class, far below C·D²."""
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            sizes.append(out.numel() if isinstance(out, Tensor) else 0)
            return out

    C, K, D = 200, 4, 128
    x, u = units(C, K, D, seed=1).float(), units(1, C, D, seed=2).float()
    with Watch():
        mahalanobis_head(x, u, (600.0, 100.0), "text")(units(2, D, seed=3).float())
    assert max(sizes) <= C * (K + 2) * D


@settings(max_examples=30, deadline=None)
@given(counts=st.lists(st.integers(1, 5), min_size=2, max_size=6), seed=st.integers(0, 99))
def test_grouping_by_class_loses_nothing(counts: list[int], seed: int) -> None:
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    features = units(len(labels), 5, seed=seed)
    shots = ClassFeatures.group(features[order], labels[order], len(counts))
    rows, back = shots.features, shots.labels()
    assert back.tolist() == labels.tolist()
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, features.tolist()))
    for c in range(len(counts)):
        torch.testing.assert_close(shots.means()[c], features[labels == c].mean(0))
