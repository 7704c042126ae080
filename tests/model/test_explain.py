from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from dca import Classifier, Dataset, UserError
from dca.clip import CLIP
from dca.methods.interface import Method
from dca.model.explain import blurred, explain, grid, log_odds, mix, relevance, smoothed
from oracles.explain import occlusion, rank_correlation

# Rank correlation with occlusion on the images of the sample, and the least that a single image may have.
AGREEMENT, LEAST = 0.6, 0.2


@pytest.fixture(scope="module")
def model(sample: Dataset) -> Classifier:
    return Classifier(device="cpu").fit(sample)


def pixels_of(method: Method, image: Image.Image) -> torch.Tensor:
    return method.clip.preprocess([image])


def test_relevance_agrees_with_occlusion(model: Classifier, sample: Dataset) -> None:
    method, found = model.method_, []
    for item in sample.test[::8]:
        assert isinstance(item.image, Image.Image)
        pixels = pixels_of(method, item.image)
        with torch.no_grad():
            target = int(method.classify(method.encode(pixels)).argmax())
        found.append(rank_correlation(relevance(method, pixels, target), occlusion(method, pixels, target)))
    assert np.mean(found) > AGREEMENT
    assert min(found) > LEAST


class Painted(torch.nn.Module):
    """A model whose log-odds of class 1 are linear in the pixels."""

    def __init__(self, clip: CLIP, weight: torch.Tensor) -> None:
        super().__init__()
        self.clip, self.weight = clip, weight

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        return (pixels * self.weight).flatten(1)

    def classify(self, features: torch.Tensor) -> torch.Tensor:
        z = features.sum(dim=1, keepdim=True)
        return torch.cat([torch.zeros_like(z), z], dim=1).double().softmax(dim=1)


def test_relevance_of_a_linear_model_is_exact_and_adds_up(clip: CLIP) -> None:
    size = clip.preprocess.size
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(1, 3, size, size, generator=generator)
    method = Painted(clip, 0.01 * torch.randn(3, size, size, generator=generator))
    blur = blurred(pixels, size // grid(method))
    found = relevance(method, pixels, 1)
    each = []
    for place in range(grid(method) ** 2):
        weights = torch.zeros(grid(method) ** 2)
        weights[place] = 1
        mixed = mix(pixels, blur, weights.view(1, grid(method), grid(method)))
        each.append(float(log_odds(method.classify(method.encode(mixed)), 1)))
    base = float(log_odds(method.classify(method.encode(blur)), 1))
    alone = torch.tensor(each, dtype=torch.float64).view(grid(method), -1) - base
    torch.testing.assert_close(found, smoothed(alone), atol=1e-4, rtol=1e-3)
    whole = float(log_odds(method.classify(method.encode(pixels)), 1))
    assert float(alone.sum()) == pytest.approx(whole - base, abs=1e-4)


def test_a_part_that_decides_is_relevant(clip: CLIP) -> None:
    size, side = clip.preprocess.size, clip.config.vision.image_size // clip.config.vision.patch_size
    weight = torch.zeros(3, size, size)
    weight[:, : size // side, : size // side] = 1
    pixels = torch.zeros(1, 3, size, size)
    pixels[..., : size // side, : size // side] = 1
    found = relevance(Painted(clip, weight), pixels, 1)
    assert int(found.argmax()) == 0
    assert float(found[-1, -1]) == pytest.approx(0, abs=1e-9)
    against = relevance(Painted(clip, weight), pixels, 0)
    torch.testing.assert_close(found, -against)


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
