"""Triton kernels of `crops.crop_resize`: the weights of Pillow's bicubic filter are computed where they are used."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dca.core.device import power_of_two

# Rows of the result that one program makes.
ROWS = 8


def crop_resize(pixels: Tensor, table: Tensor, size: int, tallest: int, widest: int) -> Tensor:
    """Cut boxes out of images and resize them.

    Args:
        pixels: All images end to end, uint8.
        table: (B, 7) int64 on the same device: place of the image in `pixels`, its height and width, the top, left,
            height and width of the box; the width is negative for a mirrored result.
        size: Side of the result.
        tallest: Height of the tallest box.
        widest: Width of the widest box.

    Returns:
        (B, 3, size, size), float32 with whole values 0..255.
    """
    count, block = len(table), power_of_two(size)
    across = torch.empty(count, 3, tallest, size, dtype=torch.uint8, device=pixels.device)
    grid = (3 * count, triton.cdiv(tallest, ROWS))
    _across[grid](pixels, table, across, tallest, size, TAPS=_taps(widest, size), ROWS=ROWS, BLOCK=block)
    found = torch.empty(count, 3, size, size, dtype=torch.float32, device=pixels.device)
    grid = (3 * count, triton.cdiv(size, ROWS))
    _down[grid](across, table, found, tallest, size, TAPS=_taps(tallest, size), ROWS=ROWS, BLOCK=block)
    return found


def _taps(longest: int, size: int) -> int:
    """Inputs that one output reads at most, in steps of four so that few kernels are compiled."""
    taps = -(-4 * max(longest, size) // size) + 1
    return -(-taps // 4) * 4


@triton.jit
def _range(place, length, size):
    """Inputs that an output reads: the first, the one behind the last, the centre between them, and the stretch."""
    scale = length.to(tl.float64) / size
    stretch = tl.maximum(scale, 1.0)
    centre = (place.to(tl.float64) + 0.5) * scale
    first = tl.maximum(tl.floor(centre - 2 * stretch + 0.5), 0.0)
    last = tl.minimum(tl.floor(centre + 2 * stretch + 0.5), length.to(tl.float64))
    return first, last, centre, stretch


@triton.jit
def _weight(x, last, centre, stretch):
    """Weight of input x, before they are scaled to the sum 1: cubic convolution with a = -1/2."""
    d = tl.abs((x + 0.5 - centre) / stretch)
    near = (1.5 * d - 2.5) * d * d + 1
    far = ((-0.5 * d + 2.5) * d - 4) * d + 2
    return tl.where(x < last, tl.where(d < 1, near, tl.where(d < 2, far, 0.0)), 0.0)


@triton.jit
def _round_to_byte(values):
    return tl.minimum(tl.maximum(tl.floor(values + 0.5), 0.0), 255.0)


@triton.jit
def _across(PIXELS, TABLE, OUT, tallest, size, TAPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    image, channel = tl.program_id(0) // 3, tl.program_id(0) % 3
    start, height, width = tl.load(TABLE + image * 7), tl.load(TABLE + image * 7 + 1), tl.load(TABLE + image * 7 + 2)
    top, left = tl.load(TABLE + image * 7 + 3), tl.load(TABLE + image * 7 + 4)
    box_height, box_width = tl.load(TABLE + image * 7 + 5), tl.load(TABLE + image * 7 + 6)
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    place = tl.where(box_width < 0, size - 1 - column, column)
    first, last, centre, stretch = _range(place, tl.abs(box_width), size)
    total = tl.zeros([BLOCK], dtype=tl.float64)
    for tap in range(TAPS):
        total += _weight(first + tap, last, centre, stretch)
    total = tl.where(column < size, total, 1.0)
    base = PIXELS + start + channel * height * width + (top + row)[:, None] * width + left
    inside = (row < box_height)[:, None] & (column < size)[None, :]
    found = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for tap in range(TAPS):
        x = first + tap
        weight = (_weight(x, last, centre, stretch) / total).to(tl.float32)
        seen = tl.load(base + x.to(tl.int64)[None, :], inside & (x < last)[None, :], 0)
        found += weight[None, :] * seen.to(tl.float32)
    at = (tl.program_id(0).to(tl.int64) * tallest + row)[:, None] * size + column[None, :]
    tl.store(OUT + at, _round_to_byte(found).to(tl.uint8), inside)


@triton.jit
def _down(ACROSS, TABLE, OUT, tallest, size, TAPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    box_height = tl.load(TABLE + tl.program_id(0) // 3 * 7 + 5)
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    first, last, centre, stretch = _range(row, box_height, size)
    total = tl.zeros([ROWS], dtype=tl.float64)
    for tap in range(TAPS):
        total += _weight(first + tap, last, centre, stretch)
    total = tl.where(row < size, total, 1.0)
    inside = (row < size)[:, None] & (column < size)[None, :]
    base = ACROSS + tl.program_id(0).to(tl.int64) * tallest * size + column[None, :]
    found = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for tap in range(TAPS):
        y = first + tap
        weight = (_weight(y, last, centre, stretch) / total).to(tl.float32)
        seen = tl.load(base + y.to(tl.int64)[:, None] * size, inside & (y < last)[:, None], 0)
        found += weight[:, None] * seen.to(tl.float32)
    at = (tl.program_id(0).to(tl.int64) * size + row)[:, None] * size + column[None, :]
    tl.store(OUT + at, _round_to_byte(found), inside)
