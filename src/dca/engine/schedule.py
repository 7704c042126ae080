"""Learning rates, optimisers and batches of a recipe."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from dca.methods.interface import Method
from dca.methods.recipe import Recipe


def rate_at(epoch: float, epochs: int, recipe: Recipe, rate: float) -> float:
    """Learning rate at an epoch: constant warm-up, then a cosine over the full number of epochs.

    The cosine is shifted by the warm-up, as in CoOp: lr(e) = lr (1 + cos(π (e - w) / E)) / 2.
    """
    if epoch < recipe.warmup_epochs:
        return recipe.warmup_rate
    falling = (1 + math.cos(math.pi * (epoch - recipe.warmup_epochs) / epochs)) / 2
    return recipe.final_rate + (rate - recipe.final_rate) * falling


def make_optimizer(method: Method, recipe: Recipe, rate: float) -> torch.optim.Optimizer:
    """The optimiser that the recipe names, over the method's own parameters."""
    parameters = list(method.parameters())
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    return kind(parameters, lr=rate, eps=recipe.adam_eps, weight_decay=recipe.weight_decay)


def batches(count: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """A random order in batches; a short last batch is dropped unless it is the only one."""
    for indices in torch.split(torch.randperm(count, generator=generator), size):
        if len(indices) == size or count < size:
            yield indices
