from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_metric import units

from dca.methods.shared import losses, metric
from dca.methods.shared.class_features import ClassFeatures
from dca.methods.shared.gaussian import fecam_gaussian
from dca.methods.shared.heads import ClassPrecisions, PromptHead, prompt_logits
from oracles import dca as oracle

shapes = {"B": st.integers(1, 5), "C": st.integers(2, 5), "M": st.integers(1, 3), "seed": st.integers(0, 10**6)}


@settings(max_examples=30, deadline=None)
@given(**shapes)
def test_classification_equals_the_literal_sum(B: int, C: int, M: int, seed: int) -> None:
    f, u = units(B, 8, seed=seed), units(M, C, 8, seed=seed + 1)
    labels = torch.randint(C, (B,), generator=torch.Generator().manual_seed(seed))
    logits = prompt_logits(f, u, tau=20.0, metric_name="euclidean", eps=1e-6)
    expected = oracle.loss_cls(f, u, labels, 20.0, 1e-6)
    assert float(losses.classification(logits, labels)) == pytest.approx(expected, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(
    form=st.sampled_from(get_args(losses.Intra)),
    reduction=st.sampled_from(get_args(losses.IntraReduction)),
    B=st.integers(1, 6),
    seed=st.integers(0, 10**6),
)
def test_intra_class_equals_the_literal_sum(form: str, reduction: str, B: int, seed: int) -> None:
    C, K, D = 3, 4, 10
    x = units(C, K, D, seed=seed)
    shots = ClassFeatures(x.flatten(0, 1), torch.full((C,), K))
    f = units(B, D, seed=seed + 1)
    labels = torch.randint(C, (B,), generator=torch.Generator().manual_seed(seed))
    sigmas = [oracle.dense_covariance(x[c], x[c].mean(0), 600.0, 100.0, True) for c in range(C)]
    expected = oracle.loss_in(f, x.mean(1), sigmas, labels, form, reduction)
    own = ClassPrecisions.from_features(shots, fecam_gaussian(600.0, 100.0), torch.float64)[labels]
    got = losses.intra_class(f, shots.means()[labels], own, form=form, reduction=reduction)
    assert float(got) == pytest.approx(expected, rel=1e-8)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 9), D=st.integers(2, 12), seed=st.integers(0, 10**6), unit=st.booleans())
@pytest.mark.parametrize("reduction", get_args(losses.SeparationReduction))
def test_text_separation_equals_the_literal_sum(reduction: str, n: int, D: int, seed: int, unit: bool) -> None:
    text = units(n, D, seed=seed) * (1.0 if unit else 3.0)
    got = losses.text_separation(text, reduction=reduction)
    assert float(got) == pytest.approx(oracle.loss_ts(text, reduction), rel=1e-9, abs=1e-9)


def test_text_separation_over_all_pairs_given_one_by_one_is_the_same() -> None:
    text = units(5, 7, seed=3)
    pairs = torch.tensor([(i, j) for i in range(5) for j in range(5) if i != j])
    for reduction in get_args(losses.SeparationReduction):
        torch.testing.assert_close(
            losses.text_separation(text, reduction=reduction, pairs=pairs),
            losses.text_separation(text, reduction=reduction),
        )


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 20), count=st.integers(1, 50), seed=st.integers(0, 99))
def test_random_pairs_never_pair_a_text_with_itself(n: int, count: int, seed: int) -> None:
    pairs = losses.draw_pairs(n, count, torch.Generator().manual_seed(seed))
    assert pairs.shape == (count, 2)
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert pairs.min() >= 0
    assert pairs.max() < n


def test_random_pairs_are_unbiased() -> None:
    pairs = losses.draw_pairs(4, 12000, torch.Generator().manual_seed(0))
    counts = torch.bincount(4 * pairs[:, 0] + pairs[:, 1], minlength=16).view(4, 4)
    off = counts[~torch.eye(4, dtype=torch.bool)].double()
    assert (off - 1000).abs().max() < 150


@settings(max_examples=30, deadline=None)
@given(N=st.integers(1, 4), **{k: shapes[k] for k in ("C", "M", "seed")}, form=st.sampled_from(get_args(metric.Score)))
def test_probabilities_average_the_prompts(N: int, C: int, M: int, seed: int, form: str) -> None:
    f, u = units(N, 8, seed=seed), units(M, C, 8, seed=seed + 1)
    got = PromptHead.from_text(u, 20.0, "euclidean", score=form, eps=1e-6)(f)
    trained = prompt_logits(f, u, tau=20.0, metric_name="euclidean", score=form, eps=1e-6)
    torch.testing.assert_close(got, trained.softmax(-1).mean(0), rtol=1e-9, atol=1e-12)
    for n in range(N):
        each = [
            oracle.probability([float((f[n] - u_c).square().sum()) for u_c in of_prompt], 20.0, 1e-6, form)
            for of_prompt in u
        ]
        mean = [sum(p[c] for p in each) / M for c in range(C)]
        assert got[n].tolist() == pytest.approx(mean, rel=1e-9)
    torch.testing.assert_close(got.sum(-1), torch.ones(N, dtype=got.dtype))
