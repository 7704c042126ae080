"""Learning rates, optimisers, batches and stages, from training options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor

from dca.methods.base import LastBatch, Method, TrainingOptions


@dataclass(frozen=True)
class Stage:
    """A stage of training: its number and its epochs, both from 0 on."""

    number: int
    epochs: range


def stage_at(epoch: int, lengths: Sequence[int]) -> Stage:
    """The stage that an epoch belongs to, from the epochs of each stage; the last one where there is none."""
    ends = list(accumulate(lengths))
    number = next((n for n, end in enumerate(ends) if epoch < end), len(ends) - 1)
    return Stage(number, range(ends[number] - lengths[number], ends[number]))


def learning_rate_at(epoch: float, epochs: int, options: TrainingOptions, rate: float) -> float:
    """Learning rate at an epoch: constant warm-up, then a cosine over the full number of epochs.

    The cosine is shifted by the warm-up, as in CoOp: lr(e) = lr (1 + cos(π (e - w) / E)) / 2.
    """
    if epoch < options.warmup_epochs:
        return options.warmup_rate
    falling = (1 + math.cos(math.pi * (epoch - options.warmup_epochs) / epochs)) / 2
    return options.final_rate + (rate - options.final_rate) * falling


def skip_compiler_import() -> None:
    """Keep torch's optimisers from importing torch's compiler, which takes seconds and is not used here.

    Some of their methods are wrapped: at the first call, the wrapper imports the compiler to be able to tell it to
    leave the method alone. Where the wrapper has its answer already, it does not ask.
    """
    for name in ("add_param_group", "state_dict", "load_state_dict"):
        inside = getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None)
        if inside is not None and not hasattr(inside, "__dynamo_disable"):
            inside.__dynamo_disable = inside


def make_optimizer(method: Method, options: TrainingOptions, rate: float) -> torch.optim.Optimizer:
    """The optimiser that the options name, over the method's own parameters."""
    skip_compiler_import()
    parameters = list(method.parameters())
    if options.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=options.momentum, weight_decay=options.weight_decay)
    kind = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.Adam
    return kind(parameters, lr=rate, eps=options.adam_eps, weight_decay=options.weight_decay)


@torch.no_grad()
def update_parameters(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """`optimizer.step()` with this learning rate: the same operations on the same state, in fewer calls.

    `step` itself imports torch's compiler, and for small tensors spends more time around the arithmetic than on it.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate
        todo = [p for p in group["params"] if p.grad is not None]
        if isinstance(optimizer, torch.optim.SGD):
            _sgd_step(todo, [optimizer.state[p] for p in todo], group)
            continue
        decoupled = isinstance(optimizer, torch.optim.AdamW)
        for count, some in groupby(todo, lambda p: _count_step(p, optimizer.state[p])):
            alike = list(some)
            _adam_step(alike, [optimizer.state[p] for p in alike], group, count, decoupled)


def _sgd_step(parameters: list[Tensor], states: list[dict[str, Tensor | None]], group: dict[str, Any]) -> None:
    """One update by SGD with momentum; all parameters at once."""
    if not parameters:
        return
    changes = [p.grad for p in parameters if p.grad is not None]
    if group["weight_decay"]:
        changes = list(torch._foreach_add(changes, parameters, alpha=group["weight_decay"]))
    if group["momentum"]:
        kept = [_momentum(p, state) for p, state in zip(parameters, states, strict=True)]
        torch._foreach_mul_(kept, group["momentum"])
        torch._foreach_add_(kept, changes)
        changes = kept
    torch._foreach_add_(parameters, changes, alpha=-group["lr"])


def _momentum(p: Tensor, state: dict[str, Tensor | None]) -> Tensor:
    """The momentum of a parameter, zero before the first update: so the first is the gradient, as in torch's SGD."""
    kept = state.get("momentum_buffer")
    if kept is None:
        state["momentum_buffer"] = kept = torch.zeros_like(p)
    return kept


def _count_step(p: Tensor, state: dict[str, Tensor]) -> int:
    """The number of the update of a parameter that is due; makes its state before the first."""
    if not state:
        state.update(step=torch.tensor(0.0), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
    state["step"] += 1
    return int(state["step"])


def _adam_step(
    parameters: list[Tensor], states: list[dict[str, Tensor]], group: dict[str, Any], count: int, decoupled: bool
) -> None:
    """Update number `count` by Adam, or by AdamW if the weight decay is decoupled from the gradient."""
    rate, decay, (beta1, beta2) = group["lr"], group["weight_decay"], group["betas"]
    means, squares = [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]
    gradients = [p.grad for p in parameters if p.grad is not None]
    if decay and decoupled:
        torch._foreach_mul_(parameters, 1 - rate * decay)
    elif decay:
        gradients = list(torch._foreach_add(gradients, parameters, alpha=decay))
    torch._foreach_lerp_(means, gradients, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_div_(roots, (1 - beta2**count) ** 0.5)
    torch._foreach_add_(roots, group["eps"])
    torch._foreach_addcdiv_(parameters, means, roots, value=-rate / (1 - beta1**count))


def draw_batches(
    count: int, size: int, generator: torch.Generator, last: LastBatch = "drop", most: int | None = None
) -> list[Tensor]:
    """A random order of `count` rows in batches.

    last: whether a short last batch is dropped, unless it is the only one, or kept. most: batches at most.
    """
    found = torch.split(torch.randperm(count, generator=generator), size)
    if last == "drop" and len(found) > 1 and len(found[-1]) < size:
        found = found[:-1]
    return list(found[:most])
