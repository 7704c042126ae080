from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from conftest import make_clip, tiny_config
from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.methods.base import Problem
from dca.methods.coop import CoOp, CoOpOptions
from dca.methods.gallop import GalLoP, GalLoPOptions, GlobalLocalHead, draw_prompts, mean_of_top
from dca.methods.summary import parameter_count
from dca.training.loop import learning_rate_at
from oracles.images import Images
from oracles.steps import require_gradients, require_own_randomness, values
from oracles.text import encode_sequences_padded
from oracles.towers import block_of, cross_entropy

CLASSES = ("cat", "dog", "a_photo", "x y z")
PROBLEM = Problem(names=CLASSES, shots=3, seed=1)


def build(clip: CLIP, problem: Problem = PROBLEM, **options: object) -> GalLoP:
    return GalLoP.build(clip, problem, GalLoPOptions(**options))  # type: ignore[arg-type]


def loud(clip: CLIP, **options: object) -> GalLoP:
    """With prompts that differ and a layer that is not the identity."""
    method = build(clip, **options)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in (method.global_prompts, method.local_prompts):
            parameter.add_(torch.randn(parameter.shape, generator=generator))
        method.local_layer.add_(0.3 * torch.randn(method.local_layer.shape, generator=generator))
    return method


def unit(x: Tensor) -> Tensor:
    return x / x.square().sum().sqrt()


def written_texts(clip: CLIP, prompts: Tensor) -> Tensor:
    """Unit text features (M, C, D) of sequences put together by hand, without a full stop."""
    table, tokenizer = clip.text.embedding.weight, clip.tokenizer
    found = []
    for prompt in prompts:
        tails = [[*tokenizer.encode(name.replace("_", " ")), tokenizer.eot_id] for name in CLASSES]
        sequences = [torch.cat([table[[tokenizer.sot_id]], prompt, table[tail]]) for tail in tails]
        found.append(encode_sequences_padded(clip, sequences))
    return torch.stack(found)


def written_image(clip: CLIP, method: GalLoP, pixels: Tensor) -> tuple[Tensor, list[Tensor]]:
    """f and l_1 .. l_P of one image (3, S, S), patch by patch."""
    tower, width = clip.visual, clip.config.vision.width
    x = tower.ln_pre(tower.embed(pixels[None]))[0]
    *before, last = tower.blocks
    for block in before:
        x = block_of(block, x, False, {})
    f = unit(tower.projection.weight @ tower.ln_post(block_of(last, x, False, {})[0]))
    value, bias = last.attn.qkv.weight[2 * width :], last.attn.qkv.bias[2 * width :]
    patches = []
    for row in x[1:]:
        v = value @ last.ln_1(row) + bias
        v = row + last.attn.out.weight @ v + last.attn.out.bias
        v = v + last.mlp(last.ln_2(v))
        patches.append(unit(tower.projection.weight @ (method.local_layer @ tower.ln_post(v))))
    return f, patches


def written_logits(clip: CLIP, method: GalLoP, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """z (B, G, C) and z' (B, J, C), one image, prompt and class at a time."""
    scale, top = float(clip.logit_scale.exp()), method.options.top
    t, s = written_texts(clip, method.global_prompts), written_texts(clip, method.local_prompts)
    whole = torch.zeros(len(pixels), len(t), len(CLASSES))
    local = torch.zeros(len(pixels), len(s), len(CLASSES))
    for i, image in enumerate(pixels):
        f, patches = written_image(clip, method, image)
        for c in range(len(CLASSES)):
            for g in range(len(t)):
                whole[i, g, c] = scale * (f * t[g, c]).sum()
            for j, k in enumerate(top):
                found = sorted((scale * float((patch * s[j, c]).sum()) for patch in patches), reverse=True)[:k]
                local[i, j, c] = sum(found) / len(found)
    return whole, local


@pytest.mark.parametrize(
    "options",
    [{}, {"dropout": 0.0}, {"dropout": 0.5, "top": (3,)}, {"dropout": 1.0, "global_prompts": 1, "top": (1, 7)}],
    ids=str,
)
def test_step_and_probabilities_equal_the_equations(clip: CLIP, options: dict[str, object]) -> None:
    """The tiny backbone has 16 patches, so that the default k = 20 means all of them."""
    images = Images((2, 1, 1, 1))
    method = loud(clip, **options)
    with torch.no_grad():
        z, local = written_logits(clip, method, images.pixels)
    B, G, _ = z.shape
    drawn = draw_prompts(B, G, method.options.dropout, images.batch().noise).tolist()
    kept = torch.stack([sum(z[i, g] for g in own) / len(own) for i, own in enumerate(drawn)])
    expected = {
        "global": cross_entropy(kept, images.labels),
        "local": sum(cross_entropy(local[:, j], images.labels) for j in range(local.shape[1])) / local.shape[1],
    }
    step = method.step(images.batch())
    assert values(step) == pytest.approx(expected, abs=1e-5)
    probabilities = ((z.mean(dim=1) + local.mean(dim=1)) / 2).softmax(dim=-1)
    torch.testing.assert_close(step.probabilities, probabilities, atol=1e-5, rtol=0)
    method.finish(images)
    found = method.build_head().classify(method.encode(images.pixels))
    torch.testing.assert_close(found.detach(), probabilities, atol=1e-5, rtol=0)


def test_logits_equal_the_equations(clip: CLIP) -> None:
    method, pixels = loud(clip), Images((1, 1, 0, 1)).pixels
    with torch.no_grad():
        z, local = method.logits(method.encode(pixels), method.encode_text())
        expected = written_logits(clip, method, pixels)
    torch.testing.assert_close(z.transpose(0, 1), expected[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(local.transpose(0, 1), expected[1], atol=1e-5, rtol=0)


def test_it_starts_at_clip(clip: CLIP) -> None:
    """All prompts are the phrase, and the layer is the identity: global logits are those of CoOp's start."""
    method, pixels = build(clip), Images((1, 1, 1, 1)).pixels
    z, _ = method.logits(method.encode(pixels), method.encode_text())
    coop = CoOp.build(clip, PROBLEM, CoOpOptions(phrase="A photo of a", suffix=""))
    expected = clip.tau * coop.encode(pixels) @ coop.encode_text().mT
    torch.testing.assert_close(z, expected.expand(4, -1, -1), atol=1e-5, rtol=0)
    assert torch.equal(method.local_layer, torch.eye(32))


def test_trained_parameters_on_vit_b_16() -> None:
    assert parameter_count(GalLoP) == 606_208 == 768**2 + 8 * 4 * 512
    assert parameter_count(GalLoP, classes=7) == 606_208


def test_more_patches_than_there_are_means_all(clip: CLIP) -> None:
    z = torch.randn(2, 16, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(mean_of_top(z, 20), z.mean(dim=1))
    torch.testing.assert_close(mean_of_top(z, 1), z.amax(dim=1))
    pixels = Images((1, 1, 1, 1)).pixels
    one, other = build(clip, top=(16,)), build(clip, top=(1000,))
    for method in (one, other):
        method.finish(Images((1, 1, 1, 1)))
    expected = one.build_head().classify(one.encode(pixels))
    torch.testing.assert_close(other.build_head().classify(other.encode(pixels)), expected)


@pytest.mark.parametrize(("dropout", "kept"), [(0.0, 4), (0.25, 3), (0.5, 2), (0.75, 1), (0.9, 1), (1.0, 1)])
def test_dropout_keeps_different_prompts_of_each_image(dropout: float, kept: int) -> None:
    drawn = draw_prompts(4000, 4, dropout, torch.Generator().manual_seed(0))
    assert drawn.shape == (4000, kept)
    assert all(len(set(own)) == kept for own in drawn.tolist())
    shares = torch.bincount(drawn.flatten(), minlength=4) / 4000
    torch.testing.assert_close(shares, torch.full((4,), kept / 4), atol=0.03, rtol=0)


def test_a_batch_gives_what_its_images_give_one_by_one(clip: CLIP) -> None:
    method = loud(clip)
    method.finish(Images((1, 1, 1, 1)))
    method.build_head()
    f = method.encode(Images((2, 2, 1, 1)).pixels).detach()
    assert f.shape == (6, 17 * 16)
    torch.testing.assert_close(method.classify(f), torch.cat([method.classify(one) for one in f.split(1)]))
    assert method.classify(f[:0]).shape == (0, 4)


def test_gradients_reach_prompts_and_layer() -> None:
    fresh = make_clip()
    require_gradients(loud(fresh), fresh, Images((2, 1, 1, 1)))


def test_building_draws_from_no_global_stream(clip: CLIP) -> None:
    require_own_randomness(GalLoP, clip, PROBLEM)


def test_prompts_are_attached_to_other_names(clip: CLIP) -> None:
    images, method = Images((1, 1, 1, 1)), loud(clip)
    method.finish(images)
    other = method.build_head().retarget(dataclasses.replace(PROBLEM, names=("x y z", "bird", "cat")), [3, None, 0])
    f = method.encode(images.pixels).detach()
    torch.testing.assert_close(other.encode(images.pixels).detach(), f)
    torch.testing.assert_close(other.text_features[:, [0, 2]], method.text_features[:, [3, 0]], atol=1e-5, rtol=0)
    assert other.classify(f).shape == (4, 3)
    assert torch.equal(other.local_layer, method.local_layer)
    assert method.with_class("bird", Images((0,))).problem.names == (*CLASSES, "bird")


def test_memory_of_prediction_is_bounded() -> None:
    """One logit per patch and class: ViT-B/16 with ImageNet's classes."""
    head = GlobalLocalHead.from_text(torch.zeros(8, 1000, 4), 100.0, (5, 10, 15, 20), 196)
    assert head.max_batch_size == 2**24 // (196 * 1000) == 85


def test_the_recipe_is_the_authors(clip: CLIP) -> None:
    chosen = build(clip).options
    assert (chosen.epochs, chosen.batch_size, chosen.learning_rate, chosen.optimizer) == (200, 32, 0.002, "sgd")
    assert (chosen.momentum, chosen.weight_decay, chosen.warmup_epochs, chosen.schedule) == (0.9, 0.01, 0, "epoch")
    rates = [learning_rate_at(epoch, 200, chosen, 0.002) for epoch in range(200)]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.002)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    expected = []
    for _ in range(200):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        cosine.step()
    assert rates == pytest.approx(expected, abs=1e-9)


def test_values_of_a_dataset_are_for_the_selection_of_the_paper(clip: CLIP) -> None:
    def settled(dataset: str, rules: str) -> tuple[int | None, int | None]:
        problem = dataclasses.replace(PROBLEM, dataset=dataset, rules=rules)
        chosen = build(clip, problem).options
        return chosen.epochs, chosen.batch_size

    datasets = ("eurosat", "sun397", "imagenet", "dtd")
    assert [settled(name, "paper") for name in datasets] == [(200, 10), (200, 128), (50, 128), (200, 32)]
    assert [settled(name, "strict") for name in datasets] == [(200, 32), (200, 32), (50, 32), (200, 32)]
    problem = dataclasses.replace(PROBLEM, dataset="eurosat", rules="paper")
    assert build(clip, problem, batch_size=7, epochs=3).options.batch_size == 7


def test_options_that_cannot_be_are_refused(clip: CLIP) -> None:
    with pytest.raises(UserError, match="local prompt"):
        build(clip, top=())
    with pytest.raises(UserError, match="out of range"):
        build(clip, top=(5, 0))
    with pytest.raises(UserError, match="longer than"):
        build(clip, phrase="x " * 75)
    assert GalLoP.parse_options(["top=3,9"]).top == (3, 9)


def test_training_lowers_the_loss() -> None:
    clip, images = make_clip(tiny_config()), Images((4, 4, 4, 4))
    method = build(clip)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for seed in range(30):
        loss = torch.stack(list(method.step(images.batch(seed)).terms.values())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.05
    assert F.cosine_similarity(method.global_prompts[0].flatten(), method.global_prompts[1].flatten(), dim=0) < 1 - 1e-6
