from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from dca.backbones.clip import CLIP
from dca.methods import tip_adapter
from dca.methods.base import Problem
from dca.methods.dca import PAPER_TABLE as DATASETS
from dca.methods.summary import parameter_count
from dca.methods.tip_adapter import TipAdapter, TipAdapterOptions, cache_logits, search_grid, search_ranges
from oracles.frozen import dot, mean_of, softmax, unit
from oracles.images import Images

CLASSES = ("cat", "dog", "a photo", "x")


def build(clip: CLIP, images: Images, dataset: str = "", run: str = "strict", **options: object) -> TipAdapter:
    problem = Problem(names=CLASSES, shots=3, dataset=dataset, rules=run)
    method = TipAdapter.build(clip, problem, TipAdapterOptions(**options))  # type: ignore[arg-type]
    method.finish(images)
    method.build_head()
    return method


@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (1, 2, 4, 1)])
def test_probabilities_equal_the_equations(clip: CLIP, counts: tuple[int, ...]) -> None:
    images = Images(counts)
    method = build(clip, images, views=3, alpha=1.3, beta=2.5, crop_low=0.08)
    views = [clip.encode_image(images.view(v)).double().tolist() for v in range(3)]
    keys = unit([mean_of([view[i] for view in views]) for i in range(len(images.labels))])
    f = unit(clip.encode_image(images.pixels).double().tolist())
    t = unit(clip.encode_text([f"a photo of a {name}." for name in CLASSES]).double().tolist())
    got = method.classify(method.encode(images.pixels))
    for row, x in zip(got, f, strict=True):
        logits = [clip.tau * dot(x, t_c) for t_c in t]
        for key, label in zip(keys, images.labels.tolist(), strict=True):
            logits[label] += 1.3 * math.exp(-2.5 * (1 - dot(x, key)))
        torch.testing.assert_close(row.double(), torch.tensor(softmax(logits), dtype=torch.float64), atol=1e-5, rtol=0)


def test_nothing_is_trained() -> None:
    assert parameter_count(TipAdapter) == 0


def test_the_cache_is_the_product_with_one_hot_labels() -> None:
    affinity, labels = torch.rand(5, 7), torch.tensor([0, 2, 2, 1, 0, 2, 1])
    expected = torch.exp(-3.0 * (1 - affinity)) @ F.one_hot(labels, 4).float()
    torch.testing.assert_close(cache_logits(affinity, labels, 4, 3.0), expected)


def test_the_grid_starts_at_a_tenth_and_leaves_its_end_out() -> None:
    values = search_grid(7.0, 200)
    assert len(values) == 200
    assert values[0] == 0.1
    assert values[-1] == pytest.approx(7.0 - 6.9 / 200)


def test_published_values_are_there_for_the_eleven_datasets() -> None:
    assert tip_adapter.PAPER_TABLE.keys() == DATASETS.keys()
    flowers = Problem(names=CLASSES, shots=1, dataset="oxford_flowers")
    assert search_ranges(flowers, "paper") == (10.0, 50.0, 50.0)
    assert search_ranges(flowers, "strict") == tip_adapter.MEDIANS
    assert search_ranges(Problem(names=CLASSES, shots=1, dataset="mine"), "paper") == tip_adapter.MEDIANS


def test_without_validation_images_the_first_values_stay(clip: CLIP) -> None:
    images = Images((1, 1, 1, 1))
    assert build(clip, images, "oxford_flowers").alpha_beta.tolist() == [2.0, 1.0]
    assert build(clip, images, "oxford_flowers", "paper").alpha_beta.tolist() == [10.0, 1.0]
    assert build(clip, images, "oxford_flowers", "paper", rules="strict").alpha_beta.tolist() == [2.0, 1.0]
    assert build(clip, images, "oxford_flowers", rules="paper").alpha_beta.tolist() == [10.0, 1.0]
    assert build(clip, images, "oxford_flowers", "paper", beta=4.0).alpha_beta.tolist() == [10.0, 4.0]


def test_the_search_is_no_worse_on_validation_images_than_any_value_of_its_grid(clip: CLIP) -> None:
    images = Images((3, 3, 3, 3), validation=Images((4, 4, 4, 4), seed=3))
    unseen = images.validation
    assert unseen is not None

    def hits(method: TipAdapter) -> int:
        return int((method.classify(method.encode(unseen.pixels)).argmax(-1) == unseen.labels).sum())

    found = hits(build(clip, images))
    for alpha, beta in [(0.1, 0.1), (5.05, 1.29), (9.505, 11.9405), (2.08, 6.05)]:
        assert found >= hits(build(clip, images, alpha=alpha, beta=beta))
    half = build(clip, images, alpha=3.0)
    assert half.alpha_beta[0] == 3.0


def test_the_order_of_the_keys_does_not_matter(clip: CLIP) -> None:
    images = Images((2, 3, 1, 2))
    method = build(clip, images)
    f = method.encode(images.pixels)
    one = method.classify(f)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    method.keys, method.key_labels = method.keys[order], method.key_labels[order]
    torch.testing.assert_close(method.classify(f), one)


@pytest.mark.parametrize("fault", ["label", "rows", "scalar"])
def test_damaged_results_are_named(clip: CLIP, fault: str) -> None:
    state = build(clip, Images((1, 1, 1, 1))).state_dict()
    if fault == "label":
        state["key_labels"] = torch.tensor([0, 1, 2, 4])
    elif fault == "rows":
        state["keys"] = state["keys"][:3]
    else:
        state["key_labels"] = torch.tensor(0)
    problems = TipAdapter.build(clip, Problem(names=CLASSES, shots=1), TipAdapterOptions()).check_results(state)
    assert any("key" in line for line in problems)
