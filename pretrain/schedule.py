"""Settings that change with the progress of a run, in [0, 1]: learning rate, share of patches, augmentation."""

from __future__ import annotations

import math
from dataclasses import replace

from pretrain.config import AugmentConfig, TrainConfig


def progress(config: TrainConfig, step: int, seconds: float) -> float:
    """Progress of the schedule, by steps if a number of steps is set, else by time."""
    return min(1.0, step / config.steps if config.steps else seconds / config.seconds)


def learning_rate(config: TrainConfig, at: float) -> float:
    """Linear rise, then half a cosine down to zero."""
    if at < config.warmup:
        return config.lr * max(at, 1e-3) / config.warmup
    return config.lr * 0.5 * (1 + math.cos(math.pi * (at - config.warmup) / (1 - config.warmup)))


def patches_seen(config: TrainConfig, at: float) -> float:
    """Share of the patches that the image tower gets."""
    phase = next(i for i, end in enumerate(config.until) if at <= end)
    return config.keep[phase]


def augmentation(config: AugmentConfig, at: float) -> AugmentConfig:
    """The augmentation at this progress; milder towards the end, closer to images in use."""
    return config if at < config.calm else replace(config, scale=config.calm_scale, cutmix=0.0, grey=0.0, blurry=0.0)
