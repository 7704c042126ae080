"""The centre of DCA's covariances, chosen on training images that are left out, against a literal implementation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.clip import CLIP
from dca.methods.base import Problem
from dca.methods.dca import DCA, DCAOptions
from dca.methods.shared import center
from dca.methods.shared.center import choose_center, number_folds
from dca.methods.shared.gaussian import paper_gammas
from oracles import dca as oracle
from oracles.images import Images

D, TAU = 128, 50.0


def make_problem(text_error: float, *, counts: tuple[int, ...] = (5,) * 6, seed: int = 0) -> tuple[Tensor, ...]:
    """Unit text features (2, C, D), unit image features (N, D) and labels; text_error: length of the noise in texts."""
    draw = torch.Generator().manual_seed(seed)
    means = F.normalize(torch.randn(len(counts), D, generator=draw), dim=-1)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    images = F.normalize(means[labels] + torch.randn(len(labels), D, generator=draw) / D**0.5, dim=-1)
    texts = F.normalize(means + text_error * torch.randn(2, *means.shape, generator=draw) / D**0.5, dim=-1)
    return texts, images, labels


def is_right(u: Tensor, x: Tensor, y: Tensor, i: int, left_out: list[int], about: str) -> bool:
    """Whether image i is recognised by the head of the images that are not left out, written out by hand."""
    kept = [j for j in range(len(y)) if j not in left_out]
    total = torch.zeros(u.shape[1], dtype=torch.float64)
    for prompt in u.double():
        distances = []
        for c, text in enumerate(prompt):
            own = x[[j for j in kept if y[j] == c]].double()
            if len(own) == 1 and (y == c).sum() > 1:
                own = own.repeat(2, 1)
            middle = text if about == "text" else own.mean(0)
            equal = about == "visual" and bool((own == own[0]).all())
            sigma = torch.eye(D).double() if equal else oracle.dense_covariance(own, middle, *paper_gammas(5), True)
            distances.append(float(oracle.dense_distance(sigma, x[i].double(), text)))
        total += torch.tensor(oracle.probability(distances, TAU, 1e-6, "inverse"))
    return int(total.argmax()) == int(y[i])


def choose_literally(u: Tensor, x: Tensor, y: Tensor, groups: Tensor) -> str:
    """The rule in loops: image after image, each with all that leaves together with it."""
    gains = []
    for i in range(len(y)):
        places = {c: sorted(set(groups[y == c].tolist())) for c in set(y.tolist())}
        turn = {j: places[int(y[j])].index(int(groups[j])) % 5 for j in range(len(y)) if len(places[int(y[j])]) > 1}
        if i in turn:
            together = [j for j in turn if turn[j] == turn[i]]
            text, visual = (is_right(u, x, y, i, together, about) for about in ("text", "visual"))
            gains.append(int(text) - int(visual))
    more = gains.count(1) - gains.count(-1)
    return "text" if more > 0 and more**2 > gains.count(1) + gains.count(-1) else "visual"


@pytest.mark.parametrize(("text_error", "seed"), [(2.0, 0), (3.0, 1), (3.0, 2), (3.0, 4), (3.5, 0), (4.0, 3), (8.0, 1)])
def test_the_choice_is_that_of_a_literal_implementation(text_error: float, seed: int) -> None:
    u, x, y = make_problem(text_error, counts=(5, 5, 7, 3, 4, 2), seed=seed)
    groups = torch.arange(len(y))
    groups[1], groups[6] = 0, 5  # near-copies
    assert choose_center(u, x, y, groups, shots=5, tau=TAU) == choose_literally(u, x, y, groups)


@pytest.mark.parametrize(
    ("wins", "losses", "expected"),
    [(0, 0, "visual"), (0, 9, "visual"), (1, 0, "visual"), (2, 0, "text"), (3, 1, "visual"), (4, 1, "text")],
)
def test_a_difference_that_may_be_chance_leaves_the_images(
    wins: int, losses: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = torch.tensor([True] * wins + [False] * losses + [True, False])
    visual = torch.tensor([False] * wins + [True] * losses + [True, False])
    monkeypatch.setattr(center, "recognise_left_out", lambda *given, **more: torch.stack([text, visual]))
    u, x, y = make_problem(1.0)
    assert choose_center(u, x, y, torch.arange(len(y)), shots=5, tau=TAU) == expected


def test_weak_texts_choose_the_text_and_strong_ones_the_images() -> None:
    for text_error, expected in ((0.5, "visual"), (8.0, "text")):
        u, x, y = make_problem(text_error)
        assert choose_center(u, x, y, torch.arange(len(y)), shots=5, tau=TAU) == expected


@pytest.mark.parametrize(("counts", "expected"), [((1,) * 6, "visual"), ((2,) * 12, "text"), ((2, 1, 1), "visual")])
def test_classes_with_one_image_cannot_decide(counts: tuple[int, ...], expected: str) -> None:
    u, x, y = make_problem(6.0, counts=counts)
    assert choose_center(u, x, y, torch.arange(len(y)), shots=2, tau=TAU) == expected


def test_every_class_leaves_equally_many_images_and_copies_leave_together() -> None:
    labels = torch.tensor([0] * 10 + [1] * 10 + [2, 2] + [3])
    groups = torch.arange(len(labels))
    groups[3] = 0
    groups[21] = groups[20]
    folds = number_folds(labels, groups)
    assert folds[3] == folds[0]
    assert folds[10:20].bincount().tolist() == [2] * 5
    assert folds[:10].bincount().tolist() == [3, 2, 2, 2, 1]
    assert folds[-3:].tolist() == [-1] * 3, "no image would be left of these classes"


def finished(clip: CLIP, images: Images, **options: object) -> DCA:
    method = DCA.build(clip, Problem(names=("cat", "dog", "x"), shots=4), DCAOptions(n_prompts=2, **options))  # type: ignore[arg-type]
    method.prepare(images)
    method.finish(images)
    return method.build_head()


@pytest.mark.parametrize("about", ["text", "visual"])
def test_dca_measures_spread_about_what_was_chosen(clip: CLIP, about: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def choose(u: Tensor, features: Tensor, labels: Tensor, groups: Tensor, *, shots: int, tau: float) -> str:
        seen.append((u, features, labels, groups, shots, tau))
        return about

    monkeypatch.setattr("dca.methods.dca.choose_center", choose)
    images = Images((4, 4, 4))
    chosen, given = finished(clip, images), finished(clip, images, center=about)
    f = chosen.encode(images.pixels)
    assert torch.equal(chosen.classify(f), given.classify(f))
    other = given.with_options({"center": "visual" if about == "text" else "text"})
    assert not torch.equal(chosen.classify(f), other.classify(f))
    assert torch.equal(other.with_options({"center": "chosen"}).classify(f), chosen.classify(f)), "it is remembered"
    u, features, labels, groups, shots, tau = seen[0]
    frozen = F.normalize(images.frozen_features(), dim=-1)
    torch.testing.assert_close(features, frozen, msg="features without visual tokens")
    assert u.shape == (2, 3, features.shape[1])
    assert torch.equal(labels, images.labels)
    assert torch.equal(groups, images.groups)
    assert (shots, tau) == (4, clip.tau)


def test_the_choice_goes_with_the_model(clip: CLIP) -> None:
    images = Images((4, 4, 4))
    method = finished(clip, images)
    method.text_is_center = torch.tensor(True)
    method.build_head()
    again = DCA.build(clip, method.problem, method.options)
    again.restore(method.state_dict())
    assert (method.options.center, again.center) == ("chosen", "text")
    moved = method.retarget(Problem(names=("x", "cat"), shots=4), (2, 0))
    assert moved.center == "text"
    assert method.with_class("bird", Images((4,))).center == "text"
