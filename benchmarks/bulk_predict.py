"""`dca predict -o` on many images: its rate beside that of the bare encoder, its memory, and what a kill loses.

    python benchmarks/bulk_predict.py [--images 20000] [--width 256] [--height 256] [--rounds 5] [--kills 5] [--json]

The bare rate is that of the image tower alone on normalised pixels that are in memory: no file is opened and nothing is
decoded, classified or written. It is the faster of two arrangements: all cores share every batch (of 32), or every
core has batches of its own (of the size that predictions use), both with the memory settings of the command.

Predictions (files in, CSV file out, in this process) and both arrangements take turns, round after round, so that other
programs slow them alike; `share_of_bare_rate` is the median over the rounds. Where other programs take many of the
cores that says little; `share_by_core_time` compares the time of cores per image instead of the rates, with the
arrangement that takes less. The whole command is measured besides: its rate and its memory. The kill test ends the
command at random times with SIGKILL, starts it again until it is done, and compares the rows with those of an
undisturbed run: every image once, with the same label.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import click
import numpy as np
import torch
from data_throughput import draw_photo

from dca.backbones.dual_encoder import DualEncoder
from dca.core.device import keep_freed_memory
from dca.datasets.sample import load_sample
from dca.model.classifier import Classifier
from dca.model.predict import predict_to_file

DISTINCT, SHARED_BATCH = 100, 32


def make_images(folder: Path, count: int, size: tuple[int, int]) -> int:
    """Write `count` JPEG files, of which 100 are different; returns the mean size in bytes."""
    first = []
    for n in range(min(count, DISTINCT)):
        path = folder / f"{n:06}.jpg"
        draw_photo(n, size).save(path, quality=90)
        first.append(path)
    for n in range(len(first), count):
        os.link(first[n % len(first)], folder / f"{n:06}.jpg")
    return sum(path.stat().st_size for path in first) // len(first)


def encode_bare(clip: DualEncoder, count: int, *, shared: bool) -> None:
    """Pixels in memory through the image tower; shared: all cores compute every batch together."""
    size, batch = clip.preprocess.size, SHARED_BATCH if shared else clip.batch_size_on_cpu
    pixels = clip.preprocess.normalize(torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8))
    threads = torch.get_num_threads()

    def encode(_: int) -> None:
        with torch.no_grad():
            clip.encode_image(pixels)

    if shared:
        for n in range(count // batch):
            encode(n)
    else:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(encode, range(count // batch)))
        torch.set_num_threads(threads)


def time_action(action: Callable[[], object], images: int) -> tuple[float, float]:
    """Images per second, and milliseconds of cores per image."""
    began, cores = time.perf_counter(), time.process_time()
    action()
    return images / (time.perf_counter() - began), 1000 * (time.process_time() - cores) / images


def measure_rounds(model: Classifier, images: list[str], folder: Path, count: int) -> dict[str, float]:
    """Predictions and the bare tower in turns: medians over the rounds, and the smallest and largest share."""
    clip, found, output = model.method_.clip, [], folder / "round.csv"
    keep_freed_memory()
    for n in range(-1, count):  # the first round warms up
        some = images[: SHARED_BATCH * (2 if n < 0 else len(images) // SHARED_BATCH)]
        actions = (
            partial(predict_to_file, model, some, output, overwrite=True),
            partial(encode_bare, clip, len(some), shared=True),
            partial(encode_bare, clip, len(some), shared=False),
        )
        found.append([time_action(action, len(some)) for action in actions])
    rates, cores = np.moveaxis(np.array(found[1:]), 2, 0)  # (rounds, 3) each
    shares = rates[:, 0] / rates[:, 1:].max(1)
    return {
        "images_per_second": float(np.median(rates[:, 0])),
        "bare_with_shared_batches": float(np.median(rates[:, 1])),
        "bare_with_a_batch_per_core": float(np.median(rates[:, 2])),
        "share_of_bare_rate": float(np.median(shares)),
        "smallest_share": float(shares.min()),
        "largest_share": float(shares.max()),
        "core_ms_per_image": float(np.median(cores[:, 0])),
        "bare_core_ms_per_image": float(np.median(cores[:, 1:].min(1))),
        "share_by_core_time": float(np.median(cores[:, 1:].min(1) / cores[:, 0])),
    }


def predict_command(model: Path, images: Path, output: Path) -> list[str]:
    """The command that is measured."""
    return [sys.executable, "-m", "dca", "predict", str(model), str(images), "-o", str(output), "--json"]


def measure_whole_run(line: list[str]) -> dict[str, float]:
    """One undisturbed run of the command: its rate while predicting, and the most memory that it took."""
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    facts = json.loads(process.stdout.read())
    _, _, usage = os.wait4(process.pid, 0)
    return {
        "command_images_per_second": facts["images"] / facts["seconds"],
        "peak_megabytes": usage.ru_maxrss / 1024,
        # With the start of the process, which takes a few seconds.
        "command_core_ms_per_image": 1000 * (usage.ru_utime + usage.ru_stime) / facts["images"],
    }


def measure_killed_run(line: list[str], output: Path, kills: int, seconds: float) -> int:
    """Kill the command at random times, then let it end; returns how often it was killed before its end."""
    done = 0
    for _ in range(kills):
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(random.uniform(0.3, 1.0) * seconds)
        done += process.poll() is None
        os.kill(process.pid, signal.SIGKILL) if process.poll() is None else None
        process.wait()
        if output.exists():
            return done
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return done


def read_rows(path: Path) -> list[tuple[str, str]]:
    """Path and label of each row."""
    with path.open(newline="", encoding="utf-8") as file:
        return [(row["path"], row["label"]) for row in csv.DictReader(file)]


def measure(given: argparse.Namespace, folder: Path) -> dict[str, float | bool]:
    """All figures."""
    images, model = folder / "images", folder / "model.dca"
    images.mkdir()
    size = make_images(images, given.images, (given.width, given.height))
    fitted = Classifier(backbone=given.backbone).fit(load_sample(per_class_train=16))
    fitted.save_pretrained(model)
    began = time.perf_counter()
    whole = measure_whole_run(predict_command(model, images, folder / "whole.csv"))
    seconds = time.perf_counter() - began
    some = sorted(map(str, images.iterdir()))[: given.per_round]
    shares = measure_rounds(fitted, some, folder, given.rounds)
    output = folder / "killed.csv"
    kills = measure_killed_run(predict_command(model, images, output), output, given.kills, seconds / (given.kills + 1))
    expected, found = read_rows(folder / "whole.csv"), read_rows(output)
    return {
        "images": given.images,
        "bytes_per_image": size,
        **shares,
        **whole,
        "killed": kills,
        "every_image_once_after_kills": sorted(path for path, _ in found) == [path for path, _ in expected],
        "same_labels_after_kills": sorted(found) == expected,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000, help="files to predict")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--height", type=int, default=256)
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--rounds", type=int, default=5, help="turns of predictions and the bare tower")
    parser.add_argument("--per-round", type=int, default=2_048, help="images per turn")
    parser.add_argument("--kills", type=int, default=5, help="how often the command is killed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(given, Path(folder))
    if given.json:
        click.echo(json.dumps(result, indent=1))
        return
    for name, value in result.items():
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        click.echo(f"{name.replace('_', ' '):<30} {text:>12}")


if __name__ == "__main__":
    main()
