"""Where and in which precision things run: decided here and nowhere else.

Weights, trained tokens, distances, softmaxes, losses and statistics are float32 (covariances
float64). Only the towers' arithmetic may be bfloat16: on a GPU by default, never on the CPU
unless asked for.
"""

from __future__ import annotations

import torch

from dca.errors import UserError

PRECISIONS = ("auto", "fp32", "bf16")


def resolve_device(name: str) -> torch.device:
    """A usable device; "auto" is a CUDA GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device '{name}' cannot be used: {reason}", hint="--device auto, cpu or cuda") from None
    return device


def compute_dtype(device: torch.device, precision: str) -> torch.dtype:
    """What the towers calculate in."""
    if precision not in PRECISIONS:
        raise UserError(f"unknown precision '{precision}'", hint=f"one of {', '.join(PRECISIONS)}")
    if precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if precision == "bf16" else torch.float32
