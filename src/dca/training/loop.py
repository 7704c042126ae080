"""The only training loop: epochs, steps, metrics.

Every epoch draws its order and its augmentation from its own random stream, so an epoch can be run again without
those before it: a resumed run needs only the parameters and the optimiser's state (`resume.py`).

A step is computed as written, or on a GPU recorded once as a CUDA graph and replayed: a step of a small backbone is a
thousand kernels of a few microseconds, and starting them one by one takes far longer than running them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from dca.backbones.dual_encoder import overlap_towers
from dca.core import seeds
from dca.core.device import limit_threads, to_device, wait_for_gpu_libraries
from dca.core.errors import UserError
from dca.core.hints import set_option, show_method
from dca.methods.base import AnalyticSteps, Batch, Step, TrainedMethod, TrainingOptions
from dca.training.resume import EpochCallback, EpochMetrics, TrainingState, restore_training
from dca.training.schedule import Stage, draw_batches, learning_rate_at, make_optimizer, stage_at, update_parameters
from dca.training.support import ImageSupport

# Steps run as written before the recording: they fill caches and settle which kernels are used.
WARM_UP = 2


def compute_gradients(method: TrainedMethod, batch: Batch) -> Step:
    """The step's terms; its gradients become those of the method's parameters."""
    method.zero_grad(set_to_none=True)
    step = method.step(batch)
    torch.stack(list(step.terms.values())).sum().backward()  # type: ignore[no-untyped-call]
    return Step({name: term.detach() for name, term in step.terms.items()}, step.probabilities.detach())


class RecordedStep:
    """A step in fixed memory: the batch is copied in, its noise generator is seeded, the graph is replayed."""

    def __init__(self, method: TrainedMethod, batch: Batch, noisy: bool) -> None:
        self.batch = Batch(batch.inputs.clone(), batch.labels.clone(), seeds.generator(0, "recording"))
        self.graph, self.noise_used = torch.cuda.CUDAGraph(), noisy
        if noisy:
            self.graph.register_generator_state(self.batch.noise)
        wait_for_gpu_libraries()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                with overlap_towers():
                    compute_gradients(method, self.batch)
        torch.cuda.current_stream().wait_stream(aside)
        with explain_capture_error(method), torch.cuda.graph(self.graph), overlap_towers():
            self.step = compute_gradients(method, self.batch)
        self.gradients = [(p, p.grad) for p in method.parameters()]

    def __call__(self, batch: Batch) -> Step:
        """The step of another batch of the same shape."""
        self.batch.inputs.copy_(batch.inputs)
        self.batch.labels.copy_(batch.labels)
        if self.noise_used:
            self.batch.noise.manual_seed(batch.noise.initial_seed())
        self.graph.replay()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        return self.step


@contextmanager
def explain_capture_error(method: TrainedMethod) -> Iterator[None]:
    """Turn CUDA's error about a step that reads values back while it is recorded into a UserError."""
    try:
        yield
    except RuntimeError as error:
        if "captur" not in str(error):
            raise
        raise UserError(
            f"method {method.name}: its step cannot be recorded as a CUDA graph, since it reads values back",
            hint=f"set `recordable = False` in class {type(method).__name__}, or keep its values on the device",
        ) from error


def is_on_gpu(batch: Batch) -> bool:
    """Whether the batch is on a GPU, where steps can be recorded."""
    return batch.inputs.is_cuda


class StepRunner:
    """`compute_gradients`, recorded where that is possible.

    That is on a GPU, for methods with `recordable = True` whose step draws random numbers from `noise` only.
    """

    def __init__(self, method: TrainedMethod) -> None:
        self.method = method
        self._recordings: dict[tuple[int, ...], RecordedStep] = {}
        self._recordable: bool | None = None
        self._noisy = False

    @property
    def recorded(self) -> bool:
        """Whether a step has been recorded."""
        return bool(self._recordings)

    def __call__(self, batch: Batch) -> Step:
        """Terms and probabilities of a batch; they may be overwritten by the next call."""
        if self._recordable is None:
            return self._run_first_step(batch)
        if not self._recordable:
            return compute_gradients(self.method, batch)
        shape = tuple(batch.inputs.shape)
        if shape not in self._recordings:
            self._recordings[shape] = RecordedStep(self.method, batch, self._noisy)
        return self._recordings[shape](batch)

    def _run_first_step(self, batch: Batch) -> Step:
        """The first step without recording; finds out which random numbers the step draws."""
        quiet = torch.Generator().set_state(batch.generator.get_state())
        step = compute_gradients(self.method, batch)
        self._noisy = batch.noise_used
        if batch.noise_used:
            seeds.spawn_generator(quiet, batch.inputs.device)
        drew = not torch.equal(quiet.get_state(), batch.generator.get_state())
        self._recordable = is_on_gpu(batch) and self.method.recordable and not drew
        return step


log = logging.getLogger(__name__)

# How the error of a loss that is not finite begins.
DIVERGED = "training diverged"
# Seconds between saved states; an interrupted run repeats at most this much work.
SAVE_EVERY = 5.0
# Seconds between two readings of metrics, each of which waits for the device.
READ_EVERY = 0.1
# Bytes of stored features that are gathered at once for a method that takes several steps at a time.
GATHERED = 2**24
# The rule for a learning rate that is not given: see `probe_rate`.
PROBE_SHARE, PROBE_SHOTS, PROBE_BATCHES = 0.02, 16, 8


@dataclass(frozen=True)
class StepProgress:
    """Progress of training after a step: steps done, epoch, mean loss and training accuracy of the epoch so far."""

    done: int
    total: int
    epoch: int
    epochs: int
    loss: float
    accuracy: float


StepCallback = Callable[[StepProgress], None]
ProbeCallback = Callable[[int, int], None]
# Names of T loss terms; for S steps their values and the number of correct images, (S, T + 1) on the device.
Metrics = tuple[list[str], Tensor]


class EpochTotals:
    """Sums over the steps of an epoch."""

    def __init__(self) -> None:
        self.terms: dict[str, float] = {}
        self.correct = self.seen = self.steps = 0

    def add(self, terms: dict[str, float], correct: int, seen: int) -> None:
        """One more step."""
        for name, value in terms.items():
            self.terms[name] = self.terms.get(name, 0.0) + value
        self.correct, self.seen, self.steps = self.correct + correct, self.seen + seen, self.steps + 1

    @property
    def loss(self) -> float:
        """Mean over the steps of the summed terms."""
        return sum(self.terms.values()) / self.steps

    @property
    def accuracy(self) -> float:
        """Share of images that were classified correctly."""
        return self.correct / self.seen

    def to_metrics(self, epoch: int, rate: float, seconds: float) -> EpochMetrics:
        """One line of the metrics."""
        means = {f"loss_{name}": value / self.steps for name, value in self.terms.items()}
        head = {"epoch": epoch, "loss": sum(means.values()), **means}
        return {**head, "accuracy": self.accuracy, "learning_rate": rate, "seconds": seconds}


class Trainer:
    """One training run of one method on one set of images.

    options: its epochs and batch size must be numbers. seed: decides the order of images and augmentation. on_probe:
    called after each step that only finds the learning rate, with minus the number of those left, and the number of
    all training steps.
    """

    def __init__(
        self,
        method: TrainedMethod,
        images: ImageSupport,
        options: TrainingOptions,
        seed: int,
        on_probe: ProbeCallback | None = None,
    ) -> None:
        if options.epochs is None or options.batch_size is None:
            raise ValueError("epochs and batch_size must be numbers before training")
        self.method, self.images, self.options, self.seed = method, images, options, seed
        self.epochs, self.batch_size = options.epochs, options.batch_size
        self.rows: list[EpochMetrics] = []
        self._now = Stage(0, range(0))
        self._features, self._labels = None, images.labels
        if method.trains_on == "features":
            self._features, self._labels = method.training_rows(images)
        method.prepare(images)
        self._begin(0)
        self.rate = options.learning_rate if options.learning_rate is not None else self.probe_learning_rate(on_probe)
        # One for all stages: what a stage does not train has no gradient, so it is neither moved nor decayed.
        self.optimizer = make_optimizer(method, options, self.rate)

    def _begin(self, epoch: int) -> None:
        """Begin the stage that an epoch belongs to, unless it has begun; a recorded step belongs to one stage."""
        if epoch not in self._now.epochs:
            self._now = stage_at(epoch, self.method.stages(self.epochs))
            self.method.begin_stage(self._now.number)
            self._gradients = StepRunner(self.method)

    def run(
        self, folder: Path | None = None, on_step: StepCallback | None = None, on_epoch: EpochCallback | None = None
    ) -> list[EpochMetrics]:
        """Train to the last epoch, continuing from the state in `folder`; returns one row per epoch.

        on_epoch: receives each row, those of epochs that were done before first. A KeyboardInterrupt is raised again
        after the state of the last whole epoch is saved.
        """
        with self._limit_threads():
            return self._run(folder, on_step, on_epoch or (lambda row: None))

    def _limit_threads(self) -> AbstractContextManager[None]:
        """The threads of training; steps in closed form are products of a batch with the parameters."""
        if self._features is None or self.method.analytic_steps is None:
            return nullcontext()
        return limit_threads(min(self.batch_size, len(self._labels)) * self.method.count_parameters())

    def _run(self, folder: Path | None, on_step: StepCallback | None, on_epoch: EpochCallback) -> list[EpochMetrics]:
        saved = self._restore(folder) if folder else 0
        latest, clock = None, time.monotonic()
        for row in self.rows:
            on_epoch(row)
        try:
            for epoch in range(saved, self.epochs):
                self.rows.append(self._epoch(epoch, on_step))
                on_epoch(self.rows[-1])
                if folder is None:
                    continue
                latest = TrainingState.copy_from(self.method, self.optimizer, epoch + 1, self.rate)
                if time.monotonic() - clock >= SAVE_EVERY or epoch == self.epochs - 1:
                    latest.save(folder, self.rows)
                    saved, clock = epoch + 1, time.monotonic()
        except KeyboardInterrupt:
            if folder and latest and latest.epochs_done > saved:
                latest.save(folder, self.rows)
            raise
        return self.rows

    def _restore(self, folder: Path) -> int:
        """Continue from the state in `folder`; returns the number of epochs that are done."""
        saved, self.rows = restore_training(folder, self.method, self.optimizer, self.epochs)
        if saved.epochs_done:
            self.rate = saved.rate
            log.warning("%s: continuing after epoch %d of %d", folder, saved.epochs_done, self.epochs)
        return saved.epochs_done

    def _epoch(self, epoch: int, on_step: StepCallback | None) -> EpochMetrics:
        """One pass over the images."""
        began, generator, totals = time.monotonic(), seeds.generator(self.seed, "epoch", epoch), EpochTotals()
        self._begin(epoch)
        steps = self._order(generator)
        passed = [number / len(steps) if self.options.schedule == "step" else 0.0 for number in range(len(steps))]
        began_at, length = self._now.epochs.start, len(self._now.epochs)
        rates = [learning_rate_at(epoch - began_at + part, length, self.options, self.rate) for part in passed]
        unread: list[Metrics] = []
        self.method.train()
        due = began
        for metrics in self._updates(steps, rates, generator):
            unread.append(metrics)
            if time.monotonic() >= due:
                self._report(unread, totals, epoch, steps, on_step)
                due = time.monotonic() + READ_EVERY
        self._report(unread, totals, epoch, steps, on_step)
        self.method.eval()
        self.method.on_epoch_end(epoch + 1, self.epochs)
        if not all(torch.isfinite(p).all() for p in self.method.parameters()):
            raise self._diverged(epoch, "a trained value")
        return totals.to_metrics(epoch + 1, rates[-1], time.monotonic() - began)

    def _order(self, generator: torch.Generator) -> list[Tensor]:
        """The rows of each step of an epoch; all batches are of one size, except a short last one that is kept."""
        most = self.method.steps_per_epoch(len(self.images.labels), self.batch_size)
        return draw_batches(len(self._labels), self.batch_size, generator, self.options.last_batch, most)

    def _updates(
        self, steps: Sequence[Tensor], rates: Sequence[float], generator: torch.Generator
    ) -> Iterator[Metrics]:
        """All updates of an epoch, from the indices and the learning rate of each; yields their metrics."""
        if self._features is not None and (make_steps := self.method.analytic_steps) is not None:
            per_read = max(GATHERED // (self._features[0].nbytes * len(steps[0])), 1)
            whole = sum(len(rows) == len(steps[0]) for rows in steps)
            starts = [*range(0, whole, per_read), *range(whole, len(steps))]
            for start, end in pairwise([*starts, len(steps)]):
                many = self._batch(torch.stack(list(steps[start:end])), generator)
                yield self._analytic_updates(make_steps(many), rates[start:end])
            return
        ahead = self._batches(steps, generator)
        following = next(ahead, None)
        for rate in rates:
            assert following is not None
            metrics = self._step(following, rate)
            # A GPU is still busy with this step while the next batch is made; reading waits for it.
            following = next(ahead, None)
            yield metrics

    def _step(self, batch: Batch, rate: float) -> Metrics:
        """One update."""
        step = self._gradients(batch)
        right = (step.probabilities.argmax(dim=-1) == batch.labels).sum()
        metrics = torch.stack([value.double() for value in (*step.terms.values(), right)])
        update_parameters(self.optimizer, rate)
        return list(step.terms), metrics[None]

    def _analytic_updates(self, steps: AnalyticSteps, rates: Sequence[float]) -> Metrics:
        """Several updates with gradients that the method computes itself."""
        parameters = list(self.method.parameters())
        for number, rate in enumerate(rates):
            for parameter, gradient in zip(parameters, steps.gradients(number), strict=True):
                parameter.grad = gradient
            update_parameters(self.optimizer, rate)
        terms, right = steps.summarize()
        return list(terms), torch.stack([value.double() for value in (*terms.values(), right)], dim=1)

    def _report(
        self,
        unread: list[Metrics],
        totals: EpochTotals,
        epoch: int,
        steps: Sequence[Tensor],
        on_step: StepCallback | None,
    ) -> None:
        """Add metrics to the totals, report every step, and empty the list."""
        for terms, right in self._read(unread, epoch):
            totals.add(terms, right, len(steps[totals.steps]))
            if on_step:
                done, total = epoch * len(steps) + totals.steps, self.epochs * len(steps)
                on_step(StepProgress(done, total, epoch + 1, self.epochs, totals.loss, totals.accuracy))
        unread.clear()

    def _read(self, unread: Sequence[Metrics], epoch: int) -> Iterator[tuple[dict[str, float], int]]:
        """Loss terms and the number of correct images of each step, as numbers."""
        values = iter(torch.cat([metrics.flatten() for _, metrics in unread]).tolist() if unread else [])
        for names, metrics in unread:
            for _ in metrics:
                terms = {name: next(values) for name in names}
                if bad := [name for name, value in terms.items() if not math.isfinite(value)]:
                    raise self._diverged(epoch, f"loss term {', '.join(bad)}")
                yield terms, int(next(values))

    def _diverged(self, epoch: int, what: str) -> UserError:
        return UserError(
            f"{DIVERGED} in epoch {epoch + 1}: {what} is not finite (the learning rate was {self.rate:g})",
            hint=set_option("learning_rate", self.rate / 10),
        )

    def _batches(self, steps: Sequence[Tensor], generator: torch.Generator) -> Iterator[Batch]:
        """The batch of each step; the pixels of several are made together, ahead of what the steps draw themselves."""
        if self._features is not None:
            yield from (self._batch(rows, generator) for rows in steps)
            return
        per_read = self.images.steps_per_pixel_call(len(steps[0]))
        for start in range(0, len(steps), per_read):
            some = steps[start : start + per_read]
            rows, options = to_device(torch.cat(list(some)), self._labels.device), self.options
            labels = torch.split(self._labels[rows], [len(indices) for indices in some])
            pixels = self.images.pixels_of_steps(some, generator, augment=options.augment, crop_low=options.crop_low)
            yield from (Batch(*pair, generator) for pair in zip(pixels, labels, strict=True))

    def _batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """The batch of one step over features, or of several steps (n, B)."""
        assert self._features is not None
        on_device = to_device(indices, self._labels.device)
        return Batch(self._features[on_device], self._labels[on_device], generator)

    def probe_learning_rate(self, on_probe: ProbeCallback | None = None) -> float:
        """A learning rate from the gradient itself, for data without a tuned value.

        lr = s ‖θ‖ / ‖g‖, g the mean gradient over a few batches at the initial values: the first full step would
        change the trained tokens by the share s of their norm. So the rate follows the 10⁴-fold differences that
        the number of classes, τ and the reductions make. s = 0.02 K^1.5 for K shots (at most 16): with one image
        per class only small steps are safe, with many images large ones pay.
        """
        generator = seeds.generator(self.seed, "probe")
        epoch = self._order(generator)
        steps = epoch[:PROBE_BATCHES]
        parameters = [p for p in self.method.parameters() if p.requires_grad]
        if not parameters:
            return 0.0
        for number, batch in enumerate(self._batches(steps, generator), 1):
            terms = self.method.step(batch).terms
            (torch.stack(list(terms.values())).sum() / len(steps)).backward()  # type: ignore[no-untyped-call]
            if on_probe:
                on_probe(number - len(steps), self.epochs * len(epoch))
        gradient = math.sqrt(sum(float(p.grad.square().sum()) for p in parameters if p.grad is not None))
        size = math.sqrt(sum(float(p.detach().square().sum()) for p in parameters))
        self.method.zero_grad(set_to_none=True)
        if not math.isfinite(gradient):
            raise UserError(
                "training cannot start: the loss has no finite gradient",
                hint=["try the default options", show_method(self.method.name)],
            )
        share = PROBE_SHARE * min(self.method.problem.shots, PROBE_SHOTS) ** 1.5
        return share * size / gradient if gradient > 0 else 0.0
