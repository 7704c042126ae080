"""CLIP with a ResNet as image tower, beside open_clip's, in the files that people have."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from conftest import make_clip, tiny_config
from dca.backbones.clip import CLIP, CLIPConfig, ResNetConfig
from dca.backbones.clip.resnet import EPS, Convolution, fold_batch_norm
from dca.backbones.encoder import Ability
from dca.core.errors import UserError
from dca.core.files import write_json
from helpers.references import photos, shake, texts

TINY: dict[str, Any] = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 64, "layers": [1, 2, 1, 1], "width": 8, "patch_size": None},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 2},
}
RN50: dict[str, Any] = {
    "embed_dim": 1024,
    "vision_cfg": {"image_size": 224, "layers": [3, 4, 6, 3], "width": 64, "patch_size": None},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 512, "heads": 8, "layers": 12},
}
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
# Largest difference of unit features.
CLOSE = 2e-5


class Reference(NamedTuple):
    """A model of open_clip, and the folder in which it is saved as on the hub."""

    model: Any
    folder: Path

    def images(self, size: int) -> Tensor:
        """Unit features of the photos, through open_clip's own preprocessing."""
        return F.normalize(self.model.encode_image(pixels_of(size)), dim=-1)

    def texts(self) -> Tensor:
        """Unit features of the texts, through open_clip's tokenizer."""
        from open_clip import tokenize

        return F.normalize(self.model.encode_text(tokenize(texts())), dim=-1)


def pixels_of(size: int) -> Tensor:
    """Pixels (4, 3, S, S) of the photos by open_clip's own preprocessing."""
    from open_clip.transform import image_transform

    transform = image_transform(size, is_train=False, mean=MEAN, std=STD)
    return torch.stack([transform(photo) for photo in photos()])


def make_reference(folder: Path, config: dict[str, Any]) -> Reference:
    """A random model of open_clip in a folder as its hub repositories have it."""
    open_clip = pytest.importorskip("open_clip", reason="needs open_clip")
    torch.manual_seed(0)
    model = shake(open_clip.CLIP(**config, quick_gelu=True))
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):  # those that end a block begin as zeros
            nn.init.uniform_(norm.weight, 0.4, 0.9)
            norm.reset_running_stats()
            norm.momentum = None
    # Statistics of real images, and attention that prefers some positions: otherwise all features are nearly the same.
    with torch.no_grad():
        model.visual.train()(pixels_of(config["vision_cfg"]["image_size"]))
        for part in (model.visual.attnpool.q_proj, model.visual.attnpool.k_proj):
            part.weight.mul_(4)
    model.eval()
    folder.mkdir(exist_ok=True)
    save_file({n: t.contiguous() for n, t in model.state_dict().items()}, folder / "open_clip_model.safetensors")
    preprocess = {"mean": MEAN, "std": STD, "interpolation": "bicubic", "resize_mode": "shortest"}
    write_json(
        folder / "open_clip_config.json", {"model_cfg": {**config, "quick_gelu": True}, "preprocess_cfg": preprocess}
    )
    return Reference(model.requires_grad_(False), folder)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return make_reference(tmp_path_factory.mktemp("resnet") / "tiny", TINY)


def assert_equal(reference: Reference, clip: CLIP, size: int) -> None:
    ours = F.normalize(clip.encode_image(photos()), dim=-1)
    torch.testing.assert_close(ours, reference.images(size), atol=CLOSE, rtol=0)
    torch.testing.assert_close(F.normalize(clip.encode_text(texts()), dim=-1), reference.texts(), atol=CLOSE, rtol=0)
    apart = torch.cdist(ours, ours)[~torch.eye(len(ours), dtype=torch.bool)]
    assert apart.min() > 100 * CLOSE  # so that the comparison can fail


def test_features_equal_open_clip(tiny: Reference) -> None:
    assert_equal(tiny, CLIP.from_pretrained(tiny.folder), 64)


@pytest.mark.slow
def test_features_equal_open_clip_in_the_shape_of_rn50(tmp_path: Path) -> None:
    reference = make_reference(tmp_path / "rn50", RN50)
    assert_equal(reference, CLIP.from_pretrained(reference.folder), 224)


def test_openais_layout_is_the_same_backbone(tmp_path: Path, tiny: Reference) -> None:
    state = {name: tensor.contiguous() for name, tensor in tiny.model.state_dict().items()}
    numbers = {"input_resolution": 64, "context_length": 77, "vocab_size": 49408}
    save_file(state | {n: torch.tensor(v) for n, v in numbers.items()}, tmp_path / "rn.safetensors")
    preprocess = {"size": 64, "crop_size": 64, "resample": 3, "image_mean": MEAN, "image_std": STD}
    write_json(tmp_path / "preprocessor_config.json", preprocess)
    config = CLIP.from_pretrained(tmp_path / "rn.safetensors").config
    assert config.vision == ResNetConfig(width=8, stages=(1, 2, 1, 1), heads=4, image_size=64)
    assert_equal(tiny, CLIP.from_pretrained(tmp_path / "rn.safetensors"), 64)


def test_a_learned_context_is_what_the_reference_makes_of_the_same_embeddings(tiny: Reference) -> None:
    clip = CLIP.from_pretrained(tiny.folder)
    context = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    names = [[*clip.tokenizer.encode(name), clip.tokenizer.eot_id] for name in ("cat", "fire engine", "oak.")]
    ours = F.normalize(clip.encode_prompts([context], names)[0], dim=-1)
    their = tiny.model
    ids = torch.tensor([[49406, *[0] * 4, *own, *[0] * (72 - len(own))] for own in names])
    rows = their.token_embedding(ids)
    rows[:, 1:5] = context
    x = their.ln_final(their.transformer(rows + their.positional_embedding, attn_mask=their.attn_mask))
    ends = torch.tensor([4 + len(own) for own in names])
    found = F.normalize(x[torch.arange(3), ends] @ their.text_projection, dim=-1)
    torch.testing.assert_close(ours, found, atol=CLOSE, rtol=0)


def test_parts_of_the_tower_agree(tiny: Reference) -> None:
    clip = CLIP.from_pretrained(tiny.folder)
    pixels = clip.preprocess(photos())
    features = clip.encode_image(pixels)
    projected = clip.visual.projection(clip.encode_unprojected(pixels))
    torch.testing.assert_close(projected, features, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(clip.visual.copy_end()(clip.encode_until_end(pixels)), features, atol=1e-5, rtol=1e-5)
    whole, patches = clip.encode_with_patches(pixels)
    torch.testing.assert_close(whole, features, atol=1e-5, rtol=1e-5)
    assert patches.shape == (4, clip.visual.patches, clip.visual.width) == (4, 4, 256)


def test_patches_are_the_values_of_their_positions(tiny: Reference) -> None:
    """Attention that sees one position only gives the value of that position."""
    clip = CLIP.from_pretrained(tiny.folder)
    pixels = clip.preprocess(photos()[:1])
    _, patches = clip.encode_with_patches(pixels)
    pool = tiny.model.visual.attnpool
    x = clip.encode_until_end(pixels).flatten(2).transpose(1, 2)[0] + pool.positional_embedding[1:]
    torch.testing.assert_close(patches[0], pool.v_proj(x), atol=1e-4, rtol=1e-5)


def test_a_folded_batch_norm_is_the_batch_norm() -> None:
    torch.manual_seed(0)
    plain, norm = nn.Conv2d(3, 5, 3, padding=1, bias=False), nn.BatchNorm2d(5, eps=EPS)
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        assert tensor is not None
        nn.init.normal_(tensor)
    assert norm.running_var is not None
    nn.init.uniform_(norm.running_var, 0.1, 3)
    folded = Convolution(3, 5, 3)
    weight, bias = fold_batch_norm(plain.weight, dict(norm.named_parameters()) | dict(norm.named_buffers()))
    folded.weight.data, folded.bias.data = weight, bias  # type: ignore[union-attr]
    x = torch.randn(2, 3, 9, 9)
    torch.testing.assert_close(folded(x), norm.eval()(plain(x)), atol=2e-6, rtol=1e-5)


def test_abilities_say_what_it_cannot_do(tiny: Reference) -> None:
    clip = CLIP.from_pretrained(tiny.folder)
    assert set(Ability) - clip.abilities == {Ability.IMAGE_TOKENS, Ability.IMAGE_LAYERS}
    with pytest.raises(TypeError, match="takes no tokens"):
        clip.encode_image(photos()[:1], updates={}, on_block=lambda name, rows: None)


def test_missing_and_misshapen_batch_norms_are_named(tmp_path: Path, tiny: Reference) -> None:
    state = {name: tensor.contiguous() for name, tensor in tiny.model.state_dict().items()}
    del state["visual.layer2.0.bn2.running_var"]
    state["visual.layer1.0.downsample.1.bias"] = torch.zeros(3)
    save_file(state, tmp_path / "open_clip_model.safetensors")
    (tmp_path / "open_clip_config.json").write_bytes((tiny.folder / "open_clip_config.json").read_bytes())
    with pytest.raises(UserError, match="batch norms") as caught:
        CLIP.from_pretrained(tmp_path)
    expected = {"visual.layer1.0.downsample.1.bias: shape (3,)", "missing visual.layer2.0.bn2.running_var"}
    assert set(caught.value.details) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": (1, 2, 1)}, "4 numbers of blocks"),
        ({"stages": (1, 2, 1, 0)}, "4 numbers of blocks"),
        ({"stages": (1, 2, 1, "2")}, "4 numbers of blocks"),
        ({"image_size": 70}, "a multiple of 32 px"),
        ({"width": 7}, "even width"),
        ({"heads": 3}, "not a multiple of the 3 attention heads"),
        ({"width": -2}, "width: -2"),
    ],
)
def test_impossible_sizes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        ResNetConfig(**{"width": 8, "stages": (1, 1, 1, 1), "heads": 4, "image_size": 64} | change)
    assert message in str(caught.value)


def test_it_computes_the_same_in_batches_and_nearly_in_bfloat16() -> None:
    vision = ResNetConfig(width=8, stages=(1, 1, 1, 1), heads=4, image_size=64)
    clip = make_clip(CLIPConfig(vision=vision, text=tiny_config().text, embed_dim=16))
    pixels = torch.randn(5, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    together = clip.encode_image(pixels)
    torch.testing.assert_close(torch.cat([clip.encode_image(part) for part in pixels.split(2)]), together)
    rough = clip.encode_image(pixels, dtype=torch.bfloat16)
    assert rough.dtype == torch.float32
    assert 0 < float((rough - together).abs().max() / together.abs().max()) < 0.05
