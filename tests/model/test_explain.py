from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from dca import Classifier, Dataset, UserError
from dca.backbones.clip import CLIP
from dca.backbones.pool import Pool, PoolPreprocess
from dca.backbones.preprocess import Preprocess
from dca.methods.base import Method
from dca.model.explain import WindowBlur, explain, interpolate, measure_relevance, window_centers, window_weights
from helpers.colour_encoder import ColourEncoder
from oracles.explain import occlusion, rank_correlation

# Rank correlation with occlusion on the images of the sample, and the least that a single image may have.
AGREEMENT, LEAST = 0.85, 0.7


@pytest.fixture(scope="module")
def model(sample: Dataset) -> Classifier:
    return Classifier(device="cpu").fit(sample)


def pixels_of(method: Method, image: Image.Image) -> torch.Tensor:
    return method.clip.preprocess([image])


@pytest.mark.slow
def test_relevance_agrees_with_occlusion(model: Classifier, sample: Dataset) -> None:
    method, found = model.method_, []
    for item in sample.test[::10]:
        assert isinstance(item.image, Image.Image)
        pixels = pixels_of(method, item.image)
        with torch.no_grad():
            target = int(method.classify(method.encode(pixels)).argmax())
        fast, slow = measure_relevance(method, pixels, target), occlusion(method, pixels, target)
        middles = torch.tensor(window_centers(method.encoder.patches_per_side))
        torch.testing.assert_close(fast[middles][:, middles], slow[middles][:, middles], atol=2e-3, rtol=1e-3)
        found.append(rank_correlation(fast, slow))
    assert np.mean(found) > AGREEMENT
    assert min(found) > LEAST


class Painted(torch.nn.Module):
    """A model whose log-odds of class 1 are linear in the pixels."""

    def __init__(self, clip: CLIP, weight: torch.Tensor) -> None:
        super().__init__()
        self.encoder, self.weight = clip, weight

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        return (pixels * self.weight).flatten(1)

    def classify(self, features: torch.Tensor) -> torch.Tensor:
        z = features.sum(dim=1, keepdim=True)
        return torch.cat([torch.zeros_like(z), z], dim=1).double().softmax(dim=1)


def test_values_between_windows_are_linear() -> None:
    places = [0, 2, 5]
    rows, columns = torch.meshgrid(torch.arange(6.0), torch.arange(6.0), indexing="ij")
    plane = 3 * rows - 2 * columns + rows * columns
    torch.testing.assert_close(interpolate(plane[places][:, places], places, 6), plane)
    torch.testing.assert_close(interpolate(torch.tensor([[7.0]]), [0], 1), torch.tensor([[7.0]]))


def test_windows_cover_every_patch() -> None:
    for side in range(2, 40):
        places = window_centers(side)
        assert len(places) <= 8
        assert (places[0], places[-1]) == (0, side - 1)
        if side <= 19:
            seen = sum(1 - window_weights(side, row, column) for row in places for column in places)
            assert float(seen.min()) >= 1, side


def test_a_part_that_decides_is_relevant(clip: CLIP) -> None:
    size, side = clip.preprocess.size, clip.patches_per_side
    weight = torch.zeros(3, size, size)
    weight[:, : size // side, : size // side] = 1
    pixels = torch.zeros(1, 3, size, size)
    pixels[..., : size // side, : size // side] = 1
    found = measure_relevance(Painted(clip, weight), pixels, 1)
    assert int(found.argmax()) == 0
    assert float(found[-1, -1]) == pytest.approx(0, abs=1e-6)
    against = measure_relevance(Painted(clip, weight), pixels, 0)
    torch.testing.assert_close(found, -against, atol=1e-6, rtol=1e-6)


def test_encoders_that_see_other_parts_of_an_image_are_given_the_same_windows() -> None:
    values = {"resample": 3, "mean": (0.0,) * 3, "std": (1.0,) * 3}
    whole, middle = Preprocess(size=32, resize=32, **values), Preprocess(size=64, resize=128, **values)
    both = PoolPreprocess((whole, middle))
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8))
    pixels = both([image])
    blur = WindowBlur(both, pixels, side=8)
    outside, inside = torch.ones(8, 8), torch.ones(8, 8)
    outside[:1], inside[3:5, 3:5] = 0, 0
    sharp = both.split(pixels)
    for weights, seen in ((outside, [True, False]), (inside, [True, True])):
        changed = [
            bool((a - b).abs().max() > 1e-3) for a, b in zip(both.split(blur(weights[None])), sharp, strict=True)
        ]
        assert changed == seen
    assert torch.allclose(blur(torch.ones(1, 8, 8)), pixels)


def test_an_explanation_of_a_pool_shows_what_its_members_see(sample: Dataset) -> None:
    model = Classifier(backbone=Pool([CLIP.from_pretrained("mini"), ColourEncoder()]), device="cpu").fit(sample)
    image = sample.train[0].image
    found = explain(model, image, neighbours=3)
    np.testing.assert_allclose(found.probabilities, model.predict_proba([image])[0], rtol=1e-5)
    assert found.relevance.shape == (8, 8)
    assert found.crop.size == (64, 64)
    assert found.nearest[0].similarity == pytest.approx(1, abs=1e-4)


def test_an_explanation_names_classes_and_nearest_images(model: Classifier, sample: Dataset) -> None:
    image = sample.train[0].image
    found = explain(model, image, neighbours=3)
    np.testing.assert_allclose(found.probabilities, model.predict_proba([image])[0], rtol=1e-5)
    assert found.top(1)[0][0] == model.predict(image)
    assert found.nearest[0].similarity == pytest.approx(1, abs=1e-4)
    assert found.nearest[0].label == sample.labels[sample.train[0].label]
    assert len(found.nearest) == 3
    assert found.heat_map(96).size == (96, 96)
    other = explain(model, image, target=sample.labels[5])
    assert other.target == 5
    with pytest.raises(UserError, match="unknown class 'no such'"):
        explain(model, image, target="no such")


def test_the_heat_map_is_orange_for_and_blue_against(model: Classifier, sample: Dataset) -> None:
    found = explain(model, sample.train[0].image)
    half = np.ones((8, 8))
    half[:, 4:] = -1
    picture = np.asarray(type(found)(**{**vars(found), "relevance": half}).heat_map(80)).astype(int)
    left, right = picture[:, :20].mean(axis=(0, 1)), picture[:, -20:].mean(axis=(0, 1))
    assert left[0] > left[2]
    assert right[2] > right[0]


def test_a_model_without_gallery_has_no_nearest_images(model: Classifier, sample: Dataset) -> None:
    bare = Classifier("zero_shot", device="cpu").fit(sample)
    bare.gallery_, bare._training = None, ()
    assert explain(bare, sample.test[0].image).nearest == ()
