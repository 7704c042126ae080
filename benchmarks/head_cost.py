"""Cost of a 1,000-class DCA head: one image to probabilities, against zero-shot CLIP with the same classes.

    python benchmarks/head_cost.py [--classes 1000] [--shots 16] [--repeats 30] [--json]

Two backbones: `mini`, and one of the shape of ViT-B/16 with random weights. Text and shot features are random
unit vectors, as loaded from a saved model. A prediction begins with a PIL image and ends with
probabilities. The two methods are measured alternately, and the shortest time of each counts, so that the load
of the machine has little effect.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import click
import torch
from PIL import Image
from torch import Tensor

from dca.backbones.clip import CLIP
from dca.methods.base import Method, Problem
from dca.methods.dca import DCA
from dca.methods.zero_shot import ZeroShot
from dca.study.bench import random_vit_b_16, units

# The most that a prediction with DCA may cost on ViT-B/16, in predictions with zero-shot CLIP.
TARGET = 1.2


def build_methods(clip: CLIP, classes: int, shots: int) -> tuple[ZeroShot, DCA, float]:
    """Zero-shot CLIP and DCA as read from files, and the seconds it took to make the head of DCA."""
    problem = Problem(names=tuple(f"class {c}" for c in range(classes)), shots=shots)
    D, plain = clip.config.embed_dim, ZeroShot.build(clip, problem, ZeroShot.Options())
    plain.restore({"text_features": units(classes, D)})
    method = DCA.build(clip, problem, DCA.Options())
    state = {name: parameter.detach().clone() for name, parameter in method.named_parameters()}
    state["text_features"] = units(method.options.n_prompts, classes, D)
    state["train_features"] = units(classes * shots, D)
    state["train_counts"] = torch.full((classes,), shots)
    began = time.perf_counter()
    method.restore(state)
    return plain, method, time.perf_counter() - began


def predict(method: Method, image: Image.Image) -> Tensor:
    """Probabilities (1, C) of one image."""
    pixels = method.clip.preprocess([image])
    return method.classify(method.encode(pixels))


def measure_milliseconds(calls: list[Callable[[], object]], repeats: int) -> list[float]:
    """Shortest time of each call; the calls alternate."""
    times: list[list[float]] = [[] for _ in calls]
    for round_ in range(repeats + 2):
        for call, found in zip(calls, times, strict=True):
            began = time.perf_counter()
            call()
            if round_ >= 2:
                found.append(1000 * (time.perf_counter() - began))
    return [min(found) for found in times]


@torch.inference_mode()
def measure(clip: CLIP, classes: int, shots: int, repeats: int) -> dict[str, float]:
    """Milliseconds per prediction, of the heads alone, and their ratio."""
    with torch.inference_mode(False):
        plain, method, seconds = build_methods(clip, classes, shots)
    image = Image.effect_noise((500, 375), 80).convert("RGB")
    f = units(1, clip.config.embed_dim)
    calls: list[Callable[[], object]] = [
        lambda: predict(plain, image),
        lambda: predict(method, image),
        lambda: plain.classify(f),
        lambda: method.classify(f),
    ]
    zero_shot, dca, plain_head, head = measure_milliseconds(calls, repeats)
    return {
        "zero_shot_ms": zero_shot,
        "dca_ms": dca,
        "ratio": dca / zero_shot,
        "zero_shot_head_ms": plain_head,
        "dca_head_ms": head,
        "seal_s": seconds,
    }


def main() -> None:
    """Measure both backbones and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    chosen = parser.parse_args()
    backbones = {"ViT-B/16 shape": random_vit_b_16(), "mini": CLIP.from_pretrained("mini")}
    found = {name: measure(clip, chosen.classes, chosen.shots, chosen.repeats) for name, clip in backbones.items()}
    if chosen.json:
        click.echo(json.dumps(found))
        return
    click.echo(f"{chosen.classes} classes, {chosen.shots} shots, M = 4, {torch.get_num_threads()} threads")
    for name, row in found.items():
        click.echo(
            f"{name:15} zero-shot {row['zero_shot_ms']:7.2f} ms   DCA {row['dca_ms']:7.2f} ms   "
            f"ratio {row['ratio']:.2f}   heads {row['zero_shot_head_ms']:.2f} and {row['dca_head_ms']:.2f} ms   "
            f"head made in {row['seal_s']:.2f} s"
        )
    click.echo(f"target for ViT-B/16: at most {TARGET}")


if __name__ == "__main__":
    main()
