"""Occlusion, literally: blur the window around one patch after another and see what the log-odds lose."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dca.methods.base import Method
from dca.model.explain import blend_blur, blur_image


@torch.no_grad()
def occlusion(method: Method, pixels: Tensor, target: int) -> Tensor:
    """Loss of log-odds (G, G) when the 3 x 3 patches around each patch are blurred; arguments as for `relevance`."""
    vision = method.clip.config.vision
    side = vision.image_size // vision.patch_size
    blur = blur_image(pixels, vision.patch_size)
    whole, lost = _odds(method, pixels, target), torch.zeros(side, side, dtype=torch.float64)
    for row in range(side):
        for column in range(side):
            weights = torch.ones(1, side, side)
            for r in range(side):
                for c in range(side):
                    if abs(r - row) <= 1 and abs(c - column) <= 1:
                        weights[0, r, c] = 0
            lost[row, column] = whole - _odds(method, blend_blur(pixels, blur, weights), target)
    return lost


def _odds(method: Method, pixels: Tensor, target: int) -> float:
    """Log-odds of a class for one image."""
    probabilities = method.classify(method.encode(pixels))[0].tolist()
    return math.log(probabilities[target]) - math.log(sum(p for c, p in enumerate(probabilities) if c != target))


def rank_correlation(one: Tensor, other: Tensor) -> float:
    """Spearman's coefficient of two tensors of the same size."""
    ranks = [x.flatten().argsort().argsort().double() for x in (one, other)]
    a, b = (r - r.mean() for r in ranks)
    return float((a * b).sum() / (a.norm() * b.norm()))
