"""The embedded model: opens everywhere, means the same everywhere, and is small and fast."""

import json
import random
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from dca.backbones.clip.model import CLIP

MINI = Path(str(files("dca.backbones") / "mini"))
WORDS = (
    "a photo of the cat dog forest annual crop land pink primrose it's SUN flower 64 x café naïve 日本 über "
    "snow-white don't ~ & (close-up) \t two  spaces hawk-moth Ångström 3.14 #tag émigré 😀 ﬁsh"
).split(" ")


@pytest.fixture(scope="module")
def mini():
    return CLIP.from_pretrained("mini")


@pytest.fixture(scope="module")
def theirs():
    transformers = pytest.importorskip("transformers")
    return transformers.CLIPModel.from_pretrained(MINI, dtype=torch.float32).eval()


def strings(count):
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(count)]


def test_size_is_within_its_limit():
    assert (MINI / "model.safetensors").stat().st_size <= 30_000_000


def test_transformers_agrees_to_1e_5(mini, theirs):
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randn(4, 3, 64, 64, generator=rng)
    with torch.inference_mode():
        images = F.normalize(mini.encode_image(pixels), dim=-1)
        for text in strings(20):
            ids = torch.tensor(mini.tokenizer([text]))
            found = theirs(input_ids=ids, pixel_values=pixels)
            texts = F.normalize(mini.encode_text(ids), dim=-1)
            assert torch.allclose(texts, found.text_embeds, atol=1e-5), text
    assert torch.allclose(images, found.image_embeds, atol=1e-5)
    assert mini.tau == pytest.approx(float(theirs.logit_scale.detach().exp()))


def test_tokenizer_gives_the_same_ids_on_2000_strings(mini):
    transformers = pytest.importorskip("transformers")
    other = transformers.CLIPTokenizer.from_pretrained(MINI)
    texts = strings(2000)
    wanted = other(texts, truncation=True, max_length=32)["input_ids"]
    assert mini.tokenizer(texts) == wanted


def test_image_processor_gives_the_same_pixels(mini):
    transformers = pytest.importorskip("transformers")
    settings = json.loads((MINI / "preprocessor_config.json").read_text())
    image = Image.effect_mandelbrot((90, 120), (-2, -1.5, 1, 1.5), 60).convert("RGB")
    other = transformers.CLIPImageProcessorPil if hasattr(transformers, "CLIPImageProcessorPil") else None
    if other is None:
        pytest.skip("no processor on Pillow in this version of transformers")
    pixels = other.from_dict(settings)(image, return_tensors="pt")["pixel_values"]
    assert torch.allclose(mini.preprocess([image]), pixels, atol=0.02)


def test_colours_and_shapes_mean_something(mini):
    """Zero-shot on images that no dataset holds: plain fields of colour."""
    names = ["red", "green", "blue", "yellow"]
    images = [Image.new("RGB", (64, 64), name) for name in names]
    with torch.inference_mode():
        image = F.normalize(mini.encode_image(images), dim=-1)
        text = F.normalize(mini.encode_text([f"{n}" for n in names]), dim=-1)
    right = (image @ text.T).argmax(1) == torch.arange(4)
    assert right.float().mean() >= 0.75


def test_card_states_data_figures_use_and_limits():
    card = (MINI / "README.md").read_text(encoding="utf-8")
    for part in ("## Data", "## Recipe", "## Figures", "## Intended use", "## Limits"):
        assert part in card
