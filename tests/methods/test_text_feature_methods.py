"""What DCA lends other methods: its distances and its losses, against the equations."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch.nn import functional as F

from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.methods.base import Problem
from dca.methods.registry import get_method
from dca.methods.shared import gaussian
from dca.methods.shared.class_features import ClassFeatures
from dca.methods.shared.gaussian import Covariance
from dca.methods.shared.heads import MahalanobisHead
from dca.methods.shared.text_feature_methods import TextFeatureMethod
from oracles import dca as oracle
from oracles.images import Images

CLASSES = ("cat", "dog", "a photo", "x")
HELPED = ["clip_lora", "clip_svd", "coop", "dapt", "lamm", "maple", "promptsrc", "tcp", "two_sfs", "vpt"]


def build(clip: CLIP, name: str, **options: Any) -> TextFeatureMethod:
    kind = get_method(name)
    method = kind.build(clip, Problem(names=CLASSES, shots=3, seed=1), kind.Options(**options))
    assert isinstance(method, TextFeatureMethod)
    return method


@pytest.mark.parametrize("name", HELPED)
def test_dcas_losses_join_those_of_the_method(clip: CLIP, name: str) -> None:
    images, plain = Images((3, 2, 2, 3)), build(clip, name)
    weights = {} if plain.has_frozen_image_tower else {"alpha_in": 0.7}
    weights |= {"beta_ts": 0.3} if plain.learns_text else {}
    method = build(clip, name, **weights)
    for one in (plain, method):
        one.prepare(images)
    before, step = plain.step(images.batch(4)), method.step(images.batch(4))
    expected = {}
    if "alpha_in" in weights:
        x = F.normalize(clip.encode_image(images.pixels).double(), dim=-1)
        own = [x[images.labels == c] for c in range(len(CLASSES))]
        sigmas = [oracle.dense_covariance(rows, rows.mean(0), *gaussian.paper_gammas(3), True) for rows in own]
        centers = torch.stack([rows.mean(0) for rows in own])
        f = method.encode(images.pixels).detach().double()  # at first dropout meets a product that is zero
        expected["in"] = 0.7 * oracle.loss_in(f, centers, sigmas, images.labels, "mahalanobis", "element")
    if "beta_ts" in weights:
        expected["ts"] = 0.3 * oracle.loss_ts(method.encode_text().detach().double(), "mean")
    assert step.terms.keys() - before.terms.keys() == expected.keys()
    for term, value in expected.items():
        assert float(step.terms[term].detach()) == pytest.approx(value, rel=1e-4), term
    for term, value in before.terms.items():
        assert float(step.terms[term].detach()) == pytest.approx(float(value.detach()), rel=1e-5), term


@pytest.mark.parametrize(
    ("name", "weights", "told"),
    [
        ("coop", {"alpha_in": 1.0}, "coop has no use for alpha_in"),
        ("vpt", {"beta_ts": 1.0}, "vpt has no use for beta_ts"),
    ],
)
def test_a_loss_without_anything_to_learn_is_refused(clip: CLIP, name: str, weights: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        build(clip, name, **weights)


@pytest.mark.parametrize("covariance", get_args(Covariance))
@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (1, 4, 2, 1)])
def test_distances_to_text_equal_the_dense_ones(clip: CLIP, covariance: str, counts: tuple[int, ...]) -> None:
    images = Images(counts)
    method = build(clip, "coop", test_metric="mahalanobis", covariance=covariance, center="visual")
    method.finish(images)
    method.build_head()
    x = method.encode(images.pixels).double()
    means = torch.stack([x[images.labels == c].mean(0) for c in range(4)])
    head = method.head
    assert isinstance(head, MahalanobisHead)
    got = head.distances(x.float())[:, 0].T
    within = x - means[images.labels]
    pooled = within.T @ within / (len(x) - 1)
    D = x.shape[1]
    for c in range(4):
        own, middle, gammas = x[images.labels == c], means[c], gaussian.paper_gammas(3)
        if covariance != "class":
            rho = {"gda": 0.0, "ledoit_wolf": gaussian.ledoit_wolf(within), "oas": gaussian.oas(within)}[covariance]
            flat = pooled.trace() / D * torch.eye(D, dtype=x.dtype)
            sigma = pooled + D / (len(x) - 1) * flat if covariance == "gda" else (1 - rho) * pooled + rho * flat
            sigma = sigma / torch.outer(sigma.diagonal().sqrt(), sigma.diagonal().sqrt())
        else:
            if len(own) == 1:
                own, middle, gammas = x, x.mean(0), gaussian.paper_gammas(1)
            sigma = oracle.dense_covariance(own, middle, *gammas, True)
        for n, f in enumerate(x):
            expected = oracle.dense_distance(sigma, f, method.text_features[c].double())
            assert float(got[c, n]) == pytest.approx(float(expected), rel=2e-3)


def test_the_papers_own_baseline_measures_with_covariances(clip: CLIP) -> None:
    """One text prompt, visual prompts, cosine in training: `baseline`, and `baseline + d_m` at the test."""
    images, heads = Images((3, 3, 3, 3)), {}
    for test_metric in ("cosine", "mahalanobis"):
        kind = get_method("dca")
        chosen = kind.Options(n_prompts=1, train_metric="cosine", test_metric=test_metric, alpha=0.0, beta=0.0)  # type: ignore[call-arg]
        method = kind.build(clip, Problem(names=CLASSES, shots=3, seed=1), chosen)
        method.prepare(images)
        step = method.step(images.batch())
        assert step.terms.keys() == {"cls"}
        method.finish(images)
        method.build_head()
        f, t = method.encode(images.pixels), method.encode_text()[0]  # type: ignore[operator]
        logits = clip.tau * f @ t.T
        torch.testing.assert_close(step.terms["cls"], F.cross_entropy(logits, images.labels), atol=1e-5, rtol=1e-5)
        heads[test_metric] = method.classify(f)
    torch.testing.assert_close(heads["cosine"], logits.softmax(-1), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(heads["cosine"], heads["mahalanobis"], atol=1e-2)


def test_shots_are_grouped_in_the_order_they_come() -> None:
    rows = torch.arange(6.0).view(6, 1)
    shots = ClassFeatures.group(rows, torch.tensor([1, 0, 1, 1, 0, 1]), 2)
    assert shots.features[:, 0].tolist() == [1, 4, 0, 2, 3, 5]
    assert shots.counts.tolist() == [2, 4]
