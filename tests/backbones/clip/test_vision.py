from __future__ import annotations

import pytest
import torch
from PIL import Image
from torch import Tensor

from dca.backbones.blocks import Residual
from dca.backbones.clip import CLIP
from dca.backbones.dual_encoder import ExtraTokens


def literal(clip: CLIP, pixels: Tensor, extra: ExtraTokens) -> Tensor:
    """Every row through every layer, tokens put in by hand."""
    tower = clip.visual
    x = tower.embed(pixels)

    def put(x: Tensor, tokens: Tensor, old: int) -> Tensor:
        tokens = tokens.expand(len(x), -1, -1)
        if extra.position == "end":
            return torch.cat([x[:, : x.shape[1] - old], tokens], dim=1)
        return torch.cat([x[:, :1], tokens, x[:, 1 + old :]], dim=1)

    count = 0
    if extra.before_norm:
        x, count = put(x, extra.layers[0], 0), len(extra.layers[0])
    x = tower.ln_pre(x)
    for layer, block in enumerate(tower.blocks):
        if layer in extra.layers and not (layer == 0 and extra.before_norm):
            x, count = put(x, extra.layers[layer], count), len(extra.layers[layer])
        x = block(Residual(x)).total()
    return tower.projection(tower.ln_post(x[:, 0]))


@pytest.mark.parametrize("place", ["after_cls", "end"])
@pytest.mark.parametrize(
    ("before_norm", "layers"),
    [(False, (0,)), (False, (0, 1)), (False, (0, 1, 2)), (False, (2,)), (True, (0,)), (True, (0, 2))],
)
def test_extra_tokens_enter_where_they_should(
    clip: CLIP, place: str, before_norm: bool, layers: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(1)
    tokens = {n: torch.randn(4 + n, clip.config.vision.width, generator=generator) for n in layers}
    pixels = torch.randn(3, 3, 32, 32, generator=generator)
    extra = ExtraTokens(tokens, place, before_norm=before_norm)  # type: ignore[arg-type]
    got = clip.encode_image(pixels, tokens=extra)
    torch.testing.assert_close(got, literal(clip, pixels, extra), atol=1e-5, rtol=0)
    assert not torch.allclose(got, clip.encode_image(pixels), atol=1e-3)


def test_tokens_of_each_image_differ_from_shared_ones(clip: CLIP) -> None:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randn(2, 5, clip.config.vision.width, generator=generator)
    pixels = torch.randn(2, 3, 32, 32, generator=generator)
    together = clip.encode_image(pixels, tokens=ExtraTokens({0: tokens}))
    alone = [clip.encode_image(pixels[i : i + 1], tokens=ExtraTokens({0: tokens[i]})) for i in range(2)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=0)


def test_gradients_reach_tokens_and_no_weight(clip: CLIP) -> None:
    tokens = torch.randn(3, clip.config.vision.width, requires_grad=True)
    clip.encode_image(torch.randn(2, 3, 32, 32), tokens=ExtraTokens({0: tokens})).sum().backward()
    assert tokens.grad is not None
    assert tokens.grad.abs().min() > 0
    assert all(p.grad is None for p in clip.parameters())


def test_pil_images_and_their_pixels_give_the_same_features(clip: CLIP) -> None:
    images = [Image.effect_noise((50, 40), 80).convert("RGB"), Image.new("L", (32, 70), 90)]
    features = clip.encode_image(images)
    assert features.shape == (2, clip.config.embed_dim)
    assert torch.equal(features, clip.encode_image(clip.preprocess(images)))


def test_patches_pass_the_last_block_one_by_one(clip: CLIP) -> None:
    """Attention with one key returns its value: a patch alone in the last block is the patch of the value path."""
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(4))
    features, patches = clip.encode_with_patches(pixels)
    assert torch.equal(features, clip.encode_image(pixels))
    assert patches.shape == (2, clip.config.vision.patches, clip.config.vision.width)
    rows, last = clip.encode_until_end(pixels), clip.visual.blocks[-1]
    for image in range(2):
        for patch in range(clip.config.vision.patches):
            one = Residual(rows[image, None, patch + 1 : patch + 2])
            alone = clip.visual.ln_post(last(one).total())[0, 0]
            torch.testing.assert_close(patches[image, patch], alone, atol=1e-5, rtol=0)


def test_patches_are_float32_in_every_compute_type(clip: CLIP) -> None:
    pixels = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(4))
    exact, rough = clip.encode_with_patches(pixels), clip.encode_with_patches(pixels, dtype=torch.bfloat16)
    for one, other in zip(exact, rough, strict=True):
        assert one.dtype == other.dtype == torch.float32
        assert not torch.equal(one, other)
        torch.testing.assert_close(one, other, atol=0.1, rtol=0.1)
