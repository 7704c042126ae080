from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.methods import dca
from dca.methods.base import Problem
from dca.methods.dapt import DAPT, OWN_TEXT, OWN_VISUAL, PAPER_TABLE, DAPTOptions, text_potential
from dca.methods.shared.gaussian import paper_gammas
from dca.methods.summary import parameter_count
from dca.methods.vpt import VPT, VPTOptions
from oracles import dca as slow
from oracles import towers
from oracles.images import Images

CLASSES = ("cat", "dog", "a_photo", "x")
NAMES = ("cat", "dog", "a photo", "x")


def build(clip: CLIP, shots: int = 3, classes: tuple[str, ...] = CLASSES, **options: object) -> DAPT:
    return DAPT.build(clip, Problem(names=classes, shots=shots, seed=1), DAPTOptions(**options))  # type: ignore[arg-type]


def image_features(clip: CLIP, pixels: Tensor, tokens: Tensor) -> Tensor:
    def put(layer: int, x: Tensor) -> Tensor:
        return torch.stack([x[0], *tokens, *x[1:]]) if layer == 0 else x

    return torch.stack([towers.encode_image(clip, image, put) for image in pixels.double()])


def text_features(clip: CLIP, context: Tensor) -> Tensor:
    rows = []
    for name in NAMES:
        sos, *words = towers.embed(clip, f"{name}.")
        rows.append(towers.encode_text(clip, torch.stack([sos, *context, *words])))
    return torch.stack(rows)


@pytest.mark.parametrize("counts", [(2, 2, 2, 2), (3, 1, 2, 1)])
def test_logits_and_loss_equal_the_equations(clip: CLIP, counts: tuple[int, ...]) -> None:
    images, plain = Images(counts), towers.double(clip)
    method = build(clip, text_tokens=3, visual_tokens=2, beta_visual=7.0, beta_text=0.3)
    method.prepare(images)
    step = method.step(images.batch())
    with torch.no_grad():
        f = image_features(plain, images.pixels, method.visual.tokens.detach().double())
        t = text_features(plain, method.text.contexts[0].detach().double())
        untuned = image_features(plain, images.pixels, torch.empty(0))
    logits = plain.tau * f @ t.T
    squares = []
    for i, y in enumerate(images.labels.tolist()):
        prototype = untuned[images.labels == y].mean(dim=0)
        squares += [float(f[i, d] - prototype[d]) ** 2 for d in range(16)]
    pairs = [math.exp(-2 * float((t[i] - t[j]).square().sum())) for i in range(4) for j in range(i + 1, 4)]
    expected = {
        "cls": towers.cross_entropy(logits, images.labels),
        "visual": 7.0 * sum(squares) / len(squares),
        "text": 0.3 * sum(pairs) / len(pairs),
    }
    assert {name: float(term.detach()) for name, term in step.terms.items()} == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(step.probabilities.double(), logits.softmax(-1), atol=1e-5, rtol=0)
    method.finish(images)
    method.build_head()
    torch.testing.assert_close(method.classify(f.float()).double(), logits.softmax(-1), atol=1e-5, rtol=0)


def test_parameters_on_vit_b_16() -> None:
    assert parameter_count(DAPT) == parameter_count(DAPT, classes=10) == 20_480


def test_without_its_losses_it_is_coop_with_vpt(clip: CLIP) -> None:
    """β = 0: one learned context of CoOp, VPT's tokens in placement "dapt", cross-entropy and nothing else."""
    images = Images((2, 2, 2, 2))
    method = build(clip, beta_visual=0.0, beta_text=0.0)
    vpt = VPT.build(clip, method.problem, VPTOptions(placement="dapt"))
    with torch.no_grad():
        vpt.tokens[0].copy_(method.visual.tokens)
    method.prepare(images)
    step = method.step(images.batch())
    t = F.normalize(clip.encode_prompts([method.text.contexts[0]], method.text.name_ids)[0], dim=-1)
    expected = F.cross_entropy(clip.tau * vpt.encode(images.pixels) @ t.T, images.labels)
    assert list(step.terms) == ["cls"]
    torch.testing.assert_close(step.terms["cls"], expected)


def test_the_text_term_of_two_classes_is_one_potential() -> None:
    t = F.normalize(torch.randn(2, 16, generator=torch.Generator().manual_seed(0)), dim=-1)
    torch.testing.assert_close(text_potential(t), torch.exp(-2 * (t[0] - t[1]).square().sum()))


def test_the_image_term_is_zero_at_the_prototypes(clip: CLIP) -> None:
    """One image per class and no tokens: every f is its own prototype."""
    images = Images((1, 1, 1, 1))
    method = build(clip, shots=1, visual_tokens=0)
    method.prepare(images)
    assert float(method.step(images.batch()).terms["visual"].detach()) == pytest.approx(0, abs=1e-12)


def test_prototypes_have_unit_norm_at_one_shot_and_less_at_several(clip: CLIP) -> None:
    for counts, low in [((1, 1, 1, 1), 1 - 1e-5), ((3, 3, 3, 3), 0.0)]:
        method = build(clip)
        method.prepare(Images(counts))
        norms = method._prototypes.norm(dim=-1)
        assert low < float(norms.min()) <= float(norms.max()) <= 1 + 1e-5
    assert float(norms.max()) < 1


def test_prototypes_may_come_from_one_augmented_view(clip: CLIP) -> None:
    images, moved = Images((2, 2, 2, 2)), build(clip, prototypes="augmented")
    still = build(clip)
    still.prepare(images)
    moved.prepare(images)
    assert not torch.allclose(still._prototypes, moved._prototypes, atol=1e-4)
    shifted = Images((2, 2, 2, 2))
    shifted.pixels = images.pixels + 0.1
    still.prepare(shifted)
    assert torch.equal(still._prototypes, moved._prototypes)


def test_the_recipe_follows_dataset_and_shots() -> None:
    def recipe(shots: int, dataset: str, **options: str) -> tuple[object, ...]:
        chosen = DAPT.resolve(DAPTOptions(**options), Problem(names=CLASSES, shots=shots, dataset=dataset))  # type: ignore[arg-type]
        return chosen.epochs, chosen.learning_rate, chosen.beta_visual, chosen.beta_text

    assert PAPER_TABLE.keys() == dca.PAPER_TABLE.keys()
    for name, row in PAPER_TABLE.items():
        assert recipe(16, name) == (50 if name == "imagenet" else 200, *row)
    assert [recipe(k, "dtd")[0] for k in (1, 2, 4, 8, 16)] == [50, 100, 100, 200, 200]
    assert recipe(1, "photos") == recipe(1, "dtd", recipe="own") == (50, None, OWN_VISUAL, OWN_TEXT)
    different = {name for name, (rate, *_) in PAPER_TABLE.items() if rate != dca.PAPER_TABLE[name][2]}
    assert different == {"stanford_cars"}


def test_gradients_reach_every_own_parameter_and_nothing_else() -> None:
    clip, images = make_clip(), Images((2, 2, 2, 2))
    method = build(clip)
    method.prepare(images)
    torch.stack(list(method.step(images.batch()).terms.values())).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum(-1).min() > 0 for p in method.parameters())
    assert all(p.grad is None for p in clip.parameters())


def test_with_the_mahalanobis_distance_it_equals_the_equations(clip: CLIP) -> None:
    """DAPT + d_m: the head of DCA over DAPT's features."""
    images = Images((3, 3, 3, 3))
    method = build(clip, test_metric="mahalanobis")
    method.finish(images)
    method.build_head()
    x, t = method.encode(images.pixels).detach().double(), method.encode_text().detach().double()
    f = method.encode(Images((1, 1), seed=5).pixels).detach()
    for row, got in zip(f.double(), method.classify(f), strict=True):
        sigmas = [slow.dense_covariance(x[images.labels == c], t[c], *paper_gammas(3), True) for c in range(4)]
        distances = [float(slow.dense_distance(sigmas[c], row, t[c])) for c in range(4)]
        expected = torch.tensor(slow.probability(distances, clip.tau, 1e-6, "inverse"))
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
