from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dca.core.errors import UserError
from dca.images.convert import image_from_array, is_array
from helpers.small_images import photo

LEVELS = np.asarray(photo(3))
FORMS = {
    "uint8": LEVELS,
    "int64": LEVELS.astype(np.int64),
    "float64": LEVELS / 255,
    "float32": (LEVELS / 255).astype(np.float32),
    "channels first": LEVELS.transpose(2, 0, 1),
    "strided": np.asfortranarray(LEVELS),
    "tensor": torch.from_numpy(LEVELS.copy()).permute(2, 0, 1),
    "tensor, channels last": torch.from_numpy(LEVELS.copy()),
    "tensor of floats": torch.from_numpy(LEVELS / 255).permute(2, 0, 1),
    "tensor with a gradient": torch.from_numpy(LEVELS / 255).requires_grad_(),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_image(form: str):
    assert is_array(FORMS[form])
    assert np.array_equal(image_from_array(FORMS[form]), LEVELS)


def test_bfloat16_is_taken_though_numpy_does_not_know_it():
    tensor = (torch.from_numpy(LEVELS.copy()).permute(2, 0, 1) / 255).bfloat16()
    assert np.abs(np.asarray(image_from_array(tensor), int) - LEVELS.astype(int)).max() <= 1


@pytest.mark.parametrize(
    ("pixels", "mode", "size"),
    [
        (np.zeros((4, 6), np.uint8), "L", (6, 4)),
        (np.zeros((4, 6, 1), np.uint8), "L", (6, 4)),
        (torch.zeros(1, 4, 6), "L", (6, 4)),
        (np.zeros((4, 6, 4), np.uint8), "RGBA", (6, 4)),
        (np.zeros((3, 6, 3), np.uint8), "RGB", (6, 3)),
        (torch.zeros(3, 6, 3), "RGB", (3, 6)),
        (np.zeros((4, 6), bool), "L", (6, 4)),
    ],
)
def test_grey_transparent_and_ambiguous_shapes(pixels: Any, mode: str, size: tuple[int, int]):
    image = image_from_array(pixels)
    assert (image.mode, image.size) == (mode, size)


@pytest.mark.parametrize(
    ("pixels", "part"),
    [
        (np.zeros((7, 6, 5)), "an array of shape (7, 6, 5) is no image"),
        (np.zeros(7), "an array of shape (7,) is no image"),
        (np.zeros((0, 0, 3)), "is no image"),
        (np.full((4, 4, 3), 1.5), "from 1.5 to 1.5; [0, 1] or [0, 255] expected"),
        (np.full((4, 4, 3), np.nan), "from nan to nan"),
        (np.full((4, 4, 3), 256), "from 256 to 256"),
        (np.full((4, 4, 3), -1), "from -1 to -1"),
        (torch.full((3, 4, 4), -2.0), "from -2 to -2"),
    ],
)
def test_what_is_no_image_is_said(pixels: Any, part: str):
    with pytest.raises(UserError) as caught:
        image_from_array(pixels)
    assert part in caught.value.problem


def test_floats_may_be_off_by_rounding():
    assert image_from_array(np.full((2, 2, 3), 1.0000001)).getpixel((0, 0)) == (255, 255, 255)


def test_lists_and_arrays_of_text_are_no_pixels():
    for other in (np.array(["a.jpg"]), np.array([None], object), [0.5], Image.new("RGB", (2, 2)), "a.jpg", b"x"):
        assert not is_array(other)
