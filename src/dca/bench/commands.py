"""Whole commands: how long a user waits for the first line, a fit, an evaluation."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from dca.bench.timing import Result
from dca.clip import CLIP
from dca.data.decode import open_image
from dca.engine.evaluate import probabilities
from dca.engine.session import Session
from dca.methods.interface import Problem
from dca.methods.zero_shot import ZeroShot
from dca.model.inputs import as_dataset


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
        written = ["-q", "--no-gallery", "--no-pictures", "-o", f"{folder}/model"]
        return Result(name, 1000 * seconds_of([*what, *written]))


@torch.no_grad()
def measure_eval(data: str, clip: CLIP, most: int) -> Result:
    """Images from files to probabilities: decoded ahead of the tower in threads, and one after the other."""
    dataset = as_dataset(data, None, measuring=True)
    images = [item.image for item in (dataset.test or dataset.val or dataset.train)[:most]]
    method = ZeroShot.of(clip, Problem(names=dataset.names, shots=0))
    session = Session(device=str(clip.device))
    times = []
    for work in (lambda: probabilities([method], images, session), lambda: _one_by_one(method, images)):
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
