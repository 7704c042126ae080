from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.clip import CLIP
from dca.methods.base import Problem
from dca.methods.lp_plus_plus import LPPlusPlus, LPPlusPlusOptions, TextProbe
from dca.methods.summary import parameter_count
from oracles.images import Images
from oracles.lp_plus_plus import train

CLASSES = ("cat", "dog", "a photo", "x")


def build(clip: CLIP, images: Images, **options: Any) -> LPPlusPlus:
    method = LPPlusPlus.build(clip, Problem(names=CLASSES, shots=3), LPPlusPlusOptions(**options))
    method.finish(images)  # type: ignore[arg-type]
    return method.build_head()


def unit(clip: CLIP, pixels: Tensor) -> Tensor:
    return F.normalize(clip.encode_image(pixels).detach().double(), dim=-1)


def unit_texts(clip: CLIP) -> Tensor:
    texts = clip.encode_text([f"a photo of a {name}." for name in CLASSES]).detach()
    return F.normalize(texts.double(), dim=-1)


@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (1, 1, 1, 1), (4, 1, 2, 3)])
@pytest.mark.parametrize("alpha_gradient", ["sum", "last"])
@pytest.mark.parametrize("bias", [False, True])
def test_it_equals_steps_by_backpropagation(
    clip: CLIP, counts: tuple[int, ...], alpha_gradient: Any, bias: bool
) -> None:
    images = Images(counts)
    method = build(clip, images, views=2, iterations=25, alpha_gradient=alpha_gradient, bias=bias)
    f = torch.cat([unit(clip, images.view(v, 0.5)) for v in range(2)])
    text = unit_texts(clip)
    reset = alpha_gradient == "last"
    w, alpha, b = train(f, images.labels.repeat(2), text, iterations=25, reset=reset, bias=bias)[-1]
    torch.testing.assert_close(method.weight.double(), w, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(method.alpha.double(), alpha, atol=1e-4, rtol=1e-4)
    new = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(4))
    expected = (unit(clip, new) @ w.T + alpha * (unit(clip, new) @ text.T) + b).softmax(dim=-1)
    torch.testing.assert_close(method.classify(method.encode(new)).double(), expected, atol=2e-5, rtol=1e-4)


def test_the_steps_do_not_diverge_and_reduce_the_loss(clip: CLIP) -> None:
    """η_w is at most 2 (1 + 0.9) / curvature, the limit of momentum for a quadratic; the bound is λ_max / 2n."""
    images = Images((3, 2, 4, 3))
    f, text = unit(clip, images.pixels), unit_texts(clip)
    probe = TextProbe(f, images.labels, text)
    rate, _ = probe.step_sizes()
    curvature = float(torch.linalg.eigvalsh(f.T @ f)[-1]) / (2 * len(f))
    assert rate * curvature <= 3.8
    losses = [
        float(F.cross_entropy(f @ w.T + alpha * (f @ text.T) + b, images.labels))
        for w, alpha, b in train(f, images.labels, text, iterations=300)
    ]
    assert losses[-1] < losses[0]
    method = build(clip, images, views=0)
    own = method.classify(method.encode(images.pixels))
    assert float(F.nll_loss(own.log().double(), images.labels)) == pytest.approx(losses[-1], abs=1e-3)


def test_the_last_of_the_best_iterations_on_validation_images_is_kept(clip: CLIP) -> None:
    validation = Images((4, 4, 4, 4), seed=7)
    images = Images((3, 3, 3, 3), validation=validation)
    method = build(clip, images, views=0, iterations=60)
    text, unseen = unit_texts(clip), unit(clip, validation.pixels)
    states = train(unit(clip, images.pixels), images.labels, text, iterations=60)
    right = [
        int(((unseen @ w.T + alpha * (unseen @ text.T) + b).argmax(dim=1) == validation.labels).sum())
        for w, alpha, b in states
    ]
    last = max(i for i, score in enumerate(right) if score == max(right))
    torch.testing.assert_close(method.weight.double(), states[last][0], atol=1e-5, rtol=1e-4)
    assert method.options_for_folds(method.options).iterations == last + 1


def test_without_iterations_it_is_the_start(clip: CLIP) -> None:
    images = Images((3, 2, 4, 3))
    method = build(clip, images, views=0, iterations=0)
    f, text = unit(clip, images.pixels), unit_texts(clip)
    sums = torch.stack([f[images.labels == c].sum(dim=0) for c in range(4)])
    torch.testing.assert_close(method.weight.double(), sums, atol=1e-5, rtol=1e-5)
    cosines = [float((f[images.labels == c] @ text[c]).mean()) for c in range(4)]
    assert method.alpha.tolist() == pytest.approx([250 * sum(cosines) / 4] * 4, rel=1e-5)


def test_51300_values_are_learned_on_vit_b_16_and_51400_with_a_bias() -> None:
    assert parameter_count(LPPlusPlus) == 51300
    assert parameter_count(LPPlusPlus, bias=True) == 51400


def test_a_class_is_removed_with_its_rows(clip: CLIP) -> None:
    images = Images((2, 3, 1, 2))
    method = build(clip, images, views=0, bias=True)
    f = method.encode(images.pixels)
    whole = method.classify(f)[:, [0, 1, 3]]
    torch.testing.assert_close(
        method.without_class(2).classify(f), whole / whole.sum(dim=1, keepdim=True), atol=1e-5, rtol=1e-4
    )
