from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.clip import CLIP
from dca.methods import sim
from dca.methods.base import Problem
from dca.methods.sim import SiM, SiMOptions, imagenet_names
from dca.methods.summary import parameter_count
from oracles.images import Images

CLASSES = ("bkr", "n0144", "??", "x")


def build(clip: CLIP, images: Images, names: tuple[str, ...] = CLASSES, **options: object) -> SiM:
    method = SiM.build(clip, Problem(names=names, shots=3), SiMOptions(**options))  # type: ignore[arg-type]
    method.finish(images)
    return method.build_head()


def literal(clip: CLIP, images: Images, kept: Tensor, ridge: float = 0.1) -> tuple[Tensor, Tensor]:
    """W (K, C) by the normal equations of K unknowns, and similarities (N, K) of all images."""
    texts = clip.encode_text([f"a photo of a {name}." for name in imagenet_names()]).double()
    f = clip.encode_image(images.pixels).double()
    L = (f / f.norm(dim=1, keepdim=True)) @ (texts / texts.norm(dim=1, keepdim=True)).T
    Y = torch.zeros(len(L), len(CLASSES), dtype=torch.float64)
    for i, label in enumerate(images.labels.tolist()):
        Y[i, label] = 1
    own = L[kept]
    W = torch.linalg.inv(own.T @ own + ridge * torch.eye(L.shape[1], dtype=torch.float64)) @ own.T @ Y[kept]
    return W.detach(), L.detach()


def test_the_thousand_names_are_there() -> None:
    names = imagenet_names()
    assert len(names) == 1000
    assert names[:2] == ("tench", "goldfish")
    assert parameter_count(SiM) == 100 * 1000


@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (1, 2, 9, 1), (10, 12, 11, 9)])
@pytest.mark.parametrize("ridge", [0.1, 2.0])
def test_weights_and_probabilities_equal_the_equations(clip: CLIP, counts: tuple[int, ...], ridge: float) -> None:
    """Fewer and more images than dimensions of the features."""
    images = Images(counts)
    method = build(clip, images, ridge=ridge)
    W, L = literal(clip, images, torch.ones(len(images.labels), dtype=torch.bool), ridge)
    torch.testing.assert_close(method.mapping.detach().double(), W.T, atol=1e-5, rtol=0)
    got = method.classify(method.encode(images.pixels)).detach()
    torch.testing.assert_close(got.double(), (clip.tau * L @ W).softmax(-1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("copies", [(), (4, 5), (4, 11)])
def test_held_out_predictions_are_those_of_a_fit_without_the_image(clip: CLIP, copies: tuple[int, ...]) -> None:
    """A class of one image, and near-copies of the same and of different classes."""
    images = Images((3, 1, 4, 5))
    images.groups[list(copies)] = 99
    held = build(clip, images).predict_held_out(images)
    assert held.how == "leave-one-out"
    for i in range(len(images.labels)):
        kept = images.groups != images.groups[i]
        if int(images.labels[i]) not in images.labels[kept]:
            assert np.isnan(held.probabilities[i]).all()
            continue
        W, L = literal(clip, images, kept)
        expected = (clip.tau * L[i] @ W).softmax(-1).numpy()
        np.testing.assert_allclose(held.probabilities[i], expected, atol=1e-5)
    assert held.known.sum() == 12


def test_copies_that_are_a_whole_class_have_no_prediction(clip: CLIP) -> None:
    images = Images((2, 2, 3, 3))
    images.groups[:2] = 7
    assert build(clip, images).predict_held_out(images).known.tolist() == [False, False, *[True] * 8]


def test_no_class_name_is_read(clip: CLIP) -> None:
    images = Images((2, 2, 2, 2))
    f = F.normalize(clip.encode_image(images.pixels), dim=-1)
    one, other = build(clip, images), build(clip, images, ("tree", "dog", "cat", "sea"))
    assert torch.equal(one.classify(f), other.classify(f))
    assert torch.equal(one.with_name(2, "tree").classify(f), one.classify(f))


def test_a_finished_model_encodes_no_sentence(clip: CLIP, monkeypatch: pytest.MonkeyPatch) -> None:
    images = Images((1, 2, 1, 1))
    method = build(clip, images)
    monkeypatch.setattr(sim, "encode_class_texts", None)
    other = SiM.build(clip, method.problem, SiMOptions())
    other.restore(method.state_dict())
    f = method.encode(images.pixels)
    assert torch.equal(other.classify(f), method.classify(f))


def test_sentences_are_averaged_as_unit_vectors(clip: CLIP) -> None:
    two = ("a photo of a {}.", "the {} itself")
    method = SiM.build(clip, Problem(names=CLASSES, shots=1), SiMOptions(templates=two))
    first = imagenet_names()[0]
    unit = F.normalize(clip.encode_text([t.format(first) for t in two]), dim=-1)
    torch.testing.assert_close(method.encode_sentences()[0], F.normalize(unit.mean(0), dim=-1))


def test_damaged_results_are_named(clip: CLIP) -> None:
    method = build(clip, Images((1, 1, 1, 1)))
    assert any("weight" in line for line in method.check_results({"weight": torch.zeros(3, 2)}))
