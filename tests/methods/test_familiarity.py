"""Familiarity against literal refits, the rate of false rejections, and what other images change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dca.methods.shared import familiarity
from dca.methods.shared.familiarity import (
    FALL,
    FEW,
    OTHER_TARGET,
    RIDGE,
    SAME_OCCASION,
    WIDTH,
    Familiarity,
    find_occasions,
)


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scattered(centers: Tensor, labels: Tensor, seed: int) -> Tensor:
    """Unit features around the centers of their classes."""
    return F.normalize(centers[labels] + drawn(len(labels), centers.shape[1], seed=seed), dim=-1)


def make(counts: list[int], seed: int, *, other: int = 0, D: int = 8) -> tuple[Familiarity, Tensor]:
    """A model of classes with these numbers of images, and images of other classes."""
    centers = 1.5 * drawn(len(counts) + 3, D, seed=seed)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    x = scattered(centers, labels, seed + 1)
    strange = scattered(centers, len(counts) + torch.arange(30) % 3, seed + 2)
    model = Familiarity.from_features(x, labels, torch.arange(len(x)), len(counts), strange[:other])
    return model, strange[other:]


def literal_scores(model: Familiarity, left: list[int], f: Tensor) -> Tensor:
    """t of images f (B, D) by kernel ridge that is solved again without images `left`; rate, ω and b held fixed."""
    keep = [i for i in range(len(model.x)) if i not in left]
    x = torch.cat([model.x[keep], model.other])
    C, N = len(model.counts), len(model.x)
    omega = [N / (C * float(model.counts[model.labels[i]])) for i in keep] + [1.0] * len(model.other)
    targets = torch.zeros(len(x), C + 1, dtype=torch.float64)
    for row, i in enumerate(keep):
        targets[row, model.labels[i]] = 1
    targets[len(keep) :, C] = OTHER_TARGET
    distances = torch.stack([1 - a @ b for i, a in enumerate(model.x) for b in model.x[i + 1 :]])
    rate = WIDTH / float(distances.mean())
    K = (rate * (x @ x.T - 1)).exp()
    predictions = (rate * (f @ x.T - 1)).exp() @ torch.linalg.solve(
        K + RIDGE * torch.tensor(omega).double().diag().inverse(), targets
    )
    whole = (rate * (model.x @ model.x.T - 1)).exp()
    within = [
        torch.stack([whole[i, j] for i in rows for j in rows if i != j]).mean()
        for c in range(C)
        if len(rows := (model.labels == c).nonzero()[:, 0].tolist()) > 1
    ]
    between = [whole[model.labels == c][:, model.labels == d].mean() for c in range(C) for d in range(C) if c != d]
    shared = torch.stack(between).mean()
    b = max((torch.stack(within).mean() - shared) / (1 - shared), 0.0)

    def expected(c: int, n: float) -> float:
        return n / (1 + RIDGE * C * float(model.counts[c]) / N + (n - 1) * float(b))

    usual = sum(expected(c, float(model.counts[c])) for c in range(C)) / C
    left_over = [float(sum(int(model.labels[i]) == c for i in keep)) for c in range(C)]
    own = torch.stack([predictions[:, c] / expected(c, left_over[c]) for c in range(C)], dim=-1)
    return own.amax(dim=-1) + predictions[:, C] / usual


@pytest.mark.parametrize("counts", [[4, 4, 4], [7, 3, 2]])
@pytest.mark.parametrize("other", [0, 5])
def test_scores_are_those_of_models_that_are_refitted_without_each_image(counts: list[int], other: int) -> None:
    model, strange = make(counts, 3, other=other, D=24)
    assert torch.equal(model.occasions, torch.arange(len(model.x)))  # each leaves alone
    assert torch.allclose(model.scores(strange), literal_scores(model, [], strange), atol=1e-10)
    held = torch.cat([literal_scores(model, [i], model.x[i : i + 1]) for i in range(len(model.x))])
    assert torch.allclose(model.held_out, held, atol=1e-10)


def with_siblings(model: Familiarity, groups: list[list[int]]) -> Familiarity:
    """The model with photos of one occasion: the later ones of each group are nearly the first."""
    x = model.x.clone()
    for first, *later in groups:
        for i in later:
            x[i] = F.normalize(x[first] + 0.05 * model.x[i], dim=-1)
    return Familiarity(x, model.labels, model.classes, model.other)


def test_photos_of_one_occasion_leave_together() -> None:
    plain, _ = make([6, 5, 2], 3, other=4)
    model = with_siblings(plain, [[0, 1, 2], [6, 8], [11, 12]])
    occasions = {0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1, 2], 6: [6, 8], 8: [6, 8]}
    assert model.occasions.tolist() == [0, 0, 0, 3, 4, 5, 6, 7, 6, 9, 10, 11, 12]  # of two images the distance is usual
    together = [literal_scores(model, occasions.get(i, [i]), model.x[i : i + 1]) for i in range(13)]
    assert torch.allclose(model.held_out, torch.cat(together), atol=1e-10)


def test_a_class_of_one_occasion_is_not_left_out() -> None:
    plain, _ = make([5, 4], 11)
    model = with_siblings(plain, [[5, 6], [7, 8]])
    model.__dict__["occasions"] = torch.tensor([0, 1, 2, 3, 4, 5, 5, 5, 5])
    assert model.held_rows.tolist() == [0, 1, 2, 3, 4]
    assert model.held_out.isfinite().all()
    assert model.smallest_p_value == 1 / 6


def test_bursts_make_no_false_rejections() -> None:
    """Every photo twice: with images that leave alone, most new images would be rejected."""
    shares = []
    for seed in range(0, 300, 10):
        model, _ = make([8] * 4, seed)
        model = with_siblings(model, [[i, i + 4] for c in range(4) for i in range(8 * c, 8 * c + 4)])
        centers = 1.5 * drawn(7, 8, seed=seed)
        new = scattered(centers, torch.arange(4).repeat_interleave(50), seed + 3)
        shares.append((model.p_values(new) <= 0.05).double().mean())
    assert torch.stack(shares).mean() < 0.065


def test_images_at_random_are_hardly_ever_of_one_occasion() -> None:
    alone = [
        model.occasions.unique().numel() / len(model.x) for model, _ in (make([16] * 4, s, D=32) for s in range(9))
    ]
    assert min(alone) > 0.9


def test_images_of_classes_with_one_image_stay_and_are_not_compared_with() -> None:
    model, _ = make([4, 1, 3], 5)
    assert model.labels[model.held_rows].tolist() == [0, 0, 0, 0, 2, 2, 2]
    assert len(model.held_out) == 7
    assert model.held_out.isfinite().all()
    assert model.p_values(model.x[4:5]).item() > 0.5  # the only image of its class is familiar


def test_a_class_without_images_changes_nothing() -> None:
    model, strange = make([4, 3], 7)
    more = Familiarity(model.x, model.labels, 3, model.other)
    assert torch.allclose(model.p_values(strange), more.p_values(strange))


def test_copies_count_once() -> None:
    model, strange = make([5, 5], 9)
    x, labels = torch.cat([model.x, model.x[:3]]), torch.cat([model.labels, model.labels[:3]])
    groups = torch.cat([torch.arange(10), torch.arange(3)])
    twice = Familiarity.from_features(x, labels, groups, 2)
    assert torch.equal(model.p_values(strange), twice.p_values(strange))


def false_rejections(counts: list[int], rate: float, *, other: int = 0, draws: int = 60) -> Tensor:
    """Share of new images with p-values up to `rate`, one row per draw and one column per class."""
    shares = []
    for seed in range(0, 10 * draws, 10):
        model, _ = make(counts, seed, other=other)
        centers = 1.5 * drawn(len(counts) + 3, 8, seed=seed)
        labels = torch.arange(len(counts)).repeat_interleave(50)
        rejected = (model.p_values(scattered(centers, labels, seed + 3)) <= rate).double()
        shares.append(rejected.view(len(counts), 50).mean(dim=1))
    return torch.stack(shares)


@pytest.mark.parametrize(
    ("counts", "rate"), [([7, 7, 7], 0.05), ([4] * 6, 0.05), ([10, 10], 0.1), ([16] * 4, 0.05), ([2] * 10, 0.1)]
)
def test_false_rejections_are_as_many_as_stated(counts: list[int], rate: float) -> None:
    found = false_rejections(counts, rate).mean(dim=1)
    error = found.std() / len(found) ** 0.5
    assert rate / 1.3 - 2 * error < found.mean() < 1.3 * rate + error


@pytest.mark.parametrize("counts", [[7, 7, 7], [4] * 6, [16] * 4, [2] * 10])
def test_other_images_make_no_more_false_rejections(counts: list[int]) -> None:
    assert false_rejections(counts, 0.05, other=15).mean() < 0.06


def test_images_of_rare_classes_are_not_all_rejected() -> None:
    """The largest prediction alone rejects about half of the images of the rare class here, and 1 in 100 others."""
    often, rare = false_rejections([60, 4], 0.05).mean(dim=0).tolist()
    assert often < 0.065
    assert rare < 0.25


def area(known: Tensor, strange: Tensor) -> float:
    return float((known[:, None] > strange).double().mean() + (known[:, None] == strange).double().mean() / 2)


def test_images_far_from_all_classes_have_small_p_values_and_other_images_make_them_smaller() -> None:
    areas = []
    for other in (0, 15):
        both = []
        for seed in range(0, 200, 10):
            model, strange = make([8] * 4, seed, other=other)
            centers = 1.5 * drawn(7, 8, seed=seed)
            known = scattered(centers, torch.arange(4).repeat_interleave(20), seed + 3)
            both.append(area(model.p_values(known), model.p_values(strange)))
        areas.append(sum(both) / len(both))
    assert areas[0] > 0.75
    assert areas[1] > areas[0] + 0.03


@pytest.mark.parametrize("block", [7, 4096])
def test_occasions_are_linked_directly_through_others_and_by_copies(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Literally: pairs of different images of a class that are near, and images of a group, are linked."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.arange(3).repeat_interleave(20)
    x = F.normalize(torch.randn(3, 16, generator=generator)[labels] + torch.randn(60, 16, generator=generator), dim=-1)
    for first, later in ((0, 1), (1, 2), (21, 22)):
        x[later] = F.normalize(x[first] + 0.1 * torch.randn(16, generator=generator), dim=0)
    x[40], x[59] = x[2], x[58]  # a copy in another class, and one in its own
    groups = torch.arange(60)
    groups[40], groups[59] = 2, 58
    linked = groups[:, None] == groups
    for c in range(3):
        own = [i for i in range(60) if labels[i] == c and i != 59]
        distances = [float(1 - x[i] @ x[j]) for i in own for j in own if i < j]
        limit = SAME_OCCASION * min(1.0, FEW / len(own)) ** FALL * float(torch.tensor(distances).median())
        for i in own:
            for j in own:
                linked[i, j] |= bool(1 - x[i] @ x[j] < limit)
    reached = linked.clone()
    for _ in range(60):
        reached = (reached.double() @ linked.double()) > 0
    monkeypatch.setattr(familiarity, "BLOCK", block)
    found = find_occasions(x, labels, groups)
    assert ((found[:, None] == found) == reached).all()
    assert len({*found[[0, 1, 2, 40]].tolist()}) == 1
    assert found[21] == found[22] != found[23]
