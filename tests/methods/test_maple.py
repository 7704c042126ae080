from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from conftest import make_clip
from dca.backbones.blocks import Residual
from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.methods.base import Problem
from dca.methods.maple import MaPLe, MaPLeOptions
from dca.methods.summary import parameter_count
from dca.training.loop import learning_rate_at
from oracles import towers
from oracles.images import Images

CLASSES = ("cat", "dog", "a_photo", "x")
NAMES = ("cat", "dog", "a photo", "x")
PATCHES = 16


def build(clip: CLIP, **options: object) -> MaPLe:
    return MaPLe.build(clip, Problem(names=CLASSES, shots=3, seed=1), MaPLeOptions(**options))  # type: ignore[arg-type]


def image_features(clip: CLIP, method: MaPLe, pixels: Tensor) -> Tensor:
    """Tokens of the visual tower, each made of a text token by its own map and put behind the patches."""
    made = [
        [A @ p + b for p in P]
        for P, A, b in zip(
            method.prompts.detach().double(),
            method.weights.detach().double(),
            method.biases.detach().double(),
            strict=True,
        )
    ]

    def before_norm(layer: int, x: Tensor) -> Tensor:
        return torch.stack([*x, *made[0]])

    def change(layer: int, x: Tensor) -> Tensor:
        return torch.stack([*x[: 1 + PATCHES], *made[layer]]) if 0 < layer < len(made) else x

    return torch.stack([towers.encode_image(clip, image, change, before_norm) for image in pixels.double()])


def text_features(clip: CLIP, method: MaPLe, fixed: str) -> Tensor:
    prompts, rows = method.prompts.detach().double(), []
    n = prompts.shape[1]

    def change(layer: int, x: Tensor) -> Tensor:
        return torch.stack([x[0], *prompts[layer], *x[1 + n :]]) if 0 < layer < len(prompts) else x

    for name in NAMES:
        sos, *words = towers.embed(clip, f"{fixed}{name}.")
        rows.append(towers.encode_text(clip, torch.stack([sos, *prompts[0], *words]), change))
    return torch.stack(rows)


@pytest.mark.parametrize("depth", [1, 2, 9])
@pytest.mark.parametrize(("tokens", "fixed"), [(2, "of a "), (4, ""), (6, "")])
def test_logits_and_loss_equal_the_equations(clip: CLIP, depth: int, tokens: int, fixed: str) -> None:
    images, plain = Images((2, 1, 1, 2)), towers.double(clip)
    method = build(clip, depth=depth, tokens=tokens)
    step = method.step(images.batch())
    with torch.no_grad():
        f, t = image_features(plain, method, images.pixels), text_features(plain, method, fixed)
    logits = plain.tau * f @ t.T
    torch.testing.assert_close(step.probabilities.double(), logits.softmax(-1), atol=1e-5, rtol=0)
    assert list(step.terms) == ["cls"]
    assert float(step.terms["cls"].detach()) == pytest.approx(towers.cross_entropy(logits, images.labels), abs=1e-5)
    method.finish(images)
    method.build_head()
    torch.testing.assert_close(method.classify(f.float()).double(), logits.softmax(-1), atol=1e-5, rtol=0)


def test_parameters_on_vit_b_16() -> None:
    assert parameter_count(MaPLe) == parameter_count(MaPLe, classes=10) == 3_555_072


class WithoutVisualTokens(MaPLe):
    def visual_tokens(self) -> Tensor:
        return super().visual_tokens()[:, :0]


def test_at_depth_one_without_visual_tokens_it_is_zero_shot(clip: CLIP) -> None:
    images = Images((1, 1, 1, 1))
    problem = Problem(names=CLASSES, shots=1)
    method = WithoutVisualTokens.build(clip, problem, MaPLeOptions(depth=1))
    expected = F.normalize(clip.encode_text([f"a photo of a {name}." for name in NAMES]), dim=-1)
    torch.testing.assert_close(method.encode_text(), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(method.encode(images.pixels), F.normalize(clip.encode_image(images.pixels), dim=-1))


def test_it_starts_as_published(clip: CLIP) -> None:
    method = build(clip)
    prompts, weights, biases = method.prompts.detach(), method.weights.detach(), method.biases.detach()
    assert prompts.shape == (3, 2, 24)
    assert weights.shape == (3, 32, 24)
    torch.testing.assert_close(prompts[0], clip.text.embedding.weight[clip.tokenizer.encode("a photo")])
    assert float(prompts[1:].std()) == pytest.approx(0.02, rel=0.2)
    assert torch.equal(weights[1], weights[2])
    assert torch.equal(biases[1], biases[2])
    assert not torch.allclose(weights[0], weights[1], atol=0.01)
    for tensor in (weights, biases):
        assert 0.8 * 24**-0.5 < float(tensor.abs().max()) <= 24**-0.5


def test_more_tokens_than_words_are_random(clip: CLIP) -> None:
    prompts = build(clip, tokens=30).prompts.detach()
    assert float(prompts[0].std()) == pytest.approx(0.02, rel=0.1)


def test_replaced_outputs_do_not_matter_and_kept_ones_do() -> None:
    """Noise on what block 0 of a tower makes of its tokens, with and without tokens at block 1."""
    clip, images = make_clip(), Images((1, 1, 1, 1))

    def noise(module: torch.nn.Module, inputs: object, output: Residual) -> Residual:
        noisy = output.total().clone()
        noisy[:, -2:] += torch.randn_like(noisy[:, -2:])
        return Residual(noisy)

    for depth, same in [(2, True), (1, False)]:
        method = build(clip, depth=depth)
        clean = method.encode(images.pixels)
        handle = clip.visual.blocks[0].register_forward_hook(noise)
        assert torch.equal(method.encode(images.pixels), clean) == same
        handle.remove()


def test_deep_text_tokens_hide_what_came_before_them(clip: CLIP) -> None:
    """P_0 reaches the text feature through the words behind it; block 1's own tokens cut its direct way on."""
    plain = towers.double(clip)
    method = build(clip, depth=3)
    prompts = method.prompts.detach().double()
    sos, *words = towers.embed(plain, "of a cat.")
    rows = torch.stack([sos, *prompts[0], *words])

    def change(noise: float, layer: int, x: Tensor) -> Tensor:
        noisy = torch.cat([x[:1], x[1:3] + noise, x[3:]])
        return torch.stack([noisy[0], *prompts[layer], *noisy[3:]]) if layer else x

    clean, noisy = (
        towers.encode_text(plain, rows, lambda layer, x, size=size: change(size, layer, x)) for size in (0.0, 3.0)
    )
    assert torch.equal(clean, noisy)
    torch.testing.assert_close(method.encode_text()[0].detach().double(), clean.detach(), atol=1e-5, rtol=0)


def test_the_sequence_keeps_its_length_beyond_the_depth() -> None:
    clip, lengths = make_clip(), []
    for block in clip.visual.blocks:
        block.register_forward_pre_hook(lambda module, inputs: lengths.append(inputs[0].x.shape[1]))
    for depth in (1, 2, 3):
        build(clip, depth=depth).encode(Images((1, 1)).pixels)
    assert lengths == [1 + PATCHES + 2] * 9


def test_the_rate_of_each_epoch_is_the_published_one() -> None:
    chosen = MaPLeOptions()
    assert (chosen.epochs, chosen.batch_size, chosen.learning_rate) == (5, 4, 0.0035)
    rates = [learning_rate_at(epoch, 5, chosen, 0.0035) for epoch in range(5)]
    assert rates == pytest.approx([1e-5, 0.0035, 0.003166, 0.002291, 0.001209], abs=5e-7)


def test_gradients_reach_every_own_parameter_and_nothing_else() -> None:
    clip, images = make_clip(), Images((1, 1, 1, 1))
    method = build(clip)
    method.step(images.batch()).terms["cls"].backward()
    for name, parameter in method.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.flatten(1).abs().sum(-1).min() > 0, name
    assert all(p.grad is None for p in clip.parameters())


def test_names_that_do_not_fit_are_listed(clip: CLIP) -> None:
    with pytest.raises(UserError, match="longer than") as caught:
        MaPLe.build(clip, Problem(names=("cat", "z" * 80, "y" * 90), shots=1), MaPLeOptions())
    assert len(caught.value.details) == 2
