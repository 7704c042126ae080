from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_metric import units

from dca.core.errors import UserError
from dca.methods.shared import metric
from dca.methods.shared.class_features import ClassFeatures
from dca.methods.shared.gaussian import Gaussian, floored_precision
from dca.methods.shared.heads import MahalanobisHead
from oracles.dca import dense_distance, dense_floored

# γ with negative a, with negative a + b D for some of the classes, without any shrinkage, and with enough of it.
PAIRS = [(1.0, 100.0), (0.0, 10.0), (1.0, 30.0), (0.0, 0.0), (500.0, 300.0)]


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("center", ["visual", "text"])
@pytest.mark.parametrize("gammas", PAIRS)
@pytest.mark.parametrize(("K", "D", "spread"), [(2, 24, 1.0), (5, 24, 0.2), (16, 12, 5.0)])
def test_the_structured_floor_equals_dense_eigenvalues(
    K: int, D: int, spread: float, gammas: tuple[float, float], center: str, normalize: bool
):
    C, M, N, floor = 3, 2, 4, 0.05
    x, u, f = units(C, K, D, seed=K, spread=spread), units(M, C, D, seed=1), units(N, D, seed=2)
    family = Gaussian("additive", gamma1=gammas[0], gamma2=gammas[1], normalize=normalize, floor=floor)
    shots = ClassFeatures(x.flatten(0, 1), torch.full((C,), K))
    got = MahalanobisHead.from_text(u, shots, family, tau=100.0, center=center).distances(f)
    for m, c, n in itertools.product(range(M), range(C), range(N)):
        middle = x[c].mean(0) if center == "visual" else u[m, c]
        expected = dense_distance(dense_floored(x[c], middle, *gammas, normalize, floor), f[n], u[m, c])
        assert abs(got[n, m, c] - expected) <= 1e-7 * abs(expected)


@given(
    st.integers(1, 20),
    st.integers(2, 16),
    st.floats(0, 1000),
    st.floats(0, 1000),
    st.floats(1e-3, 1),
    st.integers(0, 99),
)
@settings(deadline=None, max_examples=50)
def test_any_gammas_give_positive_distances(R: int, D: int, gamma1: float, gamma2: float, floor: float, seed: int):
    U = units(R, D, seed=seed)
    form = floored_precision(U, gamma1, gamma2, floor)
    inverse = metric.precision_times(form.map_tensors(lambda t: t.expand(D, *t.shape)), torch.eye(D, dtype=U.dtype))
    assert torch.linalg.eigvalsh(inverse).min() > 0
    assert torch.allclose(form.log_det, -torch.logdet(inverse), atol=1e-6)


def test_a_floor_below_all_eigenvalues_changes_nothing():
    U = units(4, 24, seed=3)
    plain, floored = metric.precision(U, 500.0, 300.0), floored_precision(U, 500.0, 300.0, 1e-6)
    delta = units(24, seed=4)
    assert metric.quadratic_form(floored, delta) == pytest.approx(float(metric.quadratic_form(plain, delta)), rel=1e-9)
    assert floored.log_det == pytest.approx(float(plain.log_det), rel=1e-9)


def test_equal_images_have_the_identity():
    form = floored_precision(torch.zeros(3, 8, dtype=torch.float64), 5.0, 1.0, 0.01)
    assert torch.equal(form.diagonal, torch.ones(8, dtype=torch.float64))
    assert not form.rows.any()


def test_without_a_floor_an_indefinite_covariance_is_an_error_that_names_it():
    with pytest.raises(UserError, match=r"use floor=0\.001"):
        metric.precision(units(2, 4, 24, seed=1, spread=0.1).cumsum(-2), 1.0, 100.0)
