"""Tensors of a finished method: checks of saved ones, and copies for other classes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn


def state_problems(
    parameters: Mapping[str, Tensor], results: Mapping[str, torch.dtype], state: Mapping[str, Tensor]
) -> list[str]:
    """Errors in the names, shapes, types and values of the saved tensors `state`, one line each.

    parameters: expected tensors by name, float32. results: types of further tensors, of any shape.
    """
    expected = {**parameters, **dict.fromkeys(results)}
    problems = [f"missing {n}" for n in expected if n not in state]
    problems += [f"unexpected {n}" for n in state if n not in expected]
    for name, tensor in state.items():
        want = expected.get(name)
        dtype = results.get(name, torch.float32)
        if want is not None and want.shape != tensor.shape:
            problems.append(f"{name}: shape {tuple(tensor.shape)}, expected {tuple(want.shape)}")
        if tensor.dtype != dtype:
            problems.append(f"{name}: type {tensor.dtype}, expected {dtype}")
        elif not torch.isfinite(tensor).all():
            problems.append(f"{name}: holds NaN or infinite values")
    return problems


def copy_parameters(source: nn.Module, target: nn.Module, of_classes: Collection[str], rows: Sequence[int]) -> str:
    """Copy parameters into a method for other classes; returns the name of the first whose shape differs, or "".

    of_classes: parameters whose first axis is the classes; of these only `rows` are taken.
    """
    mine = dict(source.named_parameters())
    for name, parameter in target.named_parameters():
        value: Tensor = mine[name]
        if name in of_classes:
            value = value[list(rows)]
        if value.shape != parameter.shape:
            return name
        with torch.no_grad():
            parameter.copy_(value)
    return ""
