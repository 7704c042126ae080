"""Check that a GPU gives what the CPU gives, and time both: python tests/gpu/check_device.py [--backbone mini].

The same method, images and random streams run on both devices. It prints the largest differences
of features, loss terms and gradients in float32 (TF32 off), the agreement of predictions in
bfloat16, and milliseconds per training step. Then it compares, for every method that trains on images, the step
recorded in a CUDA graph with the step as written, and checks that a step that cannot be recorded raises a UserError.
Exits with 1 when a float32 difference exceeds its limit.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch

from dca.backbones.clip import CLIP
from dca.backbones.dual_encoder import DualEncoder
from dca.core import seeds
from dca.core.device import without_triton
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset
from dca.datasets.sample import load_sample
from dca.methods.base import Batch, Problem, Step, TrainedMethod
from dca.methods.coop import CoOp
from dca.methods.dca import DCA, DCAOptions
from dca.methods.registry import all_methods, get_method
from dca.training.loop import StepRunner, compute_gradients
from dca.training.session import Session
from dca.training.support import ImageSupport

LIMITS = {"image features": 1e-4, "text features": 1e-4, "loss terms": 1e-3, "gradients": 1e-2, "probabilities": 1e-3}


def make_sample(clip: DualEncoder) -> tuple[Dataset, ImageSupport]:
    """The sample images, eight per class, on the device of the backbone."""
    data = load_sample(per_class_train=8, per_class_test=1)
    return data, ImageSupport(data.train, Session(device=str(clip.device)), clip, seed=1)


def build(backbone: str, device: str, dtype: torch.dtype) -> tuple[DCA, ImageSupport]:
    """DCA on the sample images, prepared, on one device."""
    clip = CLIP.from_pretrained(backbone).to_device(device).with_dtype(dtype)
    data, images = make_sample(clip)
    method = DCA.build(clip, Problem(names=data.names, shots=8, seed=1), DCAOptions())
    method.prepare(images)
    return method, images


def observe_step(method: DCA, images: ImageSupport) -> dict[str, torch.Tensor]:
    """The values on which both devices must agree, from one augmented batch."""
    generator = seeds.generator(1, "check")
    indices = torch.arange(32)
    pixels = images.pixels(indices, generator, augment=True)
    step = method.step(Batch(pixels, images.labels[indices.to(images.labels.device)], generator))
    method.zero_grad()
    torch.stack(list(step.terms.values())).sum().backward()
    gradients = torch.cat([p.grad.flatten() for p in method.parameters() if p.grad is not None])
    method.finish(images)
    method.build_head()
    with torch.no_grad():
        seen = {
            "image features": method.encode(pixels),
            "text features": method.encode_text(),
            "loss terms": torch.stack([t.detach() for t in step.terms.values()]),
            "gradients": gradients / gradients.norm(),
            "probabilities": method.classify(method.encode(pixels)),
        }
    return {name: value.float().cpu() for name, value in seen.items()}


def measure_milliseconds(method: DCA, images: ImageSupport, steps: int = 10) -> float:
    """Time of one training step: batch, forward, backward."""
    generator = seeds.generator(1, "time")

    def step() -> None:
        indices = torch.randint(len(images), (32,), generator=generator)
        batch = Batch(
            images.pixels(indices, generator, augment=True), images.labels[indices.to(images.labels.device)], generator
        )
        torch.stack(list(method.step(batch).terms.values())).sum().backward()

    return _measure(step, steps, images.labels.is_cuda)


def _measure(work: Callable[[], object], times: int, cuda: bool) -> float:
    for _ in range(2):
        work()
    if cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        work()
    if cuda:
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - began) / times


def compare_recorded(
    name: str, clip: DualEncoder, images: ImageSupport, data: Dataset
) -> tuple[float, float, float | None]:
    """Largest relative gap between gradients of a recorded step and of one as written, without kernels.

    Also the milliseconds of both.
    """
    kind = get_method(name)
    method = kind.build(clip, Problem(names=data.names, shots=8, seed=1), kind.Options())
    assert isinstance(method, TrainedMethod)
    method.prepare(images)

    def batch(first: int) -> Batch:
        rows, generator = torch.arange(first, first + 32), seeds.generator(1, "recorded")
        return Batch(images.pixels(rows, generator, augment=True), images.labels[rows.to(clip.device)], generator)

    gradients = StepRunner(method)
    for _ in range(2):
        gradients(batch(0))
    gradients(batch(32))
    got = [p.grad.clone() for p in method.parameters() if p.grad is not None]
    second = batch(32)
    with without_triton():
        compute_gradients(method, second)
        want = [p.grad.clone() for p in method.parameters() if p.grad is not None]
        written = _measure(lambda: compute_gradients(method, second), 5, True)
    gap = max(float((a - b).norm() / b.norm().clamp_min(1e-12)) for a, b in zip(got, want, strict=True))
    return gap, written, _measure(lambda: gradients(second), 20, True) if gradients.recorded else None


def check_recordings(clip: DualEncoder) -> bool:
    """Whether the recorded gradients of every method that trains on images are within the limit."""
    data, images = make_sample(clip)
    good = True
    for name, kind in all_methods().items():
        if kind.trains_on != "images":
            continue
        gap, written, replayed = compare_recorded(name, clip, images, data)
        good &= gap <= LIMITS["gradients"]
        how = "not recorded" if replayed is None else f"recorded {replayed:.1f}"
        print(f"{name:<10} gradients {gap:.1e} apart; ms per step: written {written:.1f}, {how}")
    return good


class ReadsBack(CoOp):
    """CoOp with a step that reads a value back from the device, which cannot be recorded."""

    def step(self, batch: Batch) -> Step:
        """The step of CoOp, with one value read back."""
        step = super().step(batch)
        step.terms["cls"].item()
        return step


def check_refusal(clip: DualEncoder) -> bool:
    """Whether a step that cannot be recorded raises a UserError. Called last: CUDA may be unusable afterwards."""
    data, images = make_sample(clip)
    method = ReadsBack.build(clip, Problem(names=data.names, shots=8, seed=1), ReadsBack.Options())
    gradients, generator, rows = StepRunner(method), seeds.generator(1, "refused"), torch.arange(32)
    batch = Batch(images.pixels(rows, generator, augment=True), images.labels[rows.to(clip.device)], generator)
    try:
        for _ in range(2):
            gradients(batch)
    except UserError as error:
        print(f"a step that reads values back: {error.problem}")
        return True
    print("a step that reads values back was recorded")
    return False


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="mini")
    backbone = parser.parse_args().backbone
    if not torch.cuda.is_available():
        print("no GPU here: nothing to compare with the CPU")
        return 0
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    cpu, gpu = build(backbone, "cpu", torch.float32), build(backbone, "cuda", torch.float32)
    ours, theirs = observe_step(*cpu), observe_step(*gpu)
    failed = False
    for name, limit in LIMITS.items():
        gap = float((ours[name] - theirs[name]).abs().max())
        failed |= gap > limit
        print(f"{name:<16} largest difference {gap:.1e} (limit {limit:.0e})")
    half = build(backbone, "cuda", torch.bfloat16)
    same = observe_step(*half)["probabilities"].argmax(-1) == ours["probabilities"].argmax(-1)
    print(f"bf16 predictions equal to the CPU's: {float(same.float().mean()):.1%}")
    times = measure_milliseconds(*cpu, steps=3), measure_milliseconds(*gpu), measure_milliseconds(*half)
    print("ms per step as written: cpu {:.0f}, gpu fp32 {:.1f}, gpu bf16 {:.1f}".format(*times))
    failed |= not check_recordings(gpu[0].clip)
    return int(failed | (not check_refusal(gpu[0].clip)))


if __name__ == "__main__":
    sys.exit(main())
