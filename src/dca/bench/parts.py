"""The text side of a step, and the head of a finished model."""

from __future__ import annotations

import torch
from torch import Tensor

from dca.bench import reference
from dca.bench.setting import method_of, units
from dca.bench.timing import Cost, Result, measure, relative_gap
from dca.clip import CLIP
from dca.methods.shared import gaussian
from dca.methods.shared.mahalanobis_head import MahalanobisHead
from dca.methods.shared.shots import Shots

PROMPTS, WIDTH = 4, 512


def measure_text(clip: CLIP, classes: int) -> Result:
    """Text features and their gradient: shared prefixes without padding, and 77 tokens per class and prompt."""
    method = method_of(clip, classes)
    found: list[list[Tensor]] = []

    def run(usual: bool) -> Cost:
        def work() -> None:
            method.zero_grad(set_to_none=True)
            u = (reference.usual(method) if usual else method).encode_text()
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
    gamma1, gamma2 = gaussian.gammas(shots)
    family = gaussian.dca(gamma1, gamma2, shots)
    head = MahalanobisHead.of(u, Shots.group(x, labels.repeat_interleave(shots), classes), family, tau=100.0)
    f = units(images, WIDTH, device=device, seed=2)
    ours = measure(lambda: head.distances(f), device, repeats=5, warm_up=1)
    inverses = torch.stack([reference.dense_inverses(x.view(classes, shots, -1), one, gamma1, gamma2) for one in u])
    usual = measure(lambda: reference.dense_distances(f, u, inverses), device, repeats=2, warm_up=1)
    gap = relative_gap([head.distances(f)], [reference.dense_distances(f, u, inverses)])
    held = sum(tensor.nbytes for tensor in (head.weight, head.square, head.constant))
    name = f"head, {classes} classes, {shots} shots, {PROMPTS} prompts, {images} images"
    return Result(name, ours.ms, usual.ms, held, inverses.nbytes + u.nbytes, gap=gap)
