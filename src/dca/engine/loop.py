"""The only training loop: steps, schedule, metrics.jsonl, resume.

Every epoch draws its order and its augmentation from its own random stream, so an epoch can be
run again without those before it: a resumed run needs only the parameters and the momentum.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from dca.core import seeds
from dca.core.errors import UserError
from dca.core.files import write_bytes
from dca.engine.step import Gradients
from dca.engine.training_images import TrainingImages
from dca.methods.interface import Batch, Method
from dca.methods.recipe import Recipe

log = logging.getLogger(__name__)

METRICS, STATE = "metrics.jsonl", "training.safetensors"
# Seconds between saved states; an interrupted run repeats at most this much work.
SAVE_EVERY = 5.0
# What torch's SGD, Adam and AdamW remember of each parameter.
OPTIMIZER_STATE = ("momentum_buffer", "step", "exp_avg", "exp_avg_sq")
# The rule for a learning rate nobody chose: see `probe_rate`.
PROBE_SHARE, PROBE_SHOTS, PROBE_BATCHES = 0.02, 16, 8

Row = dict[str, float]


@dataclass(frozen=True)
class Tick:
    """Where training stands, for whoever shows it."""

    done: int
    total: int
    epoch: int
    epochs: int
    loss: float
    accuracy: float


Progress = Callable[[Tick], None]


def rate_at(epoch: float, epochs: int, recipe: Recipe, rate: float) -> float:
    """Learning rate at an epoch: constant warm-up, then a cosine over the full epoch count.

    The cosine is shifted by the warm-up, as in the lineage: lr(e) = lr (1 + cos(π (e - w) / E)) / 2.
    """
    if epoch < recipe.warmup_epochs:
        return recipe.warmup_rate
    falling = (1 + math.cos(math.pi * (epoch - recipe.warmup_epochs) / epochs)) / 2
    return recipe.final_rate + (rate - recipe.final_rate) * falling


def make_optimizer(method: Method, recipe: Recipe, rate: float) -> torch.optim.Optimizer:
    """The optimiser that the recipe names, over the method's own parameters."""
    parameters = list(method.parameters())
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    return kind(parameters, lr=rate, eps=recipe.adam_eps, weight_decay=recipe.weight_decay)


def batches(count: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """A random order in batches; a short last one is left out unless it is the only one."""
    for indices in torch.split(torch.randperm(count, generator=generator), size):
        if len(indices) == size or count < size:
            yield indices


class Trainer:
    """One training run of one method on one set of images."""

    def __init__(self, method: Method, images: TrainingImages, recipe: Recipe, seed: int) -> None:
        if recipe.epochs is None or recipe.batch_size is None:
            raise ValueError("epochs and batch_size must be settled before training")
        self.method, self.images, self.recipe, self.seed = method, images, recipe, seed
        self.epochs, self.batch_size = recipe.epochs, recipe.batch_size
        self.rows: list[Row] = []
        self._features, self._labels = None, images.labels
        if method.trains_on == "features":
            self._features, self._labels = method.training_rows(images)
        method.prepare(images)
        self.rate = recipe.learning_rate if recipe.learning_rate is not None else self.probe_rate()
        self.optimizer = make_optimizer(method, recipe, self.rate)
        self._gradients = Gradients(method)

    def run(self, folder: Path | None = None, progress: Progress | None = None) -> list[Row]:
        """Train to the last epoch, continuing what `folder` holds; returns one row an epoch.

        An interrupt saves the last whole epoch before it goes on.
        """
        saved = self.restore(folder) if folder else 0
        if saved:
            log.warning("%s: an interrupted run goes on after epoch %d of %d", folder, saved, self.epochs)
        state, clock = b"", time.monotonic()
        try:
            for epoch in range(saved, self.epochs):
                self.rows.append(self._epoch(epoch, progress))
                if folder is None:
                    continue
                state = self.state(epoch + 1)
                if time.monotonic() - clock >= SAVE_EVERY or epoch == self.epochs - 1:
                    self.save(folder, state)
                    saved, clock = epoch + 1, time.monotonic()
        except KeyboardInterrupt:
            if folder and state and len(self.rows) > saved:
                self.save(folder, state)
            raise
        return self.rows

    def _epoch(self, epoch: int, progress: Progress | None) -> Row:
        """One pass over the images."""
        began = time.monotonic()
        generator = seeds.generator(self.seed, "epoch", epoch)
        sums: dict[str, float] = {}
        correct = seen = 0
        steps = list(batches(len(self._labels), self.batch_size, generator))
        self.method.train()
        following = self._batch(steps[0], generator)
        for number, indices in enumerate(steps, 1):
            passed = (number - 1) / len(steps) if self.recipe.schedule == "step" else 0.0
            rate = rate_at(epoch + passed, self.epochs, self.recipe, self.rate)
            told = self._step(following, rate)
            # A GPU is still busy with this step while the next batch is made; reading waits for it.
            if number < len(steps):
                following = self._batch(steps[number], generator)
            terms, hits = self._read(*told, epoch)
            correct, seen = correct + hits, seen + len(indices)
            for name, value in terms.items():
                sums[name] = sums.get(name, 0.0) + value
            if progress:
                done, total = epoch * len(steps) + number, self.epochs * len(steps)
                progress(Tick(done, total, epoch + 1, self.epochs, sum(sums.values()) / number, correct / seen))
        self.method.eval()
        self.method.epoch_done(epoch + 1, self.epochs)
        if not all(torch.isfinite(p).all() for p in self.method.parameters()):
            raise self._diverged(epoch, "a trained value")
        means = {f"loss_{name}": value / len(steps) for name, value in sums.items()}
        row = {"epoch": epoch + 1, "loss": sum(means.values()), **means}
        return {**row, "accuracy": correct / seen, "learning_rate": rate, "seconds": time.monotonic() - began}

    def _step(self, batch: Batch, rate: float) -> tuple[list[str], Tensor]:
        """One update. Names of the loss terms; their values and the number of right images, still on the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        step = self._gradients(batch)
        right = (step.probabilities.argmax(dim=-1) == batch.labels).sum()
        told = torch.stack([value.double() for value in (*step.terms.values(), right)])
        self.optimizer.step()
        return list(step.terms), told

    def _read(self, names: list[str], told: Tensor, epoch: int) -> tuple[dict[str, float], int]:
        """What `_step` told, as numbers."""
        *values, right = told.tolist()
        terms = dict(zip(names, values, strict=True))
        if bad := [name for name, value in terms.items() if not math.isfinite(value)]:
            raise self._diverged(epoch, f"loss term {', '.join(bad)}")
        return terms, int(right)

    def _diverged(self, epoch: int, what: str) -> UserError:
        return UserError(
            f"training diverged in epoch {epoch + 1}: {what} is not finite",
            hint=f"lower the learning rate (it was {self.rate:g}): --set learning_rate={self.rate / 10:g}",
        )

    def _batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        on_device = indices.to(self._labels.device)
        if self._features is not None:
            inputs = self._features[on_device]
        else:
            inputs = self.images.pixels(indices, generator, augment=self.recipe.augment)
        return Batch(inputs, self._labels[on_device], generator)

    def probe_rate(self) -> float:
        """A learning rate from the gradient itself, for data nobody has tuned on.

        lr = s ‖θ‖ / ‖g‖, g the mean gradient over a few batches at the first values: the first
        full step would change the trained tokens by the share s of their norm. So the rate
        follows the 10⁴-fold differences that the number of classes, τ and the reductions make.
        s = 0.02 K^1.5 for K shots (at most 16): one image a class bears small steps only, many
        reward large ones.
        """
        generator = seeds.generator(self.seed, "probe")
        steps = list(batches(len(self._labels), self.batch_size, generator))[:PROBE_BATCHES]
        parameters = [p for p in self.method.parameters() if p.requires_grad]
        if not parameters:
            return 0.0
        for indices in steps:
            terms = self.method.step(self._batch(indices, generator)).terms
            (torch.stack(list(terms.values())).sum() / len(steps)).backward()  # type: ignore[no-untyped-call]
        gradient = math.sqrt(sum(float(p.grad.square().sum()) for p in parameters if p.grad is not None))
        size = math.sqrt(sum(float(p.detach().square().sum()) for p in parameters))
        self.method.zero_grad(set_to_none=True)
        if not math.isfinite(gradient):
            raise UserError(
                "training cannot start: the loss has no finite gradient",
                hint=f"try the default options; `dca methods show {self.method.name}` has them",
            )
        share = PROBE_SHARE * min(self.method.problem.shots, PROBE_SHOTS) ** 1.5
        return share * size / gradient if gradient > 0 else 0.0

    def state(self, epochs_done: int) -> bytes:
        """The method's tensors and the optimiser's, as a file holds them."""
        tensors = {f"method.{name}": tensor.detach().contiguous() for name, tensor in self.method.state_dict().items()}
        for name, parameter in self.method.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{key}.{name}"] = value.contiguous()
        return save_tensors(tensors, metadata={"epochs_done": str(epochs_done), "learning_rate": repr(self.rate)})

    def save(self, folder: Path, state: bytes) -> None:
        """The metrics so far, then the state: a reader may find more rows than epochs, never fewer."""
        write_bytes(folder / METRICS, "".join(json.dumps(row) + "\n" for row in self.rows).encode())
        write_bytes(folder / STATE, state)

    def restore(self, folder: Path) -> int:
        """Take up the state in `folder`; returns how many epochs it had done (0 if there is none)."""
        path = folder / STATE
        if not path.is_file():
            return 0
        try:
            data = path.read_bytes()
            tensors, record = load_tensors(data), _metadata(data)
            done, rate = int(record["epochs_done"]), float(record["learning_rate"])
            rows = read_metrics(folder)[:done]
            if not 0 <= done <= self.epochs or len(rows) < done:
                raise ValueError(f"{done} of {self.epochs} epochs done, {len(rows)} rows of metrics")
            self._take(tensors)
        except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
            raise UserError(
                f"{folder}: the interrupted run cannot be taken up ({error})",
                hint="delete that folder, and training starts again",
            ) from None
        self.rate, self.rows = rate, rows
        return done

    def _take(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy saved tensors into the method and the optimiser; raises where one is missing or misshapen."""
        for name, tensor in self.method.state_dict().items():
            tensor.copy_(_like(tensor, tensors[f"method.{name}"]))
        for name, parameter in self.method.named_parameters():
            for key in OPTIMIZER_STATE:
                if (saved := tensors.get(f"{key}.{name}")) is not None:
                    self.optimizer.state[parameter][key] = saved if key == "step" else _like(parameter, saved)


def _like(parameter: Tensor, tensor: Tensor) -> Tensor:
    """A saved tensor on the parameter's device, if it is of its shape."""
    if tensor.shape != parameter.shape:
        raise ValueError(f"shape {tuple(tensor.shape)}, expected {tuple(parameter.shape)}")
    return tensor.to(parameter)


def read_metrics(folder: Path) -> list[Row]:
    """The rows of `metrics.jsonl`, one an epoch; none where training has not saved yet."""
    path = folder / METRICS
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            rows.append(_row(json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: line {number} is not a row of metrics ({error})", hint="delete it") from None
    return rows


def _row(value: Any) -> Row:
    """A row of metrics, or a ValueError."""
    numbers = isinstance(value, dict) and all(isinstance(v, int | float) for v in value.values())
    if not numbers or not {"epoch", "seconds"} <= value.keys():
        raise ValueError("numbers by name expected, epoch and seconds among them")
    return dict(value)


def _metadata(data: bytes) -> Mapping[str, Any]:
    """The `__metadata__` of safetensors bytes."""
    length = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    return dict(header["__metadata__"])
