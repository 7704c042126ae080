from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dca.images.crops import CropBoxes, DecodedImages, crop_resize, random_crops, resize_weights
from helpers.small_images import photo


def literal_box(height, width, rng):
    """One random resized crop box, drawn the plain way: (top, left, height, width)."""
    for _ in range(10):
        area = height * width * rng.uniform(0.08, 1.0)
        aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, height - h), rng.randint(0, width - w), h, w
    ratio = width / height
    if ratio < 3 / 4:
        w, h = width, round(width / (3 / 4))
    elif ratio > 4 / 3:
        w, h = round(height * (4 / 3)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


def pillow(image, top, left, height, width, flip, size):
    cut = image.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else cut).transpose(2, 0, 1).astype(float)


def batch_of(images):
    pixels = [torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy()) for image in images]
    sizes = torch.tensor([p.shape[1:] for p in pixels])
    return pixels, sizes[:, 0], sizes[:, 1]


def busy(seed, size):
    """Noise on a smooth image: the hardest case for a resize."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(-60, 60, (size[1], size[0], 3))
    return Image.fromarray(np.clip(np.asarray(photo(seed, size), int) + noise, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("size", [16, 48, 64, 160])
def test_batch_equals_pillow_on_the_same_boxes(size):
    images = [busy(k, (40 + 9 * k, 120 - 7 * k)) for k in range(10)]
    pixels, heights, widths = batch_of(images)
    generator = torch.Generator().manual_seed(size)
    for _ in range(5):
        crops = random_crops(heights, widths, generator)
        ours = crop_resize(pixels, crops, size, "cpu").numpy()
        for k, image in enumerate(images):
            box = [int(x[k]) for x in (crops.top, crops.left, crops.height, crops.width)]
            theirs = pillow(image, *box, bool(crops.flip[k]), size)
            # Pillow's order of the two passes depends on its version; the 8-bit rounding between
            # them then falls differently.
            assert np.abs(ours[k] - theirs).mean() < 0.5


@pytest.mark.parametrize(("width", "height"), [(100, 32), (32, 100), (57, 32), (32, 32), (20, 32), (32, 9)])
def test_one_axis_equals_pillow_to_the_last_level(width, height):
    """With one pass there is no order of passes: equal up to a rounding tie."""
    image = busy(1, (width, height))
    box = CropBoxes(*(torch.tensor([x]) for x in (0, 0, height, width)), torch.tensor([False]))
    pixels, _, _ = batch_of([image])
    ours = crop_resize(pixels, box, 32, "cpu")[0].numpy()
    difference = np.abs(ours - pillow(image, 0, 0, height, width, False, 32))
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.01


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=4), st.integers(1, 64))
def test_resize_weights_are_a_partition_of_one_inside_each_length(lengths, size):
    weights = resize_weights(torch.tensor(lengths), size, max(lengths))
    assert weights.shape == (len(lengths), size, max(lengths))
    assert torch.allclose(weights.sum(2), torch.ones(len(lengths), size), atol=1e-5)
    for row, n in zip(weights, lengths, strict=True):
        assert not row[:, n:].any()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(1, 400)), min_size=1, max_size=8), st.integers(0, 9))
def test_boxes_lie_inside_their_images(sizes, seed):
    heights, widths = torch.tensor(sizes).unbind(1)
    crops = random_crops(heights, widths, torch.Generator().manual_seed(seed))
    assert (crops.height >= 1).all()
    assert (crops.width >= 1).all()
    assert (crops.top >= 0).all()
    assert (crops.left >= 0).all()
    assert (crops.top + crops.height <= heights).all()
    assert (crops.left + crops.width <= widths).all()


@pytest.mark.parametrize(("height", "width"), [(375, 500), (96, 300), (64, 64), (500, 120)])
def test_box_distribution_equals_the_plain_procedure(height, width):
    """Two-sample Kolmogorov-Smirnov test on area, aspect and place, at the 0.1 % level."""
    n = 4000
    crops = random_crops(torch.full((n,), height), torch.full((n,), width), torch.Generator().manual_seed(0))
    ours = torch.stack([crops.top, crops.left, crops.height, crops.width], 1).double().numpy()
    rng = random.Random(0)
    plain = np.array([literal_box(height, width, rng) for _ in range(n)], dtype=float)
    limit = math.sqrt(-math.log(0.001 / 2) / n)
    for measure in (
        lambda b: b[:, 0],
        lambda b: b[:, 1],
        lambda b: b[:, 2] * b[:, 3],
        lambda b: b[:, 3] / b[:, 2],
    ):
        assert kolmogorov_smirnov(measure(ours), measure(plain)) < limit
    assert abs(crops.flip.double().mean() - 0.5) < 3.3 * 0.5 / math.sqrt(n)


@pytest.mark.parametrize("low", [0.08, 0.5, 1.0])
def test_crops_cover_at_least_the_smallest_share(low):
    n = 2000
    crops = random_crops(torch.full((n,), 300), torch.full((n,), 300), torch.Generator().manual_seed(0), low)
    share = (crops.height * crops.width).double() / 300**2
    assert low - 0.01 < float(share.min()) < low + 0.01
    usual = random_crops(torch.full((n,), 300), torch.full((n,), 300), torch.Generator().manual_seed(0))
    assert (low == 0.08) == torch.equal(crops.height, usual.height)
    assert torch.equal(crops.flip, usual.flip)


def kolmogorov_smirnov(a, b):
    grid = np.concatenate([a, b])
    return np.abs(
        np.searchsorted(np.sort(a), grid, side="right") / len(a)
        - np.searchsorted(np.sort(b), grid, side="right") / len(b)
    ).max()


def test_storing_at_four_times_the_model_size_hardly_changes_a_crop():
    """Crops of the stored copy against the same crops of the original, the smallest included."""
    size, image = 32, busy(5, (1200, 900))
    store = DecodedImages([image], size, lambda image: np.zeros((3, size, size), np.uint8))
    small = Image.fromarray(store._pixels[0].permute(1, 2, 0).numpy())
    assert min(small.size) == 4 * size
    rng = random.Random(1)
    factor = 900 / (4 * size)
    differences = []
    for _ in range(30):
        top, left, h, w = literal_box(small.height, small.width, rng)
        from_stored = pillow(small, top, left, h, w, False, size)
        right, bottom = min(1200, (left + w) * factor), min(900, (top + h) * factor)
        box = (left * factor, top * factor, right, bottom)
        original = image.resize((size, size), Image.Resampling.BICUBIC, box=box)
        differences.append(np.abs(np.asarray(original).transpose(2, 0, 1) - from_stored).mean())
    assert np.mean(differences) < 2
    assert max(differences) < 4
