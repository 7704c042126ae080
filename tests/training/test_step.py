"""The recording itself needs a GPU: tests/gpu/check_device.py compares it with the step as written."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch

from conftest import make_clip
from dca.core.errors import UserError
from dca.methods.base import Batch, Method, Problem, Step
from dca.methods.registry import get_method
from dca.methods.shared.losses import IntraClass
from dca.training import loop as gradients
from dca.training.loop import StepRunner, compute_gradients


def build(name: str, **options: Any) -> Method:
    kind = get_method(name)
    problem = Problem(names=("cat", "dog", "red fox"), shots=2, seed=1)
    method = kind.build(make_clip(), problem, kind.Options(**options))
    with torch.no_grad():
        for parameter in method.parameters():  # so that no gradient is zero by construction
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    return method


def batch(seed: int, count: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(count, 3, 32, 32, generator=generator)
    return Batch(pixels, torch.randint(3, (count,), generator=generator), generator)


def batch_noise_expected(method: Any) -> bool:
    """Only these two drop inputs."""
    return method.name in ("clip_lora", "vpt") and method.options.dropout > 0


class Fake:
    """Stands for a recording: counts what it is asked."""

    made: ClassVar[list[tuple[int, ...]]] = []
    replayed: ClassVar[list[Batch]] = []

    def __init__(self, method: Method, batch: Batch, noisy: bool) -> None:
        self.method = method
        assert noisy is batch_noise_expected(method)
        Fake.made.append(tuple(batch.inputs.shape))

    def __call__(self, batch: Batch) -> Step:
        Fake.replayed.append(batch)
        return compute_gradients(self.method, batch)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    monkeypatch.setattr(gradients, "is_on_gpu", lambda batch: True)
    monkeypatch.setattr(gradients, "RecordedStep", Fake)
    monkeypatch.setattr(Fake, "made", [])
    monkeypatch.setattr(Fake, "replayed", [])
    return Fake


def test_gradients_are_those_of_the_sum_of_terms():
    method = build("coop")
    terms = method.step(batch(1)).terms
    expected = torch.autograd.grad(sum(terms.values()), list(method.parameters()))
    for _ in range(2):  # the second time nothing of the first is left
        step = compute_gradients(method, batch(1))
        for parameter, gradient in zip(method.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
    assert not any(term.requires_grad for term in step.terms.values())


def test_nothing_is_recorded_on_a_cpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gradients, "RecordedStep", None)
    ours = StepRunner(build("coop"))
    for seed in range(3):
        ours(batch(seed))


def test_the_first_step_is_run_as_written_and_each_shape_recorded_once(on_gpu: type[Fake]):
    ours = StepRunner(build("coop"))
    for seed, count in enumerate((4, 4, 4, 2, 4)):
        ours(batch(seed, count))
    assert on_gpu.made == [(4, 3, 32, 32), (2, 3, 32, 32)]
    assert len(on_gpu.replayed) == 4


@pytest.mark.parametrize(
    ("name", "options", "recorded"),
    [
        ("coop", {}, True),
        ("clip_lora", {}, True),
        ("vpt", {}, True),
        ("vpt", {"dropout": 0.1}, True),
        ("dca", {"separation_pairs": 5, "alpha": 0.0}, False),
    ],
)
def test_a_step_that_draws_random_numbers_other_than_noise_is_not_recorded(
    on_gpu: type[Fake], name: str, options: dict[str, Any], recorded: bool
):
    method = build(name, **options)
    if name == "dca":
        method._intra_class = IntraClass(torch.zeros(0), None)
        method.prepare = lambda support: None
    method.prepare(None)  # type: ignore[arg-type]
    ours = StepRunner(method)
    for seed in range(3):
        ours(batch(seed))
    assert bool(on_gpu.made) is ours.recorded is recorded


def test_a_method_may_forbid_it(on_gpu: type[Fake], monkeypatch: pytest.MonkeyPatch):
    method: Any = build("coop")
    monkeypatch.setattr(type(method), "recordable", False)
    ours = StepRunner(method)
    for seed in range(3):
        ours(batch(seed))
    assert on_gpu.made == []


def test_a_step_that_draws_noise_and_more_is_not_recorded(on_gpu: type[Fake]):
    method: Any = build("clip_lora")
    written = method.step

    def drawing(batch: Batch) -> Step:
        torch.rand(1, generator=batch.generator)
        return written(batch)

    method.step = drawing
    ours = StepRunner(method)
    for seed in range(3):
        ours(batch(seed))
    assert on_gpu.made == []


def test_the_noise_of_a_batch_is_one_stream_from_one_draw():
    first, second = batch(1), batch(1)
    assert not first.noise_used
    drawn = torch.rand(3, generator=first.noise), torch.rand(3, generator=first.noise)
    assert first.noise_used
    assert not torch.equal(*drawn)
    assert torch.equal(torch.cat(drawn), torch.rand(6, generator=second.noise))
    assert torch.equal(first.generator.get_state(), second.generator.get_state())


@pytest.mark.parametrize(
    ("problem", "kind", "told"),
    [
        ("operation not permitted when stream is capturing", UserError, "method coop: its step cannot be recorded"),
        ("out of memory", RuntimeError, "out of memory"),
    ],
)
def test_a_step_that_reads_values_back_is_named(problem: str, kind: type[Exception], told: str):
    with pytest.raises(kind, match=told), gradients.explain_capture_error(build("coop")):
        raise RuntimeError(f"CUDA error: {problem}")
