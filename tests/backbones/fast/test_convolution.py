"""Convolution and ReLU6 in one pass: equal to the two, and only used where it is allowed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.fast import convolution
from dca.backbones.fast.convolution import convolve_relu6, fusion_built

SHAPES = [(3, 32, 3, 2, 1, 1), (16, 96, 1, 1, 0, 1), (24, 24, 4, 2, 1, 24), (24, 24, 5, 1, 2, 24)]


def make(inputs: int, outputs: int, kernel: int, stride: int, padding: int, groups: int) -> tuple[nn.Conv2d, Tensor]:
    generator = torch.Generator().manual_seed(kernel)
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups).requires_grad_(False)
    for parameter in layer.parameters():
        parameter.copy_(2 * torch.randn(parameter.shape, generator=generator))
    return layer, torch.randn(3, inputs, 17, 17, generator=generator)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry per call of the fused operation."""
    if not fusion_built():
        pytest.skip("this build of torch has no fused convolution")
    calls, run = list[int](), torch.ops.mkldnn._convolution_pointwise
    monkeypatch.setattr(
        torch.ops, "mkldnn", SimpleNamespace(_convolution_pointwise=lambda *a: calls.append(1) or run(*a))
    )
    return calls


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", SHAPES)
def test_fused_equals_plain(shape: tuple[int, ...], layout: torch.memory_format, counted: list[int]) -> None:
    layer, x = make(*shape)
    layer, x = layer.to(memory_format=layout), x.contiguous(memory_format=layout)
    found, wanted = convolve_relu6(x, layer), F.relu6(layer(x))
    assert counted
    assert 0 < float((wanted == 6).float().mean()) < 1  # both ends of the clamp are met
    assert 0 < float((wanted == 0).float().mean()) < 1
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_it_runs_only_where_it_may(counted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = make(*SHAPES[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert convolve_relu6(x, layer).dtype == torch.bfloat16
    assert convolve_relu6(x.double(), layer.double()).dtype == torch.float64
    layer.float()
    needs_gradient = x.clone().requires_grad_()
    convolve_relu6(needs_gradient, layer).sum().backward()
    assert needs_gradient.grad is not None
    torch.export.export(Plain(layer), (x,), strict=False)
    assert not counted
    with torch.no_grad():
        convolve_relu6(needs_gradient, layer)
    assert len(counted) == 1
    monkeypatch.setattr(convolution, "fusion_built", lambda: False)
    torch.testing.assert_close(convolve_relu6(x, layer), F.relu6(layer(x)))
    assert len(counted) == 1


class Plain(nn.Module):
    """What is exported."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return convolve_relu6(x, self.layer)
