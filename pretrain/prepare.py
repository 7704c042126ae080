"""From a pack to tensors: images decoded once, texts tokenised once, one file per source."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from dca.backbones.clip.tokenizer import Tokenizer, load_tokenizer
from pretrain import colours, pack, teacher
from pretrain.captions import find_meanings, noun_meaning
from pretrain.config import PretrainConfig
from pretrain.drawn import drawn_source
from pretrain.lexicon import Lexicon, read_lexicon
from pretrain.pack import Record
from pretrain.texts import Tables, TextTable

log = logging.getLogger(__name__)

DRAWN, LEXICON = "drawn", "lexicon"
CHUNK, THREADS = 256, 16
# Colours are named where one thing fills the image, not in scenes.
COLOURED = ("photo", "product")


def tokenizer_of(config: PretrainConfig) -> Tokenizer:
    """The tokenizer of the run."""
    folder = Path(config.data.tokenizer) if config.data.tokenizer else Path(str(files("dca.backbones.clip") / "mini"))
    return load_tokenizer(folder, config.model.context)


def all_sources(config: PretrainConfig) -> list[str]:
    """Sources of the pack, then the drawn one and the lexicon where they are wanted."""
    extra = [(DRAWN, config.data.drawn), (LEXICON, config.data.lexicon)]
    return pack.sources(Path(config.data.pack)) + [name for name, wanted in extra if wanted]


def prepare(config: PretrainConfig, names: Iterable[str] = (), device: str = "cpu") -> None:
    """Write SOURCE.safetensors for the named sources (default: all) that have none yet."""
    out = Path(config.data.prepared)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer, lexicon = tokenizer_of(config), read_lexicon(config.data.lexicon)
    for name in names or all_sources(config):
        path = out / f"{name}.safetensors"
        if path.exists():
            continue
        tables = _prepare(name, config, tokenizer, lexicon, torch.device(device))
        save_file(tables, path.with_name(path.name + ".part"))
        path.with_name(path.name + ".part").replace(path)
        log.info("%s: %s images, %s texts", name, len(tables.get("images", ())), len(tables["tokens"]))


def _prepare(name: str, config: PretrainConfig, tokenizer: Tokenizer, lexicon: Lexicon, device: torch.device) -> Tables:
    """All tensors of one source."""
    table, known = TextTable(), dict[str, Tensor]()
    if name == LEXICON:
        groups = [table.add([noun_meaning(noun, lexicon)]) for noun in lexicon.visible()]
        known["groups"] = torch.tensor(groups, dtype=torch.int32)
    else:
        kind = config.kinds.get(name, "photo")
        records, images, aspects = _images(name, config)
        groups = []
        for record, pixels in zip(records, images, strict=True):
            colour = colours.dominant_colour(pixels) if kind in COLOURED and not record.auto else ""
            groups.append(table.add(find_meanings(record, kind, lexicon, colour)))
        known = {
            "images": torch.from_numpy(images),
            "aspects": torch.from_numpy(aspects),
            "groups": torch.tensor(groups, dtype=torch.int32),
            "validation": torch.tensor([name == config.data.validation and r.split == "val" for r in records]),
        }
    tables = known | table.tables(tokenizer, config.model.context)
    if config.data.teacher:
        tables["meaning_vectors"] = teacher.embed(Path(config.data.teacher), table.plain(), device)
    return tables


def _images(name: str, config: PretrainConfig) -> tuple[list[Record], NDArray[np.uint8], NDArray[np.float32]]:
    """Records with a text, their images (N, 3, S, S) and aspect ratios (N,)."""
    side = config.data.side
    if name == DRAWN:
        drawings, records = drawn_source(config.data.drawn, config.train.seed)
        images = np.stack([square(image, side) for image in drawings])
        return records, images, np.ones(len(records), np.float32)
    folder = Path(config.data.pack)
    everything = pack.read_index(folder, name, pack.read_leave_out(config.data.leave_out))
    records = [r for r in everything if r.names or r.captions or r.auto]
    chunks = [records[i : i + CHUNK] for i in range(0, len(records), CHUNK)]

    def decode(chunk: list[Record]) -> tuple[NDArray[np.uint8], list[float]]:
        decoded = list(pack.read_images(folder, name, chunk))
        return np.stack([square(image, side) for image in decoded]), [image.width / image.height for image in decoded]

    images = np.empty((len(records), 3, side, side), np.uint8)
    aspects = np.empty(len(records), np.float32)
    with ThreadPoolExecutor(THREADS) as pool:  # decoding and resizing release the interpreter's lock
        for n, (pixels, ratios) in enumerate(pool.map(decode, chunks)):
            images[n * CHUNK : n * CHUNK + len(pixels)] = pixels
            aspects[n * CHUNK : n * CHUNK + len(pixels)] = ratios
    return records, images, aspects


def square(image: Image.Image, side: int) -> NDArray[np.uint8]:
    """The whole image resized to (3, side, side); crops restore its aspect ratio."""
    squeezed = image.resize((side, side), Image.Resampling.BICUBIC)
    return np.ascontiguousarray(np.asarray(squeezed).transpose(2, 0, 1))
