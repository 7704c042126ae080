from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from dca.methods.shared import gaussian
from dca.methods.shared.class_features import ClassFeatures
from dca.methods.shared.gaussian import Gaussian
from dca.methods.shared.heads import MahalanobisHead

CASES = [
    *gaussian.HEADS.values(),
    Gaussian("convex", pooling=0.3, rho=0.4, normalize=True, log_det=True, unit_means=True),
]


def rows(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(shape[-1], generator=generator, dtype=torch.float64)
    return F.normalize(base + torch.randn(shape, generator=generator, dtype=torch.float64), dim=-1)


def dense(x: Tensor, y: Tensor, c: int, head: Gaussian) -> Tensor:
    """Σ_c by its definition: D×D matrices, sums over images."""
    D, n = x.shape[1], len(x)
    eye = torch.eye(D, dtype=x.dtype)
    means = [x[y == k].mean(0) for k in range(int(y.max()) + 1)]
    pooled = sum(torch.outer(f - means[k], f - means[k]) for f, k in zip(x, y.tolist(), strict=True)) / (n - 1)
    own = x[y == c]
    if len(own) > 1:
        single = sum(torch.outer(f - means[c], f - means[c]) for f in own) / (len(own) - 1)
        S = (1 - head.pooling) * single + head.pooling * pooled
    else:
        S = pooled if head.pooling else sum(torch.outer(f - x.mean(0), f - x.mean(0)) for f in x) / (n - 1)
    v_d, v_o = S.trace() / D, (S.sum() - S.trace()) / (D * (D - 1))
    if head.shrinkage == "identity":
        return eye
    if head.shrinkage == "additive":
        S = S + head.gamma1 * v_d * eye + head.gamma2 * v_o * (torch.ones_like(S) - eye)
    elif head.shrinkage == "gda":
        S = S + D / (n - 1) * v_d * eye
    else:
        rho = gaussian.estimate_rho(head, torch.stack([f - means[k] for f, k in zip(x, y.tolist(), strict=True)]))
        S = (1 - rho) * S + rho * v_d * eye
    if head.normalize:
        s = S.diagonal().sqrt()
        S = S / torch.outer(s, s)
    return S


@pytest.mark.parametrize("counts", [(5, 5, 5), (1, 4, 2), (20, 20, 20)])
@pytest.mark.parametrize("head", CASES)
def test_every_head_equals_its_dense_definition(head: Gaussian, counts: tuple[int, ...]) -> None:
    y = torch.arange(3).repeat_interleave(torch.tensor(counts))
    x, f = rows(len(y), 16), rows(6, 16, seed=9)
    got = gaussian.log_likelihoods(f, ClassFeatures.group(x, y, 3), head)
    expected = torch.empty(6, 3, dtype=torch.float64)
    for i, c in itertools.product(range(6), range(3)):
        mean = x[y == c].mean(0)
        sigma, delta = dense(x, y, c, head), f[i] - (mean / mean.norm() if head.unit_means else mean)
        expected[i, c] = -delta @ torch.linalg.inv(sigma) @ delta / 2
        if head.log_det:
            expected[i, c] -= torch.logdet(sigma) / 2
    # Up to what the classes share.
    relative = lambda t: t - t.mean(dim=1, keepdim=True)  # noqa: E731
    torch.testing.assert_close(relative(got), relative(expected), atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("gammas", [(500.0, 300.0), (10.0, 10.0), (1.0, 0.5)])
def test_fecams_head_is_dcas_with_visual_means(gammas: tuple[float, float]) -> None:
    """The same numbers from DCA's head, with the class means in the place of text."""
    y = torch.arange(4).repeat_interleave(3)
    x, f = rows(12, 24), rows(5, 24, seed=3)
    shots = ClassFeatures.group(x, y, 4)
    family = gaussian.fecam_gaussian(*gammas)
    head = MahalanobisHead.from_text(shots.means()[None], shots, family, tau=2.0, score="negative", center="visual")
    ours = gaussian.log_likelihoods(f, shots, gaussian.fecam_gaussian(*gammas))
    torch.testing.assert_close(ours, head.logits(f)[:, 0] / 2, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("n", "D"), [(40, 8), (8, 40), (3, 20)])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), spread=st.floats(0.1, 5))
def test_data_driven_shrinkage_is_scikit_learns(n: int, D: int, seed: int, spread: float) -> None:
    covariance = pytest.importorskip("sklearn.covariance")
    x = rows(n, D, seed=seed) * torch.linspace(0.1, spread, D, dtype=torch.float64)
    x = x - x.mean(dim=0)
    theirs = covariance.ledoit_wolf_shrinkage(x.numpy(), assume_centered=True)
    assert gaussian.ledoit_wolf(x) == pytest.approx(theirs, rel=1e-9, abs=1e-12)
    assert gaussian.oas(x) == pytest.approx(covariance.oas(x.numpy(), assume_centered=True)[1], rel=1e-9)


def test_lda_decides_as_scikit_learns() -> None:
    analysis = pytest.importorskip("sklearn.discriminant_analysis")
    y = torch.arange(4).repeat_interleave(30)
    x = rows(120, 10) + 0.2 * torch.eye(4, 10, dtype=torch.float64)[y]
    theirs = analysis.LinearDiscriminantAnalysis(solver="lsqr").fit(x.numpy(), y.numpy())
    ours = gaussian.log_likelihoods(x, ClassFeatures.group(x, y, 4), Gaussian("convex", pooling=1.0, rho=1e-12))
    assert (ours.argmax(dim=1).numpy() == theirs.predict(x.numpy())).all()


def test_the_nearest_unit_mean_is_the_cosine() -> None:
    y = torch.arange(3).repeat_interleave(4)
    x, f = rows(12, 8), rows(50, 8, seed=2)
    shots = ClassFeatures.group(x, y, 3)
    got = gaussian.log_likelihoods(f, shots, gaussian.HEADS["nearest mean, cosine"])
    torch.testing.assert_close(got + 0.5, f @ F.normalize(shots.means(), dim=-1).T)


def test_strong_shrinkage_of_the_pooled_covariance_ranks_like_the_nearest_mean() -> None:
    y = torch.arange(3).repeat_interleave(4)
    x, f = rows(12, 8), rows(50, 8, seed=2)
    shots = ClassFeatures.group(x, y, 3)
    near = gaussian.log_likelihoods(f, shots, Gaussian("identity")).argsort(dim=1)
    far = gaussian.log_likelihoods(f, shots, Gaussian("convex", pooling=1.0, rho=1 - 1e-9)).argsort(dim=1)
    assert torch.equal(near, far)


def test_one_image_a_class_without_views_is_the_nearest_mean() -> None:
    """The covariance within classes of one image is zero: the identity takes its place."""
    y, x, f = torch.arange(5), rows(5, 8), rows(9, 8, seed=1)
    shots = ClassFeatures.group(x, y, 5)
    expected = gaussian.log_likelihoods(f, shots, Gaussian("identity"))
    for name in ("GDA", "Ledoit-Wolf", "OAS"):
        got = gaussian.log_likelihoods(f, shots, gaussian.HEADS[name])
        assert torch.equal(got.argmax(1), expected.argmax(1)), name


@pytest.mark.parametrize("head", [head for head in CASES if head.shrinkage != "identity" and not head.log_det])
def test_distances_rank_as_the_likelihoods_do(head: Gaussian) -> None:
    y = torch.arange(3).repeat_interleave(torch.tensor((4, 1, 5)))
    x, f = rows(10, 12), rows(20, 12, seed=4)
    shots = ClassFeatures.group(x, y, 3)
    found = MahalanobisHead.from_text(shots.means()[None], shots, head, tau=1.0, center="visual").distances(f)[:, 0]
    likely = gaussian.log_likelihoods(f, shots, head)
    torch.testing.assert_close(found - found[:, :1], -2 * (likely - likely[:, :1]), atol=1e-7, rtol=1e-7)


def test_impossible_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="one of identity"):
        Gaussian("other")
    with pytest.raises(ValueError, match="pooling=1"):
        Gaussian("oas", pooling=0.5)
    shots = ClassFeatures.group(rows(4, 6), torch.tensor([0, 0, 1, 1]), 2)
    with pytest.raises(ValueError, match="share"):
        gaussian.linear_weights(shots, gaussian.fecam_gaussian(1.0, 0.0))
