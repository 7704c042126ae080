"""The state of an unfinished training run on disk, and its metrics: how a run continues after an interruption."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from dca.core.errors import UserError
from dca.core.files import write_bytes
from dca.methods.base import Method

METRICS, STATE = "metrics.jsonl", "training.safetensors"
# The folder of fits that are parts of an unfinished run: folds of a cross-validation, candidates of a search.
FOLDS = "folds"
# What torch's SGD, Adam and AdamW remember of each parameter.
OPTIMIZER_STATE = ("momentum_buffer", "step", "exp_avg", "exp_avg_sq")

EpochMetrics = dict[str, float]
# Receives the row of each epoch as it ends.
EpochCallback = Callable[[EpochMetrics], None]


@dataclass(frozen=True)
class TrainingState:
    """Where training stood after a whole epoch: the method's tensors, the optimiser's, and the learning rate."""

    tensors: dict[str, Tensor]
    epochs_done: int
    rate: float

    @classmethod
    def copy_from(
        cls, method: Method, optimizer: torch.optim.Optimizer, epochs_done: int, rate: float
    ) -> TrainingState:
        """Copy the state on its device; nothing is serialised."""
        tensors = {f"method.{name}": tensor.detach().clone() for name, tensor in method.state_dict().items()}
        for name, parameter in method.named_parameters():
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{key}.{name}"] = value.detach().clone()
        return cls(tensors, epochs_done, rate)

    def save(self, folder: Path, rows: Sequence[EpochMetrics]) -> None:
        """Write the metrics so far, then the state: a reader may find more rows than epochs, never fewer."""
        metadata = {"epochs_done": str(self.epochs_done), "learning_rate": repr(self.rate)}
        tensors = {name: tensor.cpu().contiguous() for name, tensor in self.tensors.items()}
        write_metrics(folder, rows)
        write_bytes(folder / STATE, save_tensors(tensors, metadata=metadata))

    @classmethod
    def read(cls, folder: Path) -> TrainingState | None:
        """The state saved in a folder, or None; a damaged file raises what the reader raises."""
        path = folder / STATE
        if not path.is_file():
            return None
        data = path.read_bytes()
        record = _read_metadata(data)
        return cls(load_tensors(data), int(record["epochs_done"]), float(record["learning_rate"]))

    def copy_into(self, method: Method, optimizer: torch.optim.Optimizer) -> None:
        """Copy the tensors into a method and its optimiser; raises where one is missing or has another shape."""
        for name, tensor in method.state_dict().items():
            tensor.copy_(_match_parameter(tensor, self.tensors[f"method.{name}"]))
        for name, parameter in method.named_parameters():
            for key in OPTIMIZER_STATE:
                if (saved := self.tensors.get(f"{key}.{name}")) is not None:
                    optimizer.state[parameter][key] = saved if key == "step" else _match_parameter(parameter, saved)


def restore_training(
    folder: Path, method: Method, optimizer: torch.optim.Optimizer, epochs: int
) -> tuple[TrainingState, list[EpochMetrics]]:
    """Load the state in `folder` into a method and its optimiser; a state of 0 epochs where there is none.

    Raises:
        UserError: If the state is damaged or belongs to another run.
    """
    try:
        saved = TrainingState.read(folder)
        if saved is None:
            return TrainingState({}, 0, 0.0), []
        rows = read_metrics(folder)[: saved.epochs_done]
        if not 0 <= saved.epochs_done <= epochs or len(rows) < saved.epochs_done:
            raise ValueError(f"{saved.epochs_done} of {epochs} epochs done, {len(rows)} rows of metrics")
        saved.copy_into(method, optimizer)
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise UserError(
            f"{folder}: the interrupted run cannot be continued ({error})",
            hint="delete that folder to start training again",
        ) from None
    return saved, rows


def write_metrics(folder: Path, rows: Sequence[EpochMetrics]) -> None:
    """Write `metrics.jsonl`, one row per epoch."""
    write_bytes(folder / METRICS, "".join(json.dumps(row) + "\n" for row in rows).encode())


def read_metrics(folder: Path) -> list[EpochMetrics]:
    """The rows of `metrics.jsonl`, one per epoch; none where training has not saved yet."""
    path = folder / METRICS
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            rows.append(_parse_metrics(json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: line {number} is not a row of metrics ({error})", hint="delete it") from None
    return rows


def _parse_metrics(value: Any) -> EpochMetrics:
    """A row of metrics, or a ValueError."""
    numbers = isinstance(value, dict) and all(isinstance(v, int | float) for v in value.values())
    if not numbers or not {"epoch", "seconds"} <= value.keys():
        raise ValueError("numbers by name expected, epoch and seconds among them")
    return dict(value)


def _match_parameter(parameter: Tensor, tensor: Tensor) -> Tensor:
    """A saved tensor on the parameter's device, if it has its shape."""
    if tensor.shape != parameter.shape:
        raise ValueError(f"shape {tuple(tensor.shape)}, expected {tuple(parameter.shape)}")
    return tensor.to(parameter)


def _read_metadata(data: bytes) -> Mapping[str, Any]:
    """The `__metadata__` of safetensors bytes."""
    length = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    return dict(header["__metadata__"])
