"""SigLIP checkpoints: loading them in the layouts of transformers and of open_clip."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from dca.backbones.clip.weights import FILES
from dca.backbones.preprocess import OPEN_CLIP_CONFIG, Preprocess, read_image_processor
from dca.backbones.siglip.config import TIMM_NAME, SigLIPConfig
from dca.backbones.siglip.model import SigLIP
from dca.backbones.siglip.tokenizer import SigLIPTokenizer, load_siglip_tokenizer
from dca.backbones.sources import (
    explain_damaged_configuration,
    find_checkpoint,
    record_location,
    require_image_size,
)
from dca.backbones.state_dict import TensorSource, read_state_dict, rename_tensors
from dca.core.errors import UserError
from dca.core.files import read_json

SUMMARY = "config.json, model.safetensors, tokenizer.json, tokenizer_config.json, preprocessor_config.json"


def is_siglip(path: Path) -> bool:
    """Whether a folder, or that of a file, holds a SigLIP by its configuration; others report damaged ones."""
    folder = path if path.is_dir() else path.parent
    try:
        if (folder / "config.json").is_file():
            return str(read_json(folder / "config.json").get("model_type")).startswith("siglip")
        if (folder / OPEN_CLIP_CONFIG).is_file():
            raw = read_json(folder / OPEN_CLIP_CONFIG)
            return TIMM_NAME.match(str(raw["model_cfg"]["vision_cfg"].get("timm_model_name"))) is not None
    except (UserError, OSError, LookupError, TypeError, AttributeError):
        pass
    return False


def load_siglip(source: str | Path, *, revision: str | None = None, cache_dir: str | None = None) -> SigLIP:
    """Frozen SigLIP from a hub id or a folder; see `SigLIP.from_pretrained`."""
    checkpoint = find_checkpoint(source, FILES, revision=revision, cache_dir=cache_dir)
    path = checkpoint.path
    siglip = (_load(path, None) if path.is_dir() else _load(path.parent, path)).freeze()
    siglip.source = checkpoint.name
    digest = siglip.digest  # computed here, once for the life of the object
    if checkpoint.local:
        record_location(digest, path)
    return siglip


def _load(folder: Path, weights: Path | None) -> SigLIP:
    """Put configuration, tokenizer, preprocessing and checked weights together."""
    weights = weights or next((folder / name for name in FILES.weights if (folder / name).is_file()), None)
    if weights is None:
        raise UserError(f"backbone {folder} holds none of {', '.join(FILES.weights)}", hint=f"wanted: {SUMMARY}")
    state = read_state_dict(weights)
    with explain_damaged_configuration(folder):
        config, preprocess, tokenizer = _read_parts(folder, state)
    require_image_size(folder, preprocess.size, config.vision.image_size)
    if tokenizer.largest_id >= config.text.vocab_size:
        raise UserError(
            f"{folder}: the tokenizer gives ids up to {tokenizer.largest_id}, the text tower has "
            f"{config.text.vocab_size}",
            hint="take both from the same checkpoint",
        )
    with torch.device("meta"):
        siglip = SigLIP(config, tokenizer, preprocess)
    source_of = open_clip_source if _is_open_clip(state) else hf_source
    renamed = rename_tensors(_without_batch(state), siglip.state_dict(), source_of, ignored=NOT_WEIGHTS, path=weights)
    siglip.load_state_dict(renamed, assign=True)
    return siglip


def _read_parts(folder: Path, state: Mapping[str, Tensor]) -> tuple[SigLIPConfig, Preprocess, SigLIPTokenizer]:
    """Configuration, preprocessing and tokenizer, from the files beside the weights."""
    if _is_open_clip(state):
        raw, adapter = read_json(folder / OPEN_CLIP_CONFIG), f"open_clip:{folder}"
        model = raw.get("model_cfg") or {}
        config = SigLIPConfig.from_open_clip(model, state, adapter)
        given = raw.get("preprocess_cfg") or {}
        preprocess = Preprocess.from_open_clip(given, config.vision.image_size, adapter)
        clean = (model["text_cfg"].get("tokenizer_kwargs") or {}).get("clean", "whitespace")
        return config, preprocess, load_siglip_tokenizer(folder, config.text.context_length, clean)
    adapter = f"transformers:{folder}"
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: no config.json", hint=f"wanted: {SUMMARY}")
    config = SigLIPConfig.from_hf(read_json(folder / "config.json"), adapter)
    preprocess = Preprocess.from_hf(read_image_processor(folder), adapter)
    return config, preprocess, load_siglip_tokenizer(folder, config.text.context_length)


def _is_open_clip(state: Mapping[str, Tensor]) -> bool:
    """Whether these are the tensor names of open_clip, whose image towers are timm's."""
    return any(name.startswith("visual.trunk.") for name in state)


def _without_batch(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Timm keeps position embeddings with a batch dimension."""
    return {name: tensor[0] if name == "visual.trunk.pos_embed" else tensor for name, tensor in state.items()}


# Names of tensors: ours -> the checkpoint's.

SCALES = ("logit_scale", "logit_bias")
HF_NAMES = {
    "visual.patch_embed": "vision_model.embeddings.patch_embedding",
    "visual.positions": "vision_model.embeddings.position_embedding.weight",
    "visual.ln_post": "vision_model.post_layernorm",
    "visual.pool.query": "vision_model.head.probe",
    "visual.pool.attn.out": "vision_model.head.attention.out_proj",
    "visual.pool.norm": "vision_model.head.layernorm",
    "visual.pool.mlp.0": "vision_model.head.mlp.fc1",
    "visual.pool.mlp.2": "vision_model.head.mlp.fc2",
    "text.embedding": "text_model.embeddings.token_embedding",
    "text.positions": "text_model.embeddings.position_embedding.weight",
    "text.ln_final": "text_model.final_layer_norm",
    "text.projection": "text_model.head",
}
HF_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out": "self_attn.out_proj",
    "mlp.0": "mlp.fc1",
    "mlp.2": "mlp.fc2",
}
OPEN_CLIP_NAMES = {
    "visual.patch_embed": "visual.trunk.patch_embed.proj",
    "visual.positions": "visual.trunk.pos_embed",
    "visual.ln_post": "visual.trunk.norm",
    "visual.pool.query": "visual.trunk.attn_pool.latent",
    "visual.pool.attn.out": "visual.trunk.attn_pool.proj",
    "visual.pool.norm": "visual.trunk.attn_pool.norm",
    "visual.pool.mlp.0": "visual.trunk.attn_pool.mlp.fc1",
    "visual.pool.mlp.2": "visual.trunk.attn_pool.mlp.fc2",
    "text.embedding": "text.token_embedding",
    "text.positions": "text.positional_embedding",
    "text.ln_final": "text.ln_final",
    "text.projection": "text.text_projection",
}
OPEN_CLIP_BLOCK = {
    "visual": {
        "ln_1": "norm1",
        "ln_2": "norm2",
        "attn.qkv": "attn.qkv",
        "attn.out": "attn.proj",
        "mlp.0": "mlp.fc1",
        "mlp.2": "mlp.fc2",
    },
    "text": {
        "ln_1": "ln_1",
        "ln_2": "ln_2",
        "attn.out": "attn.out_proj",
        "mlp.0": "mlp.c_fc",
        "mlp.2": "mlp.c_proj",
    },
}
NOT_WEIGHTS = re.compile(r"(.*\.)?(position_ids|attn_mask)$")
BLOCK = re.compile(r"(visual|text)\.blocks\.(\d+)\.(.+)\.(weight|bias)$")


def hf_source(name: str) -> TensorSource:
    """The tensors in which `transformers` keeps our tensor `name`."""
    if name in SCALES or name in HF_NAMES:
        return TensorSource((HF_NAMES.get(name, name),))
    part, kind = name.rsplit(".", 1)
    if match := BLOCK.match(name):
        stem = f"{'vision' if match[1] == 'visual' else 'text'}_model.encoder.layers.{match[2]}"
        if match[3] == "attn.qkv":
            return TensorSource(tuple(f"{stem}.self_attn.{x}_proj.{kind}" for x in "qkv"))
        return TensorSource((f"{stem}.{HF_BLOCK[match[3]]}.{kind}",))
    if part == "visual.pool.attn.qkv":
        return TensorSource((f"vision_model.head.attention.in_proj_{kind}",))
    return TensorSource((f"{HF_NAMES[part]}.{kind}",))


def open_clip_source(name: str) -> TensorSource:
    """The tensors in which open_clip keeps our tensor `name`."""
    if name in SCALES or name in OPEN_CLIP_NAMES:
        return TensorSource((OPEN_CLIP_NAMES.get(name, name),))
    part, kind = name.rsplit(".", 1)
    if match := BLOCK.match(name):
        tower, layer, layer_part, _ = match.groups()
        if tower == "text" and layer_part == "attn.qkv":
            return TensorSource((f"text.transformer.resblocks.{layer}.attn.in_proj_{kind}",))
        stem = f"visual.trunk.blocks.{layer}" if tower == "visual" else f"text.transformer.resblocks.{layer}"
        return TensorSource((f"{stem}.{OPEN_CLIP_BLOCK[tower][layer_part]}.{kind}",))
    if part == "visual.pool.attn.qkv":
        return TensorSource(tuple(f"visual.trunk.attn_pool.{x}.{kind}" for x in ("q", "kv")))
    return TensorSource((f"{OPEN_CLIP_NAMES[part]}.{kind}",))
