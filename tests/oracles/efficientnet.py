"""EfficientNet-Lite as it was trained: batch norms by themselves, TensorFlow's padding written out, nothing folded."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.efficientnet_lite import CLASSES, EPS, FEATURES, STEM, Variant


def convolve(x: Tensor, weight: Tensor, stride: int = 1, groups: int = 1) -> Tensor:
    """TensorFlow's "SAME": ceil(side / stride) positions, and the odd row of zeros behind the image."""
    kernel, side = weight.shape[-1], x.shape[-1]
    zeros = max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
    before, behind = zeros // 2, zeros - zeros // 2
    return F.conv2d(F.pad(x, (before, behind, before, behind)), weight, stride=stride, groups=groups)


def maps(state: Mapping[str, Tensor], variant: Variant, x: Tensor) -> Tensor:
    """(B, 3, S, S) -> (B, 1280, H, W), with the tensors of a checkpoint by their own names."""

    def normalize(x: Tensor, name: str) -> Tensor:
        mean, variance = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        return F.batch_norm(x, mean, variance, state[f"{name}.weight"], state[f"{name}.bias"], eps=EPS)

    x = normalize(convolve(x, state["_conv_stem.weight"], 2), "_bn0").clamp(0, 6)
    number = 0
    for stage in variant.stages:
        for repeat in range(stage.repeats):
            name, y = f"_blocks.{number}", x
            if stage.expansion > 1:
                y = normalize(convolve(y, state[f"{name}._expand_conv.weight"]), f"{name}._bn0").clamp(0, 6)
            stride = stage.stride if repeat == 0 else 1
            y = convolve(y, state[f"{name}._depthwise_conv.weight"], stride, groups=y.shape[1])
            y = normalize(y, f"{name}._bn1").clamp(0, 6)
            y = normalize(convolve(y, state[f"{name}._project_conv.weight"]), f"{name}._bn2")
            x = x + y if y.shape == x.shape else y
            number += 1
    return normalize(convolve(x, state["_conv_head.weight"]), "_bn1").clamp(0, 6)


def random_state(variant: Variant, seed: int = 0) -> dict[str, Tensor]:
    """A checkpoint of these sizes with random weights and random statistics."""
    generator = torch.Generator().manual_seed(seed)
    state = dict[str, Tensor]()

    def add(convolution: str, norm: str, outputs: int, inputs: int, kernel: int) -> None:
        shape = (outputs, inputs, kernel, kernel)
        state[f"{convolution}.weight"] = torch.randn(shape, generator=generator) / math.sqrt(inputs * kernel**2)
        for part in ("weight", "running_var"):
            state[f"{norm}.{part}"] = 0.5 + torch.rand(outputs, generator=generator)
        for part in ("bias", "running_mean"):
            state[f"{norm}.{part}"] = torch.randn(outputs, generator=generator)

    add("_conv_stem", "_bn0", STEM, 3, 3)
    width, number = STEM, 0
    for stage in variant.stages:
        for _ in range(stage.repeats):
            name, inside = f"_blocks.{number}", width * stage.expansion
            if stage.expansion > 1:
                add(f"{name}._expand_conv", f"{name}._bn0", inside, width, 1)
            add(f"{name}._depthwise_conv", f"{name}._bn1", inside, 1, stage.kernel)
            add(f"{name}._project_conv", f"{name}._bn2", stage.width, inside, 1)
            width, number = stage.width, number + 1
    add("_conv_head", "_bn1", FEATURES, width, 1)
    state["_fc.weight"] = torch.randn(CLASSES, FEATURES, generator=generator)
    state["_fc.bias"] = torch.randn(CLASSES, generator=generator)
    return state
