from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.methods import cocoop
from dca.methods.base import Problem
from dca.methods.cocoop import CoCoOp, CoCoOpOptions
from dca.methods.coop import CoOp, CoOpOptions
from dca.methods.summary import parameter_count
from oracles.images import Images
from oracles.steps import require_gradients, require_own_randomness, unit_images, values
from oracles.text import encode_sequences_padded
from oracles.towers import cross_entropy

CLASSES = ("cat", "dog", "a_photo", "x y z")
PROBLEM = Problem(names=CLASSES, shots=3, seed=1)


def build(clip: CLIP, **options: object) -> CoCoOp:
    return CoCoOp.build(clip, PROBLEM, CoCoOpOptions(**options))  # type: ignore[arg-type]


def loud(clip: CLIP) -> CoCoOp:
    """With a network whose shift is no smaller than the tokens."""
    method = build(clip, reduction=2)
    with torch.no_grad():
        for parameter in method.meta.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)))
    return method


def written_out(clip: CLIP, method: CoCoOp, f: Tensor) -> Tensor:
    """z (B, C), one image and one class at a time."""
    first, _, second = method.meta
    table, tokenizer = clip.text.embedding.weight, clip.tokenizer
    scale = float(clip.logit_scale.exp())
    rows = []
    for image in f:
        hidden = (first.weight @ image + first.bias).clamp_min(0)
        shift = second.weight @ hidden + second.bias
        sequences = []
        for name in CLASSES:
            tail = [*tokenizer.encode(name.replace("_", " ")), *tokenizer.encode("."), tokenizer.eot_id]
            shifted = torch.stack([v + shift for v in method.context])
            sequences.append(torch.cat([table[[tokenizer.sot_id]], shifted, table[tail]]))
        rows.append(torch.stack([scale * (image * t).sum() for t in encode_sequences_padded(clip, sequences)]))
    return torch.stack(rows)


def test_step_and_probabilities_equal_the_equations(clip: CLIP) -> None:
    images = Images((2, 1, 1, 2))
    method = loud(clip)
    with torch.no_grad():
        z = written_out(clip, method, unit_images(clip, images.pixels))
    step = method.step(images.batch())
    assert values(step) == pytest.approx({"cls": cross_entropy(z, images.labels)}, abs=1e-5)
    torch.testing.assert_close(step.probabilities, z.softmax(-1), atol=1e-5, rtol=0)
    probabilities = method.build_head().classify(method.encode(images.pixels))
    torch.testing.assert_close(probabilities, z.softmax(-1), atol=1e-5, rtol=0)


def test_trained_parameters_on_vit_b_16() -> None:
    assert parameter_count(CoCoOp) == 35_360
    assert parameter_count(CoCoOp, classes=7) == 35_360


def test_without_a_shift_it_is_coop_with_four_tokens(clip: CLIP) -> None:
    images = Images((1, 2, 1, 1))
    method = loud(clip)
    with torch.no_grad():
        method.meta[2].weight.zero_()
        method.meta[2].bias.zero_()
    coop = CoOp.build(clip, PROBLEM, CoOpOptions(phrase="a photo of a"))
    assert len(method.context) == 4
    f = method.encode(images.pixels)
    expected = clip.tau * f @ coop.encode_text().mT
    torch.testing.assert_close(method.logits(f), expected, atol=1e-5, rtol=0)


def test_a_batch_gives_what_its_images_give_one_by_one(clip: CLIP) -> None:
    method = loud(clip)
    f = method.encode(Images((2, 2, 2, 1)).pixels)
    alone = torch.cat([method.logits(one) for one in f.split(1)])
    torch.testing.assert_close(method.logits(f), alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(method.build_head().classify(f), alone.softmax(-1), atol=1e-5, rtol=0)


def test_images_at_once_bound_the_sentences(clip: CLIP, monkeypatch: pytest.MonkeyPatch) -> None:
    method = build(clip).build_head()
    assert method.max_batch_size == 4096 // len(CLASSES)
    monkeypatch.setattr(cocoop, "SENTENCES", 9)
    assert method.max_batch_size == 2


def test_the_image_changes_the_wording(clip: CLIP) -> None:
    method = loud(clip)
    head = method.build_head().head
    assert isinstance(head, cocoop.ConditionalHead)
    t = head.texts(method.encode(Images((1, 1, 1, 1)).pixels))
    assert t.shape == (4, 4, 16)
    assert float((t[0] - t[1]).detach().abs().max()) > 1e-3


def test_gradients_reach_context_and_network(clip: CLIP) -> None:
    fresh = make_clip()
    require_gradients(loud(fresh), fresh, Images((2, 1, 1, 1)))


def test_the_network_follows_torchs_law_from_its_own_stream(clip: CLIP) -> None:
    require_own_randomness(CoCoOp, clip, PROBLEM)
    first, _, second = build(clip, reduction=1).meta
    for layer in (first, second):
        for parameter in layer.parameters():
            assert float(parameter.detach().abs().max()) <= 16**-0.5
        assert float(layer.weight.detach().std()) == pytest.approx(16**-0.5 / 3**0.5, rel=0.15)


def test_the_recipe_is_the_papers_and_a_phrase_can_be_replaced(clip: CLIP) -> None:
    chosen = build(clip).options
    assert (chosen.epochs, chosen.batch_size, chosen.learning_rate, chosen.optimizer) == (10, 1, 0.002, "sgd")
    assert build(clip, phrase="", n_tokens=6).context.shape == (6, 24)
    with pytest.raises(UserError, match="longer than"):
        build(clip, phrase="x " * 75)
