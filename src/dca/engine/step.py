"""Loss terms and gradients of a step: computed as written, or on a GPU recorded once and replayed.

A step of a small backbone is a thousand kernels of a few microseconds, and starting them one by one
takes far longer than running them. A CUDA graph starts them all at once, and computes the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dca.clip.beside import towers_beside
from dca.core import seeds, warm_up
from dca.core.errors import UserError
from dca.methods.interface import Batch, Step, TrainedMethod

# Steps run as written before the recording: they fill caches and settle which kernels are used.
WARM_UP = 2


def compute_gradients(method: TrainedMethod, batch: Batch) -> Step:
    """The step's terms; its gradients become those of the method's parameters."""
    method.zero_grad(set_to_none=True)
    step = method.step(batch)
    torch.stack(list(step.terms.values())).sum().backward()  # type: ignore[no-untyped-call]
    return Step({name: term.detach() for name, term in step.terms.items()}, step.probabilities.detach())


class Recording:
    """A step in fixed memory: the batch is copied in, its noise generator is seeded, the graph is replayed."""

    def __init__(self, method: TrainedMethod, batch: Batch, noisy: bool) -> None:
        self.batch = Batch(batch.inputs.clone(), batch.labels.clone(), seeds.generator(0, "recording"))
        self.graph, self.noisy = torch.cuda.CUDAGraph(), noisy
        if noisy:
            self.graph.register_generator_state(self.batch.noise)
        warm_up.wait()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                with towers_beside():
                    compute_gradients(method, self.batch)
        torch.cuda.current_stream().wait_stream(aside)
        with explain_capture_error(method), torch.cuda.graph(self.graph), towers_beside():
            self.step = compute_gradients(method, self.batch)
        self.gradients = [(p, p.grad) for p in method.parameters()]

    def __call__(self, batch: Batch) -> Step:
        """The step of another batch of the same shape."""
        self.batch.inputs.copy_(batch.inputs)
        self.batch.labels.copy_(batch.labels)
        if self.noisy:
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


def on_gpu(batch: Batch) -> bool:
    """Whether the batch is on a GPU, where steps can be recorded."""
    return batch.inputs.is_cuda


class Gradients:
    """`compute_gradients`, recorded where that is possible.

    That is on a GPU, for methods with `recordable = True` whose step draws random numbers from `noise` only.
    """

    def __init__(self, method: TrainedMethod) -> None:
        self.method = method
        self._recordings: dict[tuple[int, ...], Recording] = {}
        self._recordable: bool | None = None
        self._noisy = False

    @property
    def recorded(self) -> bool:
        """Whether a step has been recorded."""
        return bool(self._recordings)

    def __call__(self, batch: Batch) -> Step:
        """Terms and probabilities of a batch; they may be overwritten by the next call."""
        if self._recordable is None:
            return self._first(batch)
        if not self._recordable:
            return compute_gradients(self.method, batch)
        shape = tuple(batch.inputs.shape)
        if shape not in self._recordings:
            self._recordings[shape] = Recording(self.method, batch, self._noisy)
        return self._recordings[shape](batch)

    def _first(self, batch: Batch) -> Step:
        """The first step without recording; finds out which random numbers the step draws."""
        quiet = torch.Generator().set_state(batch.generator.get_state())
        step = compute_gradients(self.method, batch)
        self._noisy = batch.noisy
        if batch.noisy:
            seeds.branch(quiet, batch.inputs.device)
        drew = not torch.equal(quiet.get_state(), batch.generator.get_state())
        self._recordable = on_gpu(batch) and self.method.recordable and not drew
        return step
