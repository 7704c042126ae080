from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from dca.backbones.preprocess import Preprocess
from dca.core.errors import UserError
from dca.export.predict import crop_image
from dca.images.decode import open_image, to_rgb

HF = {
    "do_resize": True,
    "size": {"shortest_edge": 48},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 48, "width": 48},
    "do_rescale": True,
    "do_normalize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "do_convert_rgb": True,
}


def reference(image: Image.Image, raw: dict[str, object]) -> torch.Tensor:
    from transformers import CLIPImageProcessorPil

    return torch.as_tensor(np.asarray(CLIPImageProcessorPil(**raw)(image, return_tensors="np")["pixel_values"][0]))


def photo(width: int, height: int, mode: str, seed: int = 0) -> Image.Image:
    """Smooth structure with noise on top, in any mode."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    base = np.stack([np.sin(9 * x + c) * np.cos(7 * y - c) for c in range(3)], axis=-1)
    pixels = np.clip(127 + 90 * base + rng.normal(0, 20, base.shape), 0, 255).astype(np.uint8)
    return Image.fromarray(pixels).convert(mode)


def largest_difference(ours: torch.Tensor, theirs: torch.Tensor, transform: Preprocess) -> float:
    """In units of 1/255 before normalisation."""
    std = torch.tensor(transform.std).view(3, 1, 1)
    return float(((ours - theirs) * std).abs().max() * 255)


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "RGBA", "CMYK", "YCbCr", "LA", "HSV"])
@pytest.mark.parametrize("size", [(61, 97), (97, 61), (48, 48), (31, 45), (301, 49), (50, 333), (1, 9)])
def test_pixels_equal_the_reference(mode: str, size: tuple[int, int]) -> None:
    transform = Preprocess.from_hf(HF)
    image = photo(*size, "RGB").convert("L").convert(mode) if mode == "LA" else photo(*size, mode)
    assert largest_difference(transform([image])[0], reference(image, HF), transform) <= 1


@settings(max_examples=25, deadline=None)
@given(width=st.integers(20, 200), height=st.integers(20, 200), side=st.integers(8, 64), seed=st.integers(0, 9))
def test_pixels_equal_the_reference_for_any_size(width: int, height: int, side: int, seed: int) -> None:
    raw = HF | {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    transform = Preprocess.from_hf(raw)
    image = photo(width, height, "RGB", seed)
    assert largest_difference(transform([image])[0], reference(image, raw), transform) <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_honoured(tmp_path: Path, orientation: int) -> None:
    transform = Preprocess.from_hf(HF)
    exif = Image.Exif()
    exif[0x0112] = orientation
    photo(90, 60, "RGB").save(tmp_path / "turned.png", exif=exif)
    with Image.open(tmp_path / "turned.png") as image:
        upright = ImageOps.exif_transpose(image)
        assert largest_difference(transform([image])[0], reference(upright, HF), transform) <= 1


def test_squeezing_preprocessing_is_read(tmp_path: Path) -> None:
    raw = HF | {"size": {"height": 48, "width": 48}, "do_center_crop": False}
    transform = Preprocess.from_hf(raw)
    image = photo(90, 60, "RGB")
    assert transform.resize is None
    assert largest_difference(transform([image])[0], reference(image, raw), transform) <= 1


def test_hf_form_round_trips() -> None:
    transform = Preprocess.from_hf(HF)
    assert Preprocess.from_hf(transform.to_hf()) == transform


def test_uint8_and_float_pixels_normalise_alike() -> None:
    transform = Preprocess.from_hf(HF)
    pixels = torch.randint(0, 256, (2, 3, 48, 48), dtype=torch.uint8)
    torch.testing.assert_close(transform.normalize(pixels), transform.normalize(pixels / 255))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"image_mean": None}, "image_mean"),
        ({"crop_size": None}, "crop_size"),
        ({"do_normalize": False}, "do_normalize"),
        ({"size": {"shortest_edge": 32}}, "cuts 48 px"),
        ({"crop_size": {"height": 48, "width": 32}}, "square"),
    ],
)
def test_unusable_preprocessing_is_an_error_not_a_default(change: dict[str, object], says: str) -> None:
    raw = {k: v for k, v in (HF | change).items() if v is not None}
    with pytest.raises(UserError, match=says):
        Preprocess.from_hf(raw)


def test_open_clip_form_is_read() -> None:
    raw = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "interpolation": "bicubic", "resize_mode": "shortest"}
    assert Preprocess.from_open_clip(raw, 48) == Preprocess(
        size=48, resize=48, resample=3, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), even=True
    )
    with pytest.raises(UserError, match="preprocess_cfg"):
        Preprocess.from_open_clip({}, 48)


def seen_by_the_tower(image: Image.Image) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Values 0..255 of the pixels that `CLIP.preprocess` makes, normalisation undone."""
    transform = Preprocess.from_hf(HF)
    scale, shift = torch.tensor(transform.std).view(3, 1, 1), torch.tensor(transform.mean).view(3, 1, 1)
    return ((transform([image])[0] * scale + shift) * 255).round().to(torch.uint8).numpy()


def special_images() -> dict[str, tuple[Image.Image, int]]:
    """Images whose conversion to RGB has more than one plausible answer, and the grey value expected."""
    transparent = Image.new("RGBA", (48, 48), (0, 0, 0, 0))
    palette = Image.new("P", (48, 48), 3)
    palette.putpalette([0, 0, 0] * 4)
    palette.info["transparency"] = 3
    half = Image.new("RGBA", (48, 48), (0, 0, 0, 128))
    return {
        "transparent": (transparent, 255),
        "transparent palette": (palette, 255),
        "transparent grey": (Image.new("LA", (48, 48), (0, 0)), 255),
        "half transparent": (half, 127),
        "16-bit grey": (Image.fromarray(np.full((48, 48), 30069, np.uint16)), 117),
        "32-bit grey": (Image.fromarray(np.full((48, 48), 30069, np.int32)), 117),
        "grey": (Image.new("L", (48, 48), 117), 117),
    }


@pytest.mark.parametrize("kind", special_images())
def test_transparency_becomes_white_and_wide_grey_keeps_its_value(kind: str, tmp_path: Path) -> None:
    """The same for `CLIP.preprocess` of an image in memory, of one just opened, and for what Classifier decodes."""
    image, value = special_images()[kind]
    path = tmp_path / ("image.tiff" if image.mode == "I" else "image.png")
    image.save(path)
    decoded = open_image(path)
    assert set(seen_by_the_tower(decoded).flatten().tolist()) == {value}
    with Image.open(path) as opened:
        assert set(seen_by_the_tower(opened).flatten().tolist()) == {value}
    assert set(seen_by_the_tower(image).flatten().tolist()) == {value}


@pytest.mark.parametrize("suffix", ["png", "tiff", "webp", "jpg"])
def test_the_rotation_tag_of_every_format_is_read(tmp_path: Path, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.new("RGB", (90, 60), "black")
    image.paste("white", (0, 0, 45, 60))
    image.save(tmp_path / f"turned.{suffix}", exif=exif)
    with Image.open(tmp_path / f"turned.{suffix}") as opened:
        assert to_rgb(opened).size == (60, 90)
        assert np.asarray(to_rgb(opened))[5].mean() > 250
        assert np.asarray(to_rgb(opened))[-5].mean() < 5


def test_converting_leaves_the_image_given_unchanged() -> None:
    image = photo(40, 30, "RGB")
    exif = Image.Exif()
    exif[0x0112] = 6
    image.info["exif"] = exif.tobytes()
    before = image.tobytes()
    assert to_rgb(image).size == (30, 40)
    assert (image.size, image.tobytes()) == ((40, 30), before)


@pytest.mark.parametrize("size", [(57, 40), (40, 57), (59, 40), (40, 61), (63, 40), (40, 40), (201, 40)])
@pytest.mark.parametrize("crop", [32, 39, 40])
def test_odd_margins_are_torchvision_s_where_a_checkpoint_is_of_its_users(size: tuple[int, int], crop: int) -> None:
    transforms = pytest.importorskip("torchvision.transforms", reason="needs torchvision")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8))
    steps = [transforms.Resize(40, transforms.InterpolationMode.BICUBIC), transforms.CenterCrop(crop)]
    expected = np.asarray(transforms.Compose(steps)(image)).transpose(2, 0, 1)
    preprocess = replace(Preprocess.of_openai(crop), resize=40)
    assert np.array_equal(preprocess.crop(image), expected)
    values = preprocess.to_dict()
    assert np.array_equal(crop_image(image, values), expected.transpose(1, 2, 0))
    assert values["even"]
    assert "even" not in replace(preprocess, even=False).to_dict()
