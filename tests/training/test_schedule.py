from __future__ import annotations

from typing import Any

import pytest
import torch

from dca.training.schedule import Stage, stage_at, update_parameters


def trained(kind: type[torch.optim.Optimizer], ours: bool, **options: Any) -> tuple[list[torch.Tensor], Any]:
    """Parameters after 30 steps of random gradients, and the optimiser's state; the second parameter has few."""
    generator = torch.Generator().manual_seed(1)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((7, 5), (3,))]
    optimizer = kind(parameters, lr=1.0, **options)
    for step in range(30):
        rate = 0.1 / (1 + step)
        parameters[0].grad = torch.randn(7, 5, generator=generator)
        parameters[1].grad = torch.randn(3, generator=generator) if step % 3 else None
        if ours:
            update_parameters(optimizer, rate)
            continue
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    return [p.detach() for p in parameters], optimizer.state_dict()["state"]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.0}, {"weight_decay": 0.3, "eps": 1e-4}])
def test_adam_is_torchs_to_the_bit(kind: type[torch.optim.Optimizer], options: dict[str, float]) -> None:
    ours, state = trained(kind, True, **options)
    theirs, expected = trained(kind, False, **options)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert all(torch.equal(state[p][key], expected[p][key]) for p in expected for key in expected[p])


def test_sgd_is_torchs() -> None:
    ours, _ = trained(torch.optim.SGD, True, momentum=0.9, weight_decay=0.1)
    theirs, _ = trained(torch.optim.SGD, False, momentum=0.9, weight_decay=0.1)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_an_epoch_belongs_to_a_stage() -> None:
    assert [stage_at(epoch, (2, 3)) for epoch in range(5)] == [Stage(0, range(2))] * 2 + [Stage(1, range(2, 5))] * 3
    assert stage_at(0, (0, 2)) == Stage(1, range(2)), "a stage of no epochs is left out"
    assert stage_at(0, (0, 0)).epochs == range(0)
    assert stage_at(7, (8,)) == Stage(0, range(8))
