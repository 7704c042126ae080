"""Milliseconds per image of an image tower, beside other implementations of the same tower in the same run.

    python benchmarks/encoder_speed.py [mini | efficientnet-lite0 | efficientnet-lite1 | efficientnet-lite2 | vit-b-16]
        [--threads 1 2] [--batch 1 4 8 16] [--rounds 15] [--json]

EfficientNet-Lite is compared with `efficientnet_lite_pytorch`, whose batch norms are folded by torch's own function;
the shape of ViT-B/16 with random weights, in float32 and in bfloat16, with `transformers` and `open_clip` in float32,
where these can be imported; `mini` is measured alone. All take pixels in memory. They run in turn, so that other work
on the machine meets all of them, and the median of the rounds counts: of the time that passes, and of the processor's
time per thread, which other work on the machine prolongs less. `--json` also prints the largest difference of the
results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from dca.backbones.clip import CLIP, VIT_B_16
from dca.backbones.clip.weights import to_hf_state
from dca.backbones.efficientnet_lite import VARIANTS, EfficientNetLite, find_weights, get_variant
from dca.backbones.sources import MINI
from dca.backbones.state_dict import read_state_dict
from dca.study.bench import random_vit_b_16

VIT = "vit-b-16"
Encode = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Row:
    """One tower with one batch size and number of threads.

    ms, cpu_ms: medians over the rounds, per image; the latter per thread. difference: largest, from the first tower, in
    units of the largest feature.
    """

    tower: str
    threads: int
    batch: int
    ms: float
    cpu_ms: float
    difference: float


def efficientnets(name: str) -> dict[str, Encode]:
    """Ours and the reference with folded batch norms, both layouts of which are common."""
    from efficientnet_lite_pytorch import EfficientNet

    path = find_weights(get_variant(name))
    assert path is not None
    ours = EfficientNetLite.from_pretrained(name)
    reference = EfficientNet.from_name(name)
    reference.load_state_dict(read_state_dict(path))
    fold_reference(reference.eval())
    channels_last = EfficientNet.from_name(name)
    channels_last.load_state_dict(read_state_dict(path))
    fold_reference(channels_last.eval()).to(memory_format=torch.channels_last)
    return {
        "ours": ours.encode_image,
        "reference": lambda x: mean(reference.extract_features(x)),
        "reference, channels last": lambda x: mean(
            channels_last.extract_features(x.to(memory_format=torch.channels_last))
        ),
    }


def mean(maps: Tensor) -> Tensor:
    """Over positions."""
    return maps.mean(dim=(2, 3))


def fold_reference(model: Any) -> Any:
    """Make each batch norm of the reference part of the convolution before it."""

    def fold(part: Any, convolution: str, norm: str) -> None:
        if hasattr(part, convolution):
            setattr(part, convolution, fuse_conv_bn_eval(getattr(part, convolution), getattr(part, norm)))
            setattr(part, norm, nn.Identity())

    fold(model, "_conv_stem", "_bn0")
    fold(model, "_conv_head", "_bn1")
    for block in model._blocks:
        for convolution, norm in (("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")):
            fold(block, convolution, norm)
    return model


def vits() -> dict[str, Encode]:
    """Image towers of the shape of ViT-B/16, of which the first and the third have the same weights."""
    ours = random_vit_b_16()
    half = ours.with_dtype(torch.bfloat16)
    found: dict[str, Encode] = {"ours, float32": ours.encode_image, "ours, bfloat16": half.encode_image}
    with suppress(ImportError):
        transformers = import_module("transformers")
        config = transformers.CLIPVisionConfig(**VIT_B_16.to_hf()["vision_config"])
        tower = transformers.CLIPVisionModelWithProjection(config).eval().requires_grad_(False)
        state = to_hf_state(ours.state_dict())
        tower.load_state_dict({key: tensor for key, tensor in state.items() if key in tower.state_dict()}, strict=False)
        found["transformers, float32"] = lambda x: tower(pixel_values=x).image_embeds
    with suppress(ImportError):
        open_clip = import_module("open_clip")
        model = open_clip.create_model("ViT-B-16-quickgelu").eval().requires_grad_(False)
        found["open_clip, float32"] = model.encode_image
    return found


@torch.no_grad()
def measure(towers: dict[str, Encode], size: int, threads: int, batch: int, rounds: int) -> Iterator[Row]:
    """One row per tower."""
    torch.set_num_threads(threads)
    pixels = torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))
    results = {name: encode(pixels) for name, encode in towers.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in towers}
    for _ in range(rounds):
        for name, encode in towers.items():
            began = time.perf_counter(), time.process_time()
            encode(pixels)
            times[name].append((time.perf_counter() - began[0], time.process_time() - began[1]))
    first = next(iter(results.values()))
    for name, result in results.items():
        difference = float((result - first).abs().max() / first.abs().max())
        wall, cpu = (1000 * statistics.median(column) / batch for column in zip(*times[name], strict=True))
        yield Row(name, threads, batch, wall, cpu / threads, difference)


def main() -> None:
    """Measure and print a row per tower, batch size and number of threads."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tower", nargs="?", default="efficientnet-lite0", choices=[MINI, *VARIANTS, VIT])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    given = parser.parse_args()
    if given.tower == MINI:
        clip = CLIP.from_pretrained(MINI)
        towers: dict[str, Encode] = {"ours": clip.encode_image}
        size = clip.preprocess.size
    elif given.tower == VIT:
        towers, size = vits(), VIT_B_16.vision.image_size
    else:
        towers, size = efficientnets(given.tower), get_variant(given.tower).size
    rows = list[Row]()
    for threads in given.threads:
        for batch in given.batch:
            for row in measure(towers, size, threads, batch, given.rounds):
                rows.append(row)
                if not given.json:
                    where = f"{row.threads} threads, batch {row.batch:>2}"
                    click.echo(f"{row.tower:<26} {where}   {row.ms:7.2f} ms per image, {row.cpu_ms:7.2f} of a core")
    if given.json:
        click.echo(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
