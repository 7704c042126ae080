"""Parts of a block: faster forms in training equal the plain ones, and frozen weights are converted once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.blocks import Linear, attention, cast_weight
from dca.backbones.fast.activation import activate

LOW = torch.bfloat16


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


def layer() -> Linear:
    linear = Linear(4, 6)
    with torch.no_grad():
        linear.weight.copy_(torch.linspace(-1, 1, 24).view(6, 4))
    return linear.requires_grad_(False)


def test_frozen_weights_are_converted_once_and_again_after_a_change() -> None:
    weight = layer().weight
    cached = cast_weight(weight, LOW)
    assert cast_weight(weight, LOW) is cached
    assert cast_weight(weight, torch.float32) is weight
    with torch.no_grad():
        weight.mul_(2)
    assert torch.equal(cast_weight(weight, LOW), weight.to(LOW))


def test_trained_and_inference_weights_are_converted_at_every_call() -> None:
    trained = layer().requires_grad_(True).weight
    assert cast_weight(trained, LOW) is not cast_weight(trained, LOW)
    assert cast_weight(trained, LOW).requires_grad
    with torch.inference_mode():
        born = torch.ones(3)
    assert torch.equal(cast_weight(born, LOW), born.to(LOW))


def test_with_autocast_it_equals_a_plain_layer() -> None:
    ours, x = layer(), torch.linspace(-2, 2, 12).view(3, 4)
    plain = torch.nn.Linear(4, 6)
    plain.load_state_dict(ours.state_dict())
    for enabled in (True, False):
        with torch.autocast("cpu", dtype=LOW, enabled=enabled):
            assert torch.equal(ours(x), plain(x))
            # A product of another shape may add in another order.
            torch.testing.assert_close(ours.forward_slice(x, slice(2, 5)), plain(x)[:, 2:5])
    assert set(ours.state_dict()) == {"weight", "bias"}
