"""Time and memory of a piece of work.

What is measured: a backbone, classes, and a DCA model on them.

The usual way: every class name under every prompt as a sequence of full length, all rows through all blocks.

Written plainly, after the structure of CoOp's code, as what the fast implementations are compared with.

The text side of a step, and the head of a finished model.

A training step of DCA: forward, backward and update.

Whole commands: how long a user waits for the first line, a fit, an evaluation.
"""

from __future__ import annotations

import copy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.blocks import Residual, TowerConfig
from dca.backbones.clip import CLIP, VIT_B_16
from dca.backbones.clip.tokenizer import load_tokenizer
from dca.backbones.clip.vision import VisionTower
from dca.backbones.clip.weights import initialize_weights
from dca.backbones.encoder import Encoder
from dca.backbones.preprocess import Preprocess
from dca.backbones.sources import mini_folder
from dca.core import seeds
from dca.core.device import without_triton
from dca.core.errors import UserError
from dca.datasets.classes import read_class_list
from dca.images.decode import open_image
from dca.methods.base import Batch, Problem
from dca.methods.dca import DCA
from dca.methods.shared import gaussian
from dca.methods.shared.class_features import ClassFeatures
from dca.methods.shared.heads import MahalanobisHead
from dca.methods.shared.losses import IntraClass
from dca.methods.zero_shot import ZeroShot
from dca.model.inputs import as_dataset
from dca.training.evaluate import predict_probabilities
from dca.training.loop import StepRunner, compute_gradients
from dca.training.schedule import make_optimizer, update_parameters
from dca.training.session import Session

# Multiplications and additions per second that an H200 was measured to do in a large bfloat16 product.
PEAK = 790e12


@dataclass(frozen=True)
class StepCost:
    """Milliseconds, and bytes at the peak (None where they are not known, on a CPU)."""

    ms: float
    memory: int | None = None


@dataclass(frozen=True)
class Result:
    """One line of a benchmark.

    Attributes:
        name: What was measured, with its sizes.
        ours_ms: Milliseconds of this package.
        reference_ms: Milliseconds of the plain reference; None where it does not fit in memory.
        memory: Peak bytes of ours; None if unknown.
        reference_memory: Peak bytes of the reference.
        floor_ms: Milliseconds that the arithmetic alone would take on a device of `PEAK`; None where that says nothing.
        gap: Largest relative difference between the results of the two; None if they were not compared.
    """

    name: str
    ours_ms: float
    reference_ms: float | None = None
    memory: int | None = None
    reference_memory: int | None = None
    floor_ms: float | None = None
    gap: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """For `--json`: the fields, and how many times faster than the reference."""
        ratio = None if self.reference_ms is None else self.reference_ms / self.ours_ms
        return {**asdict(self), "ratio": ratio}


def measure(work: Callable[[], object], device: torch.device, *, repeats: int = 20, warm_up: int = 3) -> StepCost:
    """The median time of `work` after a warm-up, and the most memory that it held.

    Args:
        work: What is measured; on a GPU it may return before the GPU is done.
        device: Where it runs.
        repeats: How often it is timed.
        warm_up: How often it runs before.

    Returns:
        Time and memory.
    """
    for _ in range(warm_up):
        work()
    if device.type != "cuda":
        return StepCost(statistics.median(_seconds(work) for _ in range(repeats)) * 1000)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    # In one go: the time of a step among others, as in training, without a wait after each.
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize(device)
    took = (time.perf_counter() - began) / repeats * 1000
    return StepCost(took, torch.cuda.max_memory_allocated(device))


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def relative_gap(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """Largest ‖a - b‖ / ‖b‖ over pairs of tensors."""
    pairs = zip(found, wanted, strict=True)
    return max(float((a.float() - b.float()).norm() / b.float().norm().clamp_min(1e-12)) for a, b in pairs)


RANDOM = "random-vit-b-16"


def load_backbone(name: str, device: torch.device, dtype: torch.dtype) -> CLIP:
    """A backbone on a device; `RANDOM` has the shape of ViT-B/16 and random weights."""
    clip = random_vit_b_16() if name == RANDOM else CLIP.from_pretrained(name)
    return clip.to_device(device).with_dtype(dtype)


def random_vit_b_16() -> CLIP:
    """A CLIP of the shape of ViT-B/16 with random weights."""
    tokenizer = load_tokenizer(mini_folder(), VIT_B_16.text.context_length)
    size = VIT_B_16.vision.image_size
    transform = Preprocess(size=size, resize=size, resample=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    clip = CLIP(VIT_B_16, tokenizer, transform, RANDOM)
    return initialize_weights(clip, torch.Generator().manual_seed(0)).freeze()


def make_names(count: int) -> tuple[str, ...]:
    """Class names: those of ImageNet, then the same with numbers."""
    known = [name for _, name in read_class_list("imagenet")]
    return tuple(known[c % len(known)] + (f" {c // len(known)}" if c >= len(known) else "") for c in range(count))


def require_vit(encoder: Encoder) -> CLIP:
    """The encoder as a CLIP with a ViT, which the usual step is written for.

    Raises:
        UserError: If it is none.
    """
    if isinstance(encoder, CLIP) and isinstance(encoder.visual, VisionTower):
        return encoder
    raise UserError(f"{encoder.source} is no CLIP with a ViT, which the usual step is written for")


def units(*shape: int, device: torch.device | str = "cpu", seed: int = 0) -> Tensor:
    """Random unit vectors around a common direction."""
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(
        torch.randn(shape[-1], generator=generator) + torch.randn(shape, generator=generator), dim=-1
    ).to(device)


def method_of(clip: CLIP, classes: int, shots: int = 2) -> DCA:
    """DCA for that many classes, ready for training steps; L_in's centres are those of random features."""
    method = DCA.build(clip, Problem(names=make_names(classes), shots=16, seed=1), DCA.Options())
    features = units(classes * shots, clip.config.embed_dim, device=clip.device)
    labels = torch.arange(classes, device=clip.device).repeat_interleave(shots)
    method._intra_class = IntraClass.from_features(features, labels, method.problem.names, method.problem.shots)
    return method


def batch_of(clip: CLIP, classes: int, size: int) -> Batch:
    """A batch of random pixels."""
    generator, side = torch.Generator().manual_seed(2), clip.config.vision.image_size
    pixels = torch.randn(size, 3, side, side, generator=generator).to(clip.device)
    labels = torch.randint(classes, (size,), generator=generator).to(clip.device)
    return Batch(pixels, labels, seeds.generator(1, "bench"))


def text_features(method: DCA) -> Tensor:
    """u: unit text features (M, C, D), 77 tokens for every class and prompt."""
    clip = require_vit(method.clip)
    with without_triton(), clip._autocast(None):
        found = [_encode(clip, context, method.text.name_ids) for context in method.text.contexts]
    return F.normalize(torch.stack(found).float(), dim=-1)


def _encode(clip: CLIP, context: Tensor, names: list[list[int]]) -> Tensor:
    """Features (C, D) of all names behind one context (L, W)."""
    tower, length = clip.text, clip.config.text.context_length
    ids = torch.tensor([[*own, *[0] * (length - 1 - len(context) - len(own))] for own in names], device=context.device)
    start = tower.embed([clip.config.text.sot_id]).expand(len(names), -1, -1)
    x = torch.cat([start, context.expand(len(names), -1, -1), tower.embedding(ids)], dim=1) + tower.positions
    for block in tower.blocks:
        x = block(Residual(x), causal=True).total()
    ends = torch.tensor([len(context) + len(own) for own in names], device=context.device)
    feature: Tensor = tower.projection(tower.ln_final(x[torch.arange(len(names), device=x.device), ends]))
    return feature


def image_features(method: DCA, pixels: Tensor) -> Tensor:
    """f: unit image features (B, D), all rows through all blocks."""
    clip = require_vit(method.clip)
    tower = clip.vit
    with without_triton(), clip._autocast(None):
        x = tower.ln_pre(tower.embed(pixels))
        tokens = method.visual.tokens.expand(len(x), -1, -1)
        x = torch.cat([x[:, :1], tokens, x[:, 1:]], dim=1)
        for block in tower.blocks:
            x = block(Residual(x)).total()
        feature = tower.projection(tower.ln_post(x[:, 0]))
    return F.normalize(feature.float(), dim=-1)


class UsualDCA(DCA):
    """DCA whose features come the usual way."""

    def encode(self, pixels: Tensor) -> Tensor:
        """f: unit image features (B, D)."""
        return image_features(self, pixels)

    def encode_text(self, places: Sequence[int] | None = None) -> Tensor:
        """u: unit text features (M, C, D), of all classes."""
        assert places is None
        return text_features(self)


def usual_method(method: DCA) -> UsualDCA:
    """The same method, with the same parameters, the usual way."""
    other = copy.copy(method)
    other.__class__ = UsualDCA
    assert isinstance(other, UsualDCA)
    return other


def dense_distances(f: Tensor, u: Tensor, inverses: Tensor) -> Tensor:
    """d_m (B, M, C) of f (B, D) with whole matrices: u (M, C, D), inverses (M, C, D, D)."""
    found = []
    for one, matrices in zip(u, inverses, strict=True):
        delta = f[:, None] - one
        found.append(torch.einsum("bcd,cde,bce->bc", delta, matrices, delta))
    return torch.stack(found, dim=1)


def dense_inverses(x: Tensor, center: Tensor, gamma1: float, gamma2: float) -> Tensor:
    """Σ̂⁻¹ of every class as a whole matrix (C, D, D): x (C, K, D) about center (C, D), Eqs. 5 and 6."""
    delta = x - center[:, None]
    sigma = delta.mT @ delta / (x.shape[1] - 1)
    D = sigma.shape[-1]
    trace = sigma.diagonal(dim1=1, dim2=2).sum(dim=1)
    v_d, v_o = trace / D, (sigma.sum(dim=(1, 2)) - trace) / (D * (D - 1))
    one = torch.eye(D, device=x.device)
    sigma += (gamma1 * v_d)[:, None, None] * one + (gamma2 * v_o)[:, None, None] * (1 - one)
    scale = sigma.diagonal(dim1=1, dim2=2).sqrt()
    sigma /= scale[:, :, None] * scale[:, None, :]
    inverse: Tensor = torch.linalg.inv(sigma)
    return inverse


PROMPTS, WIDTH = 4, 512


def measure_text(clip: CLIP, classes: int) -> Result:
    """Text features and their gradient: shared prefixes without padding, and 77 tokens per class and prompt."""
    method = method_of(clip, classes)
    found: list[list[Tensor]] = []

    def run(usual: bool) -> StepCost:
        def work() -> None:
            method.zero_grad(set_to_none=True)
            u = (usual_method(method) if usual else method).encode_text()
            (u * torch.linspace(-1, 1, u.shape[-1], device=u.device)).sum().backward()  # type: ignore[no-untyped-call]

        cost = measure(work, clip.device, repeats=3, warm_up=1)
        found.append([p.grad.clone() for p in method.text.parameters() if p.grad is not None])
        return cost

    ours, usual = run(False), run(True)
    name = f"text, {classes} classes, {PROMPTS} prompts"
    return Result(name, ours.ms, usual.ms, ours.memory, usual.memory, gap=relative_gap(*found))


def measure_head(device: torch.device, classes: int, shots: int, images: int) -> Result:
    """Distances of DCA's head: structured, and with whole inverse covariances (M·C of D×D). Memory is the head's."""
    u = units(PROMPTS, classes, WIDTH, device=device)
    x, labels = units(classes * shots, WIDTH, device=device, seed=1), torch.arange(classes, device=device)
    gamma1, gamma2 = gaussian.paper_gammas(shots)
    family = gaussian.dca_gaussian(gamma1, gamma2, shots)
    head = MahalanobisHead.from_text(
        u, ClassFeatures.group(x, labels.repeat_interleave(shots), classes), family, tau=100.0
    )
    f = units(images, WIDTH, device=device, seed=2)
    ours = measure(lambda: head.distances(f), device, repeats=5, warm_up=1)
    inverses = torch.stack([dense_inverses(x.view(classes, shots, -1), one, gamma1, gamma2) for one in u])
    usual = measure(lambda: dense_distances(f, u, inverses), device, repeats=2, warm_up=1)
    gap = relative_gap([head.distances(f)], [dense_distances(f, u, inverses)])
    held = sum(tensor.nbytes for tensor in (head.weight, head.square, head.constant))
    name = f"head, {classes} classes, {shots} shots, {PROMPTS} prompts, {images} images"
    return Result(name, ours.ms, usual.ms, held, inverses.nbytes + u.nbytes, gap=gap)


def measure_steps(clip: CLIP, classes: Sequence[int], batches: Sequence[int], *, compare: bool) -> Iterator[Result]:
    """One result for every number of classes and batch size; compare: also run the reference."""
    for count in classes:
        for size in batches:
            yield measure_step(clip, count, size, compare=compare)


def measure_step(clip: CLIP, classes: int, size: int, *, compare: bool) -> Result:
    """Our step, recorded on a GPU, and the usual one."""
    method, batch = method_of(clip, classes), batch_of(clip, classes, size)
    if clip.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(clip.device)
    gradients, optimizer = StepRunner(method), make_optimizer(method, method.options, 1e-9)

    def ours() -> None:
        gradients(batch)
        update_parameters(optimizer, 1e-9)

    for _ in range(2):  # the first step finds out what can be recorded, the second records it
        ours()
    # Of the recording, too: what it computed in stays reserved, but does not count as allocated afterwards.
    memory = torch.cuda.max_memory_allocated(clip.device) if clip.device.type == "cuda" else None
    cost, found = measure(ours, clip.device), _gradients(method)
    usual, wanted = _run_usual_step(method, batch) if compare else (None, None)
    return Result(
        name=f"step, {classes} classes, batch {size}",
        ours_ms=cost.ms,
        reference_ms=usual.ms if usual else None,
        memory=memory,
        reference_memory=usual.memory if usual else None,
        floor_ms=estimate_floor_ms(method, size),
        gap=relative_gap(found, wanted) if wanted else None,
    )


def _run_usual_step(method: DCA, batch: Batch) -> tuple[StepCost | None, list[Tensor] | None]:
    """StepCost and gradients of the usual step; None where it does not fit in memory."""
    usual = usual_method(method)
    try:
        cost = measure(lambda: compute_gradients(usual, batch), method.clip.device, repeats=5, warm_up=2)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None, None
    return cost, _gradients(method)


def _gradients(method: DCA) -> list[Tensor]:
    return [parameter.grad.detach().clone() for parameter in method.parameters() if parameter.grad is not None]


def estimate_floor_ms(method: DCA, size: int) -> float:
    """Milliseconds of the arithmetic of a step at `PEAK`: products of weights and of attention, forward and backward.

    Packed text rows, image rows with the visual tokens; a frozen layer's backward costs as much as its forward.
    """
    clip = require_vit(method.clip)
    names = sum(len(ids) for ids in method.text.name_ids)
    text = [1 + len(context) for context in method.text.contexts]
    rows = sum(text) + len(text) * names
    image = 1 + clip.config.vision.patches + len(method.visual.tokens)
    operations = _operations(clip.config.text, rows, max(text) + names / len(method.text.name_ids))
    operations += _operations(clip.vit.config, size * image, image)
    return 2 * operations / PEAK * 1000


def _operations(tower: TowerConfig, rows: int, seen: float) -> float:
    """Of a forward pass: `rows` rows that attend to `seen` others each."""
    weights = 4 * tower.width**2 + 2 * tower.width * tower.hidden
    return tower.layers * rows * (2 * weights + 4 * seen * tower.width)


def seconds_of(arguments: Sequence[str]) -> float:
    """Seconds of `python -m dca ARGUMENTS` in a process of its own; raises if it fails."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "dca", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"dca {' '.join(arguments)} failed: {done.stderr[-500:]}")
    return time.perf_counter() - began


def measure_startup(data: str, backbone: str, device: str) -> Iterator[Result]:
    """`dca --help`, and a fit of one epoch, whose time is all start-up."""
    yield Result("startup, dca --help", 1000 * seconds_of(["--help"]))
    yield _fit("startup, a fit of one epoch", data, backbone, device, ["--shots", "1", "--set", "epochs=1"])


def measure_fit(data: str, backbone: str, device: str, epochs: int | None, shots: int) -> Iterator[Result]:
    """`dca fit --method dca`, from the command to the printed accuracy."""
    more = ["--set", f"epochs={epochs}"] if epochs else []
    name = f"fit, DCA on {Path(data).name or data}, {shots} shots, {epochs or 'default'} epochs"
    yield _fit(name, data, backbone, device, ["--shots", str(shots), *more])


def _fit(name: str, data: str, backbone: str, device: str, more: Sequence[str]) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        what = ["fit", data, "--method", "dca", "--backbone", backbone, "--device", device, *more]
        written = ["-q", "--no-gallery", "--no-plots", "-o", f"{folder}/model"]
        return Result(name, 1000 * seconds_of([*what, *written]))


@torch.no_grad()
def measure_eval(data: str, clip: CLIP, most: int) -> Result:
    """Images from files to probabilities: decoded ahead of the tower in threads, and one after the other."""
    dataset = as_dataset(data, None, for_evaluation=True)
    images = [item.image for item in (dataset.test or dataset.val or dataset.train)[:most]]
    method = ZeroShot.for_problem(clip, Problem(names=dataset.names, shots=0))
    session = Session(device=str(clip.device))
    times = []
    for work in (lambda: predict_probabilities([method], images, session), lambda: _one_by_one(method, images)):
        work()
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1000)
    return Result(f"eval, {len(images)} images of {dataset.name}", times[0], times[1])


def _one_by_one(method: ZeroShot, images: Sequence[object]) -> None:
    """Open, encode and classify 32 images at a time, each after the other."""
    for start in range(0, len(images), 32):
        opened = [open_image(image) for image in images[start : start + 32]]  # type: ignore[arg-type]
        method.classify(method.encode(method.clip.preprocess(opened).to(method.clip.device))).cpu()
