"""Occlusion, literally: blur one window of the image after another and see what the log-odds lose."""

from __future__ import annotations

import torch
from torch import Tensor

from dca.methods.interface import Method
from dca.model.explain import NEIGHBOURS, blurred, grid, log_odds, mix


@torch.no_grad()
def occlusion(method: Method, pixels: Tensor, target: int) -> Tensor:
    """Loss of log-odds (G, G) when the window around each patch is blurred; arguments as for `relevance`."""
    side = grid(method)
    blur = blurred(pixels, pixels.shape[-1] // side)
    whole = log_odds(method.classify(method.encode(pixels)), target)
    lost = torch.zeros(side, side, dtype=torch.float64)
    for row in range(side):
        for column in range(side):
            weights = torch.ones(1, side, side)
            top, left = max(row - NEIGHBOURS, 0), max(column - NEIGHBOURS, 0)
            weights[:, top : row + NEIGHBOURS + 1, left : column + NEIGHBOURS + 1] = 0
            mixed = mix(pixels, blur, weights)
            lost[row, column] = (whole - log_odds(method.classify(method.encode(mixed)), target)).double()
    return lost


def rank_correlation(one: Tensor, other: Tensor) -> float:
    """Spearman's coefficient of two tensors of the same size."""
    ranks = [x.flatten().argsort().argsort().double() for x in (one, other)]
    a, b = (r - r.mean() for r in ranks)
    return float((a * b).sum() / (a.norm() * b.norm()))
