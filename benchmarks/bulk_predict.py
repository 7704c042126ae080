"""`dca predict -o` on many images: its rate beside that of the bare encoder, its memory, and what a kill loses.

    python benchmarks/bulk_predict.py [--images 20000] [--width 256] [--height 256] [--kills 5] [--json]

The bare rate is that of the image tower alone on batches that are in memory, before and after the predictions. The
kill test ends the command at random times with SIGKILL, starts it again until it is done, and compares the rows with
those of an undisturbed run: every image once, with the same label.
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
from pathlib import Path

import click
import torch
from data_throughput import photo

from dca.clip import CLIP
from dca.data.sources.sample import load_sample
from dca.model.classifier import Classifier

DISTINCT, BATCH = 100, 32


def make_images(folder: Path, count: int, size: tuple[int, int]) -> int:
    """Write `count` JPEG files, of which 100 are different; returns the mean size in bytes."""
    first = []
    for n in range(min(count, DISTINCT)):
        path = folder / f"{n:06}.jpg"
        photo(n, size).save(path, quality=90)
        first.append(path)
    for n in range(len(first), count):
        os.link(first[n % len(first)], folder / f"{n:06}.jpg")
    return sum(path.stat().st_size for path in first) // len(first)


def bare_rate(backbone: str, count: int) -> float:
    """Images per second of the image tower on batches in memory."""
    clip = CLIP.from_pretrained(backbone).freeze()
    size = clip.preprocess.size
    pixels = clip.preprocess.normalize(torch.randint(0, 256, (BATCH, 3, size, size), dtype=torch.uint8))
    with torch.no_grad():
        clip.encode_image(pixels)
        began, batches = time.perf_counter(), max(count // BATCH, 4)
        for _ in range(batches):
            clip.encode_image(pixels)
    return batches * BATCH / (time.perf_counter() - began)


def command(model: Path, images: Path, output: Path) -> list[str]:
    """The command that is measured."""
    return [sys.executable, "-m", "dca", "predict", str(model), str(images), "-o", str(output), "--json"]


def whole_run(line: list[str]) -> dict[str, float]:
    """One undisturbed run: its rate while predicting, and the most memory that it took."""
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    facts = json.loads(process.stdout.read())
    _, _, usage = os.wait4(process.pid, 0)
    return {
        "images_per_second": facts["images"] / facts["seconds"],
        "peak_megabytes": usage.ru_maxrss / 1024,
        # With the start of the process, which takes a few seconds.
        "core_ms_per_image": 1000 * (usage.ru_utime + usage.ru_stime) / facts["images"],
    }


def killed_run(line: list[str], output: Path, kills: int, seconds: float) -> int:
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


def rows(path: Path) -> list[tuple[str, str]]:
    """Path and label of each row."""
    with path.open(newline="", encoding="utf-8") as file:
        return [(row["path"], row["label"]) for row in csv.DictReader(file)]


def measure(given: argparse.Namespace, folder: Path) -> dict[str, float | bool]:
    """All figures."""
    images, model = folder / "images", folder / "model.dca"
    images.mkdir()
    size = make_images(images, given.images, (given.width, given.height))
    Classifier(backbone=given.backbone).fit(load_sample(per_class_train=16)).save_pretrained(model)
    sample = min(given.images, 4096)
    before = bare_rate(given.backbone, sample)
    began = time.perf_counter()
    whole = whole_run(command(model, images, folder / "whole.csv"))
    seconds = time.perf_counter() - began
    bare = (before + bare_rate(given.backbone, sample)) / 2
    output = folder / "killed.csv"
    kills = killed_run(command(model, images, output), output, given.kills, seconds / (given.kills + 1))
    expected, found = rows(folder / "whole.csv"), rows(output)
    return {
        "images": given.images,
        "bytes_per_image": size,
        "bare_images_per_second": bare,
        **whole,
        "share_of_bare_rate": whole["images_per_second"] / bare,
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
