"""The figures of the model card: zero-shot, linear probes, validation, latency."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.clip.model import CLIP
from dca.core.errors import UserError
from dca.datasets.draws import draw_positions
from pretrain import pack

PHOTO = ("a photo of a {}.", "a picture of a {}.", "an image of a {}.")
SATELLITE = ("a centered satellite photo of {}.", "a satellite photo of {}.", "an aerial photo of {}.")
EUROSAT_NAMES = {
    "AnnualCrop": "annual crop land",
    "Forest": "forest",
    "HerbaceousVegetation": "herbaceous vegetation land",
    "Highway": "highway or road",
    "Industrial": "industrial buildings",
    "Pasture": "pasture land",
    "PermanentCrop": "permanent crop land",
    "Residential": "residential buildings",
    "River": "river",
    "SeaLake": "sea or lake",
}
DRAWS = (1, 2, 3)


@dataclass(frozen=True)
class Task:
    """A public dataset in CoOp's layout."""

    folder: str
    images: str
    split: str
    prompts: tuple[str, ...]


TASKS = {
    "caltech101": Task("caltech-101", "101_ObjectCategories", "split_zhou_Caltech101.json", PHOTO),
    "eurosat": Task("eurosat", "2750", "split_zhou_EuroSAT.json", SATELLITE),
    "flowers102": Task("oxford_flowers", "jpg", "split_zhou_OxfordFlowers.json", PHOTO),
}


@torch.inference_mode()
def image_features(clip: CLIP, images: Iterable[Image.Image], batch: int = 128) -> Tensor:
    """Unit features (N, D)."""
    parts, waiting = [], list[Image.Image]()
    for image in images:
        waiting.append(image)
        if len(waiting) == batch:
            parts.append(clip.encode_image(waiting))
            waiting = []
    if waiting:
        parts.append(clip.encode_image(waiting))
    return F.normalize(torch.cat(parts), dim=-1)


@torch.inference_mode()
def text_features(clip: CLIP, names: Sequence[str], prompts: Sequence[str]) -> Tensor:
    """Unit features (C, D): the mean over the prompts of unit vectors."""
    each = [F.normalize(clip.encode_text([p.format(n) for n in names]), dim=-1) for p in prompts]
    return F.normalize(torch.stack(each).mean(0), dim=-1)


def zero_shot(images: Tensor, labels: NDArray[np.int64], texts: Tensor) -> float:
    """Accuracy in % of the nearest text. images: (N, D). texts: (C, D)."""
    return 100 * float(((images @ texts.T).argmax(1).numpy() == labels).mean())


def probe(
    train: Tensor, train_labels: NDArray[np.int64], shots: int, test: Tensor, labels: NDArray[np.int64]
) -> list[float]:
    """Accuracies in % of logistic regressions on `shots` images per class, one per published draw."""
    from sklearn.linear_model import LogisticRegression

    found = []
    for seed in DRAWS:
        chosen = draw_positions(train_labels.tolist(), shots, random.Random(seed))
        model = LogisticRegression(C=10, max_iter=1000)
        model.fit(10 * train[chosen].numpy(), train_labels[chosen])
        found.append(100 * float(model.score(10 * test.numpy(), labels)))
    return found


def evaluate_task(clip: CLIP, task: Task, root: Path, shots: Sequence[int]) -> dict[str, Any]:
    """Zero-shot and linear-probe accuracy on one dataset."""
    folder = root / task.folder
    if not (folder / task.split).is_file():
        raise UserError(f"{folder / task.split}: no such file", hint="--data must hold the datasets in CoOp's layout")
    split = json.loads((folder / task.split).read_text(encoding="utf-8"))
    names = {label: name for part in ("train", "test") for _, label, name in split[part]}
    words = [EUROSAT_NAMES.get(names[y], names[y].replace("_", " ")) for y in sorted(names)]
    wanted = _drawn_only(split["train"], shots)
    train, train_labels = split["train"], np.array([row[1] for row in split["train"]])
    features = torch.zeros(len(train), clip.config.embed_dim)
    features[wanted] = image_features(clip, _open(folder / task.images, [train[i] for i in wanted]))
    test = image_features(clip, _open(folder / task.images, split["test"]))
    labels = np.array([row[1] for row in split["test"]])
    result: dict[str, Any] = {"zero_shot": zero_shot(test, labels, text_features(clip, words, task.prompts))}
    for count in shots:
        result[f"probe_{count}"] = statistics.mean(probe(features, train_labels, count, test, labels))
    return result


def _drawn_only(rows: Sequence[Sequence[Any]], shots: Sequence[int]) -> list[int]:
    """Positions of training images that any draw uses; the other images need not exist."""
    labels = [row[1] for row in rows]
    return sorted({i for count in shots for seed in DRAWS for i in draw_positions(labels, count, random.Random(seed))})


def _open(folder: Path, rows: Iterable[Sequence[Any]]) -> Iterable[Image.Image]:
    for path, _, _ in rows:
        with Image.open(folder / path) as image:
            yield image.convert("RGB")


def evaluate_validation(clip: CLIP, folder: Path, source: str, most: int | None = None) -> float:
    """Zero-shot accuracy in % on the 'val' split of a source of the pack."""
    records = [r for r in pack.read_index(folder, source) if r.split == "val"]
    records = records[:: max(1, len(records) // most)] if most else records
    names = sorted({r.names[0] for r in records})
    labels = np.array([names.index(r.names[0]) for r in records])
    images = image_features(clip, pack.read_images(folder, source, records))
    return zero_shot(images, labels, text_features(clip, names, PHOTO))


@torch.inference_mode()
def latency(clip: CLIP, threads: int = 2, repeats: int = 15) -> dict[str, float]:
    """Milliseconds per image at batch 32 and for the texts of 100 classes, medians on the CPU."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        size = clip.config.vision.image_size
        pixels = torch.randn(32, 3, size, size, generator=torch.Generator().manual_seed(0))
        texts = [f"a photo of a thing number {n}." for n in range(100)]
        return {
            "image_ms": _median(lambda: clip.encode_image(pixels), repeats) / 32,
            "text_100_ms": _median(lambda: clip.encode_text(texts), repeats),
        }
    finally:
        torch.set_num_threads(before)


def _median(call: Any, repeats: int) -> float:
    call()
    taken = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - begun))
    return statistics.median(taken)


def evaluate(
    source: str, data: Path | None, packed: Path | None, shots: Sequence[int] = (16,), most: int | None = None
) -> dict[str, Any]:
    """All figures for which the data is given."""
    clip = CLIP.from_pretrained(source)
    found: dict[str, Any] = {"model": source, "cpu": latency(clip)}
    if packed is not None:
        found["tiny_imagenet"] = {"zero_shot": evaluate_validation(clip, packed, "tiny_imagenet", most)}
    for name, task in TASKS.items() if data is not None else ():
        assert data is not None
        found[name] = evaluate_task(clip, task, data, shots)
    return found
