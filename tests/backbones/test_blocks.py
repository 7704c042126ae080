"""Parts of a block that have a faster form in training: equal to the plain one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.clip.blocks import attention
from dca.backbones.fast.activation import activate


def _draws(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("queries", [1, 7])
def test_attention_in_bfloat16_with_gradients(queries: int) -> None:
    shapes = [(2, 3, rows, 16) for rows in (queries, 7, 7, queries)]
    *inputs, towards = _draws(*shapes)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = (x.to(dtype).requires_grad_() for x in inputs)
        mixed = attention(q, k, v)
        found.append([mixed, *torch.autograd.grad(mixed, (q, k, v), towards.to(dtype))])
    literal = F.scaled_dot_product_attention(inputs[0], inputs[1], inputs[2])
    torch.testing.assert_close(found[0][0].detach(), literal)
    for exact, rounded in zip(*found, strict=True):
        assert rounded.dtype == torch.bfloat16
        assert float((rounded.float() - exact).detach().norm() / exact.detach().norm()) < 2e-2


def test_attention_in_bfloat16_without_gradients_is_that_of_torch() -> None:
    q, k, v = (x.bfloat16() for x in _draws(*[(1, 2, 5, 8)] * 3))
    assert torch.equal(attention(q, k, v), F.scaled_dot_product_attention(q, k, v))


def test_quick_gelu_and_its_gradient_are_those_of_its_definition() -> None:
    h, towards = (x.double() for x in _draws((4, 9), (4, 9)))
    found = []
    for compute in (lambda x: activate(x, quick=True), lambda x: x * torch.sigmoid(1.702 * x)):
        x = h.clone().requires_grad_()
        y = compute(x)
        found.append((y.detach(), torch.autograd.grad(y, x, towards)[0]))
    for ours, literal in zip(*found, strict=True):
        torch.testing.assert_close(ours, literal)
