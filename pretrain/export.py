"""A trained model as a folder in Hugging Face layout."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from dca.backbones.clip import config as configs
from dca.backbones.clip import preprocess
from dca.backbones.clip import weights as names
from pretrain import bpe
from pretrain.state import State


def export(state: State, folder: Path) -> None:
    """Write the averaged weights in float16 with everything `CLIP.from_pretrained` needs."""
    folder.mkdir(parents=True, exist_ok=True)
    half = {n: t.detach().to(torch.float16).contiguous().cpu() for n, t in names.to_hf(state.average).items()}
    part = folder / "model.safetensors.part"
    save_file(half, part, metadata={"format": "pt"})
    part.replace(folder / "model.safetensors")
    written = {
        "config.json": configs.to_hf(state.clip.config) | {"dtype": "float16"},
        "preprocessor_config.json": preprocess.to_hf(state.clip.preprocess),
    }
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    bpe.save(state.clip.tokenizer.engine, folder, state.clip.config.text.context_length)
