"""Linear layers that keep their frozen weights in the compute type."""

from __future__ import annotations

import torch

from dca.backbones.clip.blocks import Linear, in_type

LOW = torch.bfloat16


def layer() -> Linear:
    made = Linear(4, 6)
    with torch.no_grad():
        made.weight.copy_(torch.linspace(-1, 1, 24).view(6, 4))
    return made.requires_grad_(False)


def test_frozen_weights_are_converted_once_and_again_after_a_change() -> None:
    weight = layer().weight
    kept = in_type(weight, LOW)
    assert in_type(weight, LOW) is kept
    assert in_type(weight, torch.float32) is weight
    with torch.no_grad():
        weight.mul_(2)
    assert torch.equal(in_type(weight, LOW), weight.to(LOW))


def test_trained_and_inference_weights_are_converted_at_every_call() -> None:
    trained = layer().requires_grad_(True).weight
    assert in_type(trained, LOW) is not in_type(trained, LOW)
    assert in_type(trained, LOW).requires_grad
    with torch.inference_mode():
        born = torch.ones(3)
    assert torch.equal(in_type(born, LOW), born.to(LOW))


def test_with_autocast_it_equals_a_plain_layer() -> None:
    ours, x = layer(), torch.linspace(-2, 2, 12).view(3, 4)
    plain = torch.nn.Linear(4, 6)
    plain.load_state_dict(ours.state_dict())
    for enabled in (True, False):
        with torch.autocast("cpu", dtype=LOW, enabled=enabled):
            assert torch.equal(ours(x), plain(x))
            # A product of another shape may add in another order.
            torch.testing.assert_close(ours.part(x, slice(2, 5)), plain(x)[:, 2:5])
    assert set(ours.state_dict()) == {"weight", "bias"}
