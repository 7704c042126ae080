from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from dca.core import seeds
from dca.images import crops as image_store
from dca.images.crops import CropBoxes, DecodedImages, crop_resize, random_crops, stored_side, view_crops
from helpers.small_images import photo


def crop8(image):
    """A stand-in for a backbone's evaluation crop."""
    return np.asarray(image.resize((8, 8))).transpose(2, 0, 1)


def crop16(image):
    return np.asarray(image.resize((16, 16))).transpose(2, 0, 1)


def crop8_rows(image):
    return torch.tensor(crop8(image))[None]


def test_store_keeps_small_images_and_shrinks_large_ones():
    store = DecodedImages([photo(1, (50, 40)), photo(2, (300, 200))], 16, crop16)
    assert [tuple(pixels.shape) for pixels in store._pixels] == [(3, 40, 50), (3, 64, 96)]
    assert np.array_equal(store._pixels[0].permute(1, 2, 0), photo(1, (50, 40)))
    assert store.nbytes == 3 * (50 * 40 + 96 * 64) + 2 * 3 * 16 * 16


def test_evaluation_crops_are_of_the_original_images_in_one_pass(monkeypatch):
    opened = []
    monkeypatch.setattr(image_store, "decode_all", counting(image_store.decode_all, opened))
    images = [photo(1, (50, 40)), photo(2, (300, 200))]
    store = DecodedImages(images, 16, crop16)
    assert opened == [2]
    assert store.crops.dtype == torch.uint8
    assert np.array_equal(store.crops, np.stack([crop16(image) for image in images]))


def counting(function, calls):
    """The function, noting how many images each call opens."""

    def counted(images, *args, **kwargs):
        calls.append(len(images))
        return function(images, *args, **kwargs)

    return counted


def test_a_store_holds_its_tensors_and_no_other_copy_of_the_pixels():
    store = DecodedImages([photo(k, (60, 40)) for k in range(4)], 16, crop16)
    store.augment([torch.tensor([0, 1])], 16, torch.Generator().manual_seed(1), "cpu")
    held = [value for value in vars(store).values() if not isinstance(value, torch.Tensor)]
    assert held == [store._pixels, None]
    assert all(isinstance(pixels, torch.Tensor) for pixels in store._pixels)


def test_moving_a_store_leaves_it_as_it_was():
    store = DecodedImages([photo(k, (60, 40)) for k in range(4)], 16, crop16)
    moved = store.to("meta")
    assert {pixels.device.type for pixels in (*store._pixels, store.crops)} == {"cpu"}
    assert {pixels.device.type for pixels in (*moved._pixels, moved.crops)} == {"meta"}
    assert len(moved) == len(store) == 4


def test_an_empty_store_has_no_crops():
    store = DecodedImages([], 16, crop16)
    assert (len(store), tuple(store.crops.shape)) == (0, (0, 3, 16, 16))


def test_steps_made_together_equal_steps_made_one_by_one():
    store = DecodedImages([photo(k, (60, 40)) for k in range(6)], 16, crop16)
    steps = [torch.tensor([3, 1, 3]), torch.tensor([0, 5]), torch.tensor([2, 2, 4])]
    together = store.augment(steps, 16, torch.Generator().manual_seed(7), "cpu")
    generator = torch.Generator().manual_seed(7)
    assert torch.equal(together, torch.cat([store.augment([rows], 16, generator, "cpu") for rows in steps]))


def test_same_generator_same_batch_on_any_call():
    store = DecodedImages([photo(k, (60, 40)) for k in range(6)], 16, crop16)
    batches = [store.augment([torch.tensor([3, 1, 3])], 16, torch.Generator().manual_seed(s), "cpu") for s in (1, 1, 2)]
    assert torch.equal(batches[0], batches[1])
    assert not torch.equal(batches[0], batches[2])
    assert batches[0].shape == (3, 3, 16, 16)
    assert batches[0].min() >= 0
    assert batches[0].max() <= 1


def test_a_view_depends_on_its_number_and_the_content_only():
    image = photo(1, (90, 70))
    five = view_crops(image, 16, range(5), "abc")
    assert five.shape == (5, 3, 16, 16)
    assert five.dtype == torch.uint8
    torch.manual_seed(7)
    assert torch.equal(view_crops(image, 16, [3, 1], "abc"), five[[3, 1]])
    assert not torch.equal(view_crops(image, 16, range(5), "abd"), five)
    assert len({row.numpy().tobytes() for row in five}) == 5
    assert view_crops(image, 16, [], "abc").shape == (0, 3, 16, 16)


def test_views_are_equal_on_every_machine():
    """A sum over a fixed image: integer arithmetic and our own random streams, so it never changes."""
    image = Image.fromarray((np.arange(60 * 80 * 3) % 251).astype(np.uint8).reshape(60, 80, 3))
    assert view_crops(image, 16, range(4), "00").sum(dtype=torch.int64).item() == 381_211


@pytest.mark.parametrize("shape", [(90, 70), (40, 300), (500, 260)])
def test_views_equal_crop_resize(shape):
    image, size, views = photo(3, shape), 16, range(12)
    small = image_store._shrink(image, 4 * size)
    assert min(small.size) <= 4 * size
    pixels = torch.from_numpy(np.asarray(small).transpose(2, 0, 1).copy())
    height, width = torch.tensor([small.height]), torch.tensor([small.width])
    boxes = [random_crops(height, width, seeds.generator(0, "view", "c0ffee", view)) for view in views]
    fields = ("top", "left", "height", "width", "flip")
    crops = CropBoxes(*(torch.cat([getattr(box, field) for box in boxes]) for field in fields))
    expected = crop_resize([pixels] * len(boxes), crops, size, "cpu")
    assert crops.flip.any()
    assert not crops.flip.all()
    difference = (view_crops(image, size, views, "c0ffee").float() - expected).abs()
    # A value half-way between two levels may be rounded either way.
    assert difference.max() <= 1
    assert (difference > 0).float().mean() < 0.001


@pytest.mark.parametrize(
    ("count", "size", "side"), [(160, 224, 896), (16, 64, 256), (5000, 224, 463), (50_000, 224, 448)]
)
def test_large_sets_are_stored_smaller(count, size, side):
    assert stored_side(count, size) == side
