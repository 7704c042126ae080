"""Finished heads: constants computed once, memory in proportion to the images, equal to the literal forms."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import pytest
import torch
from test_metric import units
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from dca.backbones.clip import CLIP
from dca.methods.base import MAX_BATCH_SIZE, Problem
from dca.methods.dca import DCA, DCAOptions
from dca.methods.registry import get_method
from dca.methods.shared import gaussian, metric
from dca.methods.shared.class_features import ClassFeatures
from dca.methods.shared.gaussian import Gaussian
from dca.methods.shared.heads import (
    CacheHead,
    ClassPrecisions,
    LinearHead,
    MahalanobisHead,
    PromptHead,
    prompt_logits,
)
from dca.methods.tip_adapter import cache_logits
from oracles.dca import dense_covariance, dense_distance, probability
from oracles.images import Images

FAMILY = Gaussian("additive", gamma1=600.0, gamma2=100.0, normalize=True, single=(500.0, 300.0))
LOPSIDED = (1000, *[2] * 9)


def largest(work: Callable[[], object]) -> int:
    """Numbers in the largest tensor that `work` makes."""
    sizes = [0]

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            sizes.extend(t.numel() for t in (out if isinstance(out, tuple | list) else [out]) if isinstance(t, Tensor))
            return out

    with Watch():
        work()
    return max(sizes)


def grouped(counts: tuple[int, ...], D: int, seed: int = 0) -> ClassFeatures:
    return ClassFeatures(units(sum(counts), D, seed=seed), torch.tensor(counts))


@pytest.mark.parametrize("center", ["text", "visual"])
@pytest.mark.parametrize(
    ("counts", "groups"),
    [((3, 3, 3), 1), ((2, 16, 5, 3, 16, 9, 8, 2), 4), ((1, 40, 2, 1, 7), 4), ((1, 1, 1), 1), ((2, 30, 31, 33), 2)],
)
def test_unequal_counts_equal_the_dense_inverse(counts: tuple[int, ...], groups: int, center: str) -> None:
    """Up to 40 images in 12 dimensions; counts between two powers of two share a group, and folded classes, too."""
    C, M, D = len(counts), 2, 12
    shots, u, f = grouped(counts, D), units(M, C, D, seed=1), units(4, D, seed=2)
    head = MahalanobisHead.from_text(u, shots, FAMILY, tau=20.0, center=center)
    assert len(head.groups) == groups
    got, labels = head.distances(f), shots.labels()
    for m, c, n in itertools.product(range(M), range(C), range(4)):
        mine, gammas = shots.features[labels == c], (600.0, 100.0)
        middle = mine.mean(0) if center == "visual" else u[m, c]
        if len(mine) == 1:
            about = shots.features.mean(0) if center == "visual" else u[m, labels]
            mine, middle, gammas = shots.features - about, torch.zeros(D, dtype=u.dtype), (500.0, 300.0)
        sigma = dense_covariance(mine, middle, *gammas, True)
        torch.testing.assert_close(got[n, m, c], dense_distance(sigma, f[n], u[m, c]), rtol=1e-8, atol=0)
    for n in range(4):
        each = [probability(got[n, m].tolist(), 20.0, 1e-6, "inverse") for m in range(M)]
        mean = torch.tensor(each, dtype=torch.float64).mean(0)
        torch.testing.assert_close(head(f)[n], mean, rtol=1e-9, atol=1e-12)


def test_float32_heads_are_exact_to_rounding() -> None:
    """At the size of a real head: constants come from float64, so only the products round."""
    C, K, M, D = 40, 16, 4, 512
    u, f = units(M, C, D, seed=1, spread=2.0), units(20, D, seed=2)
    shots = grouped((K,) * C, D)
    exact = MahalanobisHead.from_text(u, shots, gaussian.dca_gaussian(500.0, 500.0, K), tau=100.0)
    rough = ClassFeatures(shots.features.float(), shots.counts)
    head = MahalanobisHead.from_text(u.float(), rough, gaussian.dca_gaussian(500.0, 500.0, K), tau=100.0)
    assert head.weight.dtype == torch.float32
    torch.testing.assert_close(head(f.float()).double(), exact(f), atol=1e-5, rtol=0)


def test_one_large_class_is_stored_without_padding(clip: CLIP) -> None:
    """A thousand images beside nine classes of two: 1,018 rows, not 10,000."""
    problem = Problem(names=tuple(f"class {c}" for c in range(10)), shots=101, seed=1)
    method = DCA.build(clip, problem, DCAOptions())
    method.finish(Images(LOPSIDED))
    assert method.train_features.shape == (1018, 16)
    state = method.state_dict()
    assert sum(state[name].nbytes for name in ("train_features", "train_counts")) < 1.01 * 1018 * 16 * 4 + 80
    other = DCA.build(clip, problem, DCAOptions())
    other.restore(state)
    f = method.encode(Images((2,)).pixels)
    assert torch.equal(other.classify(f), method.build_head().classify(f))


def test_one_large_class_does_not_pad_the_others_in_memory() -> None:
    D, M = 64, 2
    shots, u, f = grouped(LOPSIDED, D), units(M, 10, D, seed=1), units(1, D, seed=2)
    padded = 10 * 1000 * D
    limit = 1.1 * M * 1018 * D
    assert limit < padded / 4
    assert largest(lambda: MahalanobisHead.from_text(u, shots, FAMILY, tau=20.0)(f)) <= limit
    assert largest(lambda: ClassPrecisions.from_features(shots, FAMILY, torch.float32)) <= limit
    table = ClassPrecisions.from_features(shots, FAMILY, torch.float32)
    assert len(table.rows) <= D + 9 + 1


def test_classes_with_one_image_share_the_rows_of_one_covariance() -> None:
    C, D, M = 50, 16, 2
    shots, u = grouped((1,) * C, D), units(M, C, D, seed=1)
    head = MahalanobisHead.from_text(u, shots, FAMILY, tau=20.0)
    assert head.weight.shape == (D, M * (D + 1) + M * C)
    table = ClassPrecisions.from_features(shots, FAMILY, torch.float64)
    assert len(table.rows) == D + 1


@pytest.mark.parametrize("counts", [(3, 3, 3), (1, 4, 2, 1, 40)])
def test_the_distances_of_a_training_step_are_those_of_the_head(counts: tuple[int, ...]) -> None:
    shots, u, f = grouped(counts, 12), units(2, len(counts), 12, seed=1), units(4, 12, seed=2)
    table = ClassPrecisions.from_features(shots, FAMILY, torch.float64)
    head = MahalanobisHead.from_text(u, shots, FAMILY, tau=20.0, center="visual")
    logits = prompt_logits(f, u, tau=20.0, metric_name="mahalanobis", precisions=table)
    torch.testing.assert_close(logits.transpose(0, 1), head.logits(f), rtol=1e-8, atol=1e-9)
    delta = units(6, 12, seed=3)
    labels = torch.arange(6) % len(counts)
    own = torch.stack(
        [table.distances(d[None], torch.zeros_like(u))[0, y, 0] for d, y in zip(delta, labels, strict=True)]
    )
    torch.testing.assert_close(metric.quadratic_form(table[labels], delta), own)
    with pytest.raises(ValueError, match="needs precisions"):
        prompt_logits(f, u, tau=20.0, metric_name="mahalanobis")


@pytest.mark.parametrize("counts", [(2, 2, 2), (3, 1, 4, 1, 3), (5, 0, 2)])
@pytest.mark.parametrize("alpha", [0.0, 1.3])
def test_the_cache_sums_the_keys_of_each_class(counts: tuple[int, ...], alpha: float) -> None:
    C, D = len(counts), 8
    labels = torch.arange(C).repeat_interleave(torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    keys, text, f = units(len(labels), D, seed=1), units(C, D, seed=2), units(5, D, seed=3)
    head = CacheHead.from_keys(text, keys, labels, 20.0, alpha, 2.5)
    expected = 20.0 * f @ text.T + alpha * cache_logits(f @ keys.T, labels, C, 2.5)
    torch.testing.assert_close(head.logits(f), expected)
    torch.testing.assert_close(head(f), expected.softmax(-1))


def test_linear_and_prompt_heads_fold_the_scale_in() -> None:
    f, u = units(4, 8, seed=1), units(3, 5, 8, seed=2)
    torch.testing.assert_close(LinearHead.cosine(u[0], 20.0)(f), (20.0 * f @ u[0].T).softmax(-1))
    expected = prompt_logits(f, u, tau=20.0).softmax(-1).mean(0)
    torch.testing.assert_close(PromptHead.from_text(u, 20.0, "cosine")(f), expected)


def test_a_sealed_method_computes_no_covariance_again(clip: CLIP, monkeypatch: pytest.MonkeyPatch) -> None:
    images = Images((3, 2, 1))
    method = DCA.build(clip, Problem(names=("cat", "dog", "x"), shots=2), DCAOptions())
    method.finish(images)
    calls = []
    measure = gaussian.precisions
    monkeypatch.setattr(gaussian, "precisions", lambda *a: calls.append(1) or measure(*a))
    assert method.build_head() is method
    f = method.encode(images.pixels)
    one, other = method.classify(f), method.classify(f)
    assert len(calls) == 1
    assert torch.equal(one, other)
    assert not one.requires_grad or f.requires_grad


@pytest.mark.parametrize("name", ["clap", "linear_probe", "cocoop"])
def test_a_head_does_not_follow_later_training(clip: CLIP, name: str) -> None:
    kind = get_method(name)
    method = kind.build(clip, Problem(names=("cat", "dog", "x"), shots=1), kind.Options())
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
        f = F.normalize(torch.randn(2, 16, generator=torch.Generator().manual_seed(1)), dim=-1)
        before = method.build_head().classify(f)
        for parameter in method.parameters():
            parameter.add_(1.0)
        assert torch.equal(method.classify(f), before)
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.head.weight = torch.zeros(1)  # type: ignore[attr-defined]


def test_large_heads_take_fewer_images_at_once() -> None:
    small = LinearHead(torch.zeros(10, 4))
    assert small.max_batch_size == MAX_BATCH_SIZE
    assert LinearHead(torch.zeros(1, 4).expand(2**20, 4)).max_batch_size == 16
    assert LinearHead(torch.zeros(1, 4).expand(2**30, 4)).max_batch_size == 1
