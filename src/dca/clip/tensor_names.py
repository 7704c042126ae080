"""Tensor names of this package and of published checkpoints.

One table maps each of our tensors to the checkpoint tensors it is made of. Missing tensors, unexpected
tensors and the way to write a checkpoint all follow from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

HF_TOP = {
    "logit_scale": "logit_scale",
    "visual.cls": "vision_model.embeddings.class_embedding",
    "visual.patch_embed.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.positions": "vision_model.embeddings.position_embedding.weight",
    "visual.projection.weight": "visual_projection.weight",
    "text.embedding.weight": "text_model.embeddings.token_embedding.weight",
    "text.positions": "text_model.embeddings.position_embedding.weight",
    "text.projection.weight": "text_projection.weight",
}
HF_NORM = {
    "visual.ln_pre": "vision_model.pre_layrnorm",
    "visual.ln_post": "vision_model.post_layernorm",
    "text.ln_final": "text_model.final_layer_norm",
}
HF_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out": "self_attn.out_proj",
    "mlp.0": "mlp.fc1",
    "mlp.2": "mlp.fc2",
}
OPENAI_TOP = {
    "logit_scale": "logit_scale",
    "visual.cls": "visual.class_embedding",
    "visual.patch_embed.weight": "visual.conv1.weight",
    "visual.positions": "visual.positional_embedding",
    "visual.projection.weight": "visual.proj",
    "text.embedding.weight": "token_embedding.weight",
    "text.positions": "positional_embedding",
    "text.projection.weight": "text_projection",
}
OPENAI_NORM = {"visual.ln_pre": "visual.ln_pre", "visual.ln_post": "visual.ln_post", "text.ln_final": "ln_final"}
OPENAI_BLOCK = {
    "ln_1": "ln_1",
    "ln_2": "ln_2",
    "attn.out": "attn.out_proj",
    "mlp.0": "mlp.c_fc",
    "mlp.2": "mlp.c_proj",
}
# Constants that some files contain besides the weights.
NOT_WEIGHTS = re.compile(r"(.*\.)?(position_ids|attn_mask|input_resolution|context_length|vocab_size)$")
BLOCK = re.compile(r"(visual|text)\.blocks\.(\d+)\.(.+)\.(weight|bias)$")


@dataclass(frozen=True)
class Origin:
    """Checkpoint tensors, stacked along the first axis; `transposed` if they are stored as (in, out)."""

    names: tuple[str, ...]
    transposed: bool = False

    def read(self, state: Mapping[str, Tensor]) -> Tensor:
        """Our tensor, made of the checkpoint's."""
        parts = [state[n].T if self.transposed else state[n] for n in self.names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def write(self, tensor: Tensor) -> dict[str, Tensor]:
        """The checkpoint's tensors, made of ours."""
        parts = tensor.chunk(len(self.names)) if len(self.names) > 1 else (tensor,)
        return {n: (p.T if self.transposed else p).contiguous() for n, p in zip(self.names, parts, strict=True)}


def hf_origin(name: str) -> Origin:
    """Where `transformers` keeps our tensor `name`."""
    if name in HF_TOP:
        return Origin((HF_TOP[name],))
    if match := BLOCK.match(name):
        tower, layer, part, kind = match.groups()
        stem = f"{'vision' if tower == 'visual' else 'text'}_model.encoder.layers.{layer}"
        if part == "attn.qkv":
            return Origin(tuple(f"{stem}.self_attn.{x}_proj.{kind}" for x in "qkv"))
        return Origin((f"{stem}.{HF_BLOCK[part]}.{kind}",))
    part, kind = name.rsplit(".", 1)
    return Origin((f"{HF_NORM[part]}.{kind}",))


def openai_origin(name: str) -> Origin:
    """Where OpenAI's and open_clip's state dicts keep our tensor `name`."""
    if name in OPENAI_TOP:
        return Origin((OPENAI_TOP[name],), transposed=name.endswith("projection.weight"))
    if match := BLOCK.match(name):
        tower, layer, part, kind = match.groups()
        stem = f"{'visual.' if tower == 'visual' else ''}transformer.resblocks.{layer}"
        if part == "attn.qkv":
            return Origin((f"{stem}.attn.in_proj_{kind}",))
        return Origin((f"{stem}.{OPENAI_BLOCK[part]}.{kind}",))
    part, kind = name.rsplit(".", 1)
    return Origin((f"{OPENAI_NORM[part]}.{kind}",))


def is_hf(names: Iterable[str]) -> bool:
    """Whether these are the tensor names of `transformers`."""
    return any(n.startswith("vision_model.") for n in names)


def to_hf(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict under the names of `transformers`."""
    return {k: v for name, tensor in state.items() for k, v in hf_origin(name).write(tensor).items()}
