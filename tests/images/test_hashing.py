"""Which images are copies of each other."""

from __future__ import annotations

import numpy as np
from PIL import Image

from dca.images.hashing import find_copy_pairs, group_copies, make_thumbnail, sha256_of


def noise(seed: int) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 255, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((64, 64), Image.Resampling.BICUBIC)


def groups(images: list[Image.Image]) -> list[int]:
    return group_copies([sha256_of(i) for i in images], np.stack([make_thumbnail(i) for i in images])).tolist()


def test_copies_and_smaller_copies_share_a_number():
    one, other = noise(1), noise(2)
    assert groups([one, other, one.copy(), one.resize((40, 40)), noise(3)]) == [0, 1, 0, 0, 2]


def test_exact_copies_without_contrast_share_a_number_and_others_do_not():
    flat, darker = Image.new("RGB", (32, 32), (90, 90, 90)), Image.new("RGB", (32, 32), (80, 80, 80))
    assert groups([flat, darker, flat.copy()]) == [0, 1, 0]


def test_copies_of_copies_are_one_group():
    """Each is close to the next one, whatever order they come in."""
    rows = np.random.default_rng(0).permutation(12)
    same = group_copies([["a", "b", "c"][row % 3] for row in rows], np.zeros((12, 16, 16, 3), np.uint8))
    expected = [list(dict.fromkeys(rows % 3)).index(row % 3) for row in rows]
    assert same.tolist() == expected


def test_no_images_have_no_groups():
    assert group_copies([], np.zeros((0, 16, 16, 3), np.uint8)).tolist() == []


def test_pairs_of_copies_are_exact_or_near_and_never_both():
    rng = np.random.default_rng(3)
    one, two = (Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)) for _ in range(2))
    images = [one, two, one.copy(), one.resize((16, 16), Image.Resampling.BILINEAR)]
    exact, near = find_copy_pairs([sha256_of(i) for i in images], np.stack([make_thumbnail(i) for i in images]))
    assert exact == [(0, 2)]
    assert near == [(0, 3), (2, 3)]
