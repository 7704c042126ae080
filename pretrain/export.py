"""A trained model as a folder in Hugging Face layout."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from dca.backbones.clip.weights import to_hf_state
from pretrain import bpe
from pretrain.state import State


def export(state: State, folder: Path) -> None:
    """Write the averaged weights in float16 with everything `CLIP.from_pretrained` needs."""
    folder.mkdir(parents=True, exist_ok=True)
    half = {n: t.detach().to(torch.float16).contiguous().cpu() for n, t in to_hf_state(state.average).items()}
    part = folder / "model.safetensors.part"
    save_file(half, part, metadata={"format": "pt"})
    part.replace(folder / "model.safetensors")
    written = {
        "config.json": state.clip.config.to_hf() | {"dtype": "float16"},
        "preprocessor_config.json": state.clip.preprocess.to_hf(),
    }
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    bpe.save(state.clip.tokenizer.bpe, folder, state.clip.config.text.context_length)
