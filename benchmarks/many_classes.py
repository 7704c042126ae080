"""Very many classes on one GPU: class chunks equal the whole, and one step of all of them fits in memory.

    python benchmarks/many_classes.py [--classes 21841] [--compare 3000] [--json FILE]

Backbone of the shape of ViT-B/16 with random weights, 4 prompts, batch 32, bfloat16.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import click
import torch

from dca.backbones.clip import CLIP
from dca.methods.dca import DCA
from dca.study.bench import RANDOM, batch_of, load_backbone, method_of, relative_gap
from dca.training.loop import compute_gradients


def measure_chunk_gap(clip: CLIP, classes: int) -> float:
    """Largest relative difference of text gradients, at a quarter of the classes at once and all together."""
    method = method_of(clip, classes)
    found = []
    for at_once in (classes, classes // 4):
        method.zero_grad(set_to_none=True)
        contexts, ids = list(method.text.contexts), method.text.name_ids
        with clip._autocast(None):
            features = clip.text.encode_prompts(contexts, ids, chunk_size=at_once)
        (features.float() * torch.linspace(-1, 1, features.shape[-1], device=features.device)).sum().backward()
        found.append([context.grad.clone() for context in contexts])
    return relative_gap(found[1], found[0])


def measure_step(clip: CLIP, classes: int) -> tuple[float, float]:
    """Seconds and peak GiB of one training step."""
    method: DCA = method_of(clip, classes)
    batch = batch_of(clip, classes, 32)
    compute_gradients(method, batch)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    compute_gradients(method, batch)
    torch.cuda.synchronize()
    return time.perf_counter() - began, torch.cuda.max_memory_allocated() / 2**30


def main() -> None:
    """Compare, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=21841)
    parser.add_argument("--compare", type=int, default=3000)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        clip = load_backbone(RANDOM, torch.device("cuda"), dtype)
        found[f"gap_{str(dtype)[6:]}"] = measure_chunk_gap(clip, chosen.compare)
    seconds, memory = measure_step(clip, chosen.classes)
    found |= {"classes": chosen.classes, "step_s": round(seconds, 3), "peak_gib": round(memory, 2)}
    click.echo(json.dumps(found))
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
