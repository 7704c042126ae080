"""Sizes and activation of a SigLIP, read from the configuration files of checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from dca.backbones.blocks import TowerConfig, check_sizes
from dca.backbones.clip.config import VisionConfig, open_clip_eps
from dca.backbones.config_keys import (
    HF_TOP,
    HF_TOWER,
    HF_VISION,
    OPEN_CLIP_TEXT,
    OPEN_CLIP_TOP,
    OPEN_CLIP_VISION,
    Section,
    any_value,
    only,
    refuse_unknown_keys,
)
from dca.backbones.preprocess import OPEN_CLIP_CONFIG
from dca.core.errors import UserError
from dca.core.hints import choose_backbone, combine

HF_READ = (
    "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
    "layer_norm_eps",
)  # fmt: skip
HF_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "quick_gelu": "quick_gelu"}
OPEN_CLIP_READ_TEXT = (
    "context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio", "norm_kwargs", "act_kwargs",
    "no_causal_mask", "proj_bias", "pool_type", "tokenizer_kwargs",
)  # fmt: skip
# The image towers of open_clip's SigLIPs: name in timm -> heads; None for heads of 64 values.
TIMM_NAME = re.compile(r"vit_(base|large|so400m|giantopt)_patch(\d+)_siglip_(\d+)$")
TIMM_HEADS = {"base": None, "large": None, "so400m": 16, "giantopt": 16}
TIMM_EPS = 1e-6
# timm approximates GELU by tanh in these, and computes it exactly in the others; transformers approximates it in all.
TIMM_TANH = re.compile(r"vit_(base_patch32|large_patch16_siglip_512|so400m_patch16|giantopt)")


@dataclass(frozen=True, kw_only=True)
class SigLIPTextConfig(TowerConfig):
    """The text tower, which reads sequences of one length; features are read at the last position."""

    vocab_size: int
    context_length: int


@dataclass(frozen=True, kw_only=True)
class SigLIPConfig:
    """Two towers and the joint embedding size D, which is the width of the image tower."""

    vision: VisionConfig
    text: SigLIPTextConfig
    embed_dim: int

    def __post_init__(self) -> None:
        check_sizes(self)
        if self.vision.patch_size > self.vision.image_size:
            raise UserError(f"patches of {self.vision.patch_size} px in images of {self.vision.image_size} px")
        if self.embed_dim != self.vision.width:
            raise UserError(
                f"texts have {self.embed_dim} values, images the {self.vision.width} of their tower; both are to agree"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionary, for records."""
        return asdict(self)

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], adapter: str = "transformers:NAME") -> SigLIPConfig:
        """Read the `config.json` of a Hugging Face SigLIP; `adapter` is the backbone for what this reader refuses."""
        if raw.get("model_type") != "siglip":
            raise UserError(
                f"config.json describes a model of type '{raw.get('model_type')}'; of SigLIP 2 those of fixed "
                "resolution, of type 'siglip', are read",
                hint=combine("let transformers run it", choose_backbone(adapter)),
            )
        vision, text = raw.get("vision_config") or {}, raw.get("text_config") or {}
        refuse_unknown_keys(
            "config.json",
            [
                Section("", raw, {"model_type", "vision_config", "text_config"}, HF_TOP),
                Section(
                    "vision_config",
                    vision,
                    {*HF_READ, "image_size", "patch_size"},
                    {**HF_VISION, "vision_use_head": only(True)},
                ),
                Section(
                    "text_config",
                    text,
                    {*HF_READ, "vocab_size", "max_position_embeddings", "projection_size"},
                    # Ids are those of the tokenizer: the files carry placeholders.
                    {**HF_TOWER, "bos_token_id": any_value, "eos_token_id": any_value},
                ),
            ],
            adapter,
        )
        width = text.get("hidden_size", 768)
        return cls(
            vision=VisionConfig(
                **_hf_tower(vision),
                image_size=vision.get("image_size", 224),
                patch_size=vision.get("patch_size", 16),
            ),
            text=SigLIPTextConfig(
                **_hf_tower(text),
                vocab_size=text.get("vocab_size", 32000),
                context_length=text.get("max_position_embeddings", 64),
            ),
            embed_dim=text.get("projection_size") or width,
        )

    @classmethod
    def from_open_clip(
        cls, raw: Mapping[str, Any], state: Mapping[str, Tensor], adapter: str = "open_clip:NAME@TAG"
    ) -> SigLIPConfig:
        """Read the `model_cfg` of an `open_clip_config.json`.

        state: the tensors, which tell the sizes of the image tower: the file has no more than its name in timm.
        adapter: the backbone for what this reader refuses.
        """
        vision, text = raw.get("vision_cfg") or {}, raw.get("text_cfg") or {}
        refuse_unknown_keys(
            OPEN_CLIP_CONFIG,
            [
                Section(
                    "",
                    raw,
                    {"embed_dim", "vision_cfg", "text_cfg"},
                    {
                        **OPEN_CLIP_TOP,
                        "custom_text": only(True),
                        "init_logit_bias": any_value,
                        "quick_gelu": only(False),
                    },
                ),
                Section(
                    "vision_cfg",
                    vision,
                    {"timm_model_name", "image_size"},
                    {**OPEN_CLIP_VISION, "timm_pool": only("map"), "timm_proj": only("none", "", None)},
                ),
                Section(
                    "text_cfg",
                    text,
                    OPEN_CLIP_READ_TEXT,
                    {**OPEN_CLIP_TEXT, "hf_tokenizer_name": any_value},
                ),
            ],
            adapter,
        )
        name = str(vision.get("timm_model_name"))
        match = TIMM_NAME.match(name)
        wrong = [
            f"text_cfg.{key}: {text.get(key)!r}, {value!r} expected"
            for key, value in (("no_causal_mask", True), ("proj_bias", True), ("pool_type", "last"))
            if text.get(key) != value
        ]
        if match is None or wrong:
            raise UserError(
                f"{OPEN_CLIP_CONFIG} describes no SigLIP of fixed resolution (image tower {name})",
                details=wrong,
                hint=combine("let open_clip run it", choose_backbone(adapter)),
            )
        width = text.get("width", 512)
        return cls(
            vision=_timm_tower(match, vision.get("image_size", 224), state),
            text=SigLIPTextConfig(
                width=width,
                layers=text.get("layers", 12),
                heads=text.get("heads", 8),
                hidden=int(width * text.get("mlp_ratio", 4.0)),
                activation=_open_clip_activation(text),
                eps=open_clip_eps(text),
                vocab_size=text.get("vocab_size", 49408),
                context_length=text.get("context_length", 77),
            ),
            embed_dim=raw["embed_dim"],
        )


def _hf_tower(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Fields shared by both towers, with the defaults that `transformers` omits from its files."""
    given = raw.get("hidden_act", "gelu_pytorch_tanh")
    return {
        "width": raw.get("hidden_size", 768),
        "layers": raw.get("num_hidden_layers", 12),
        "heads": raw.get("num_attention_heads", 12),
        "hidden": raw.get("intermediate_size", 3072),
        "activation": HF_ACTIVATIONS.get(given, given),
        "eps": raw.get("layer_norm_eps", 1e-6),
    }


def _timm_tower(match: re.Match[str], image_size: int, state: Mapping[str, Tensor]) -> VisionConfig:
    """The image tower that timm builds for a name."""
    size, patch = match[1], int(match[2])
    filters, hidden = state["visual.trunk.patch_embed.proj.weight"], state["visual.trunk.blocks.0.mlp.fc1.weight"]
    width = len(filters)
    return VisionConfig(
        width=width,
        layers=len({n.split(".")[3] for n in state if n.startswith("visual.trunk.blocks.")}),
        heads=TIMM_HEADS[size] or width // 64,
        hidden=len(hidden),
        activation="gelu_tanh" if TIMM_TANH.match(match[0]) else "gelu",
        eps=TIMM_EPS,
        image_size=image_size,
        patch_size=patch,
    )


def _open_clip_activation(text: Mapping[str, Any]) -> str:
    """GELU, or its approximation by tanh."""
    given = text.get("act_kwargs") or {}
    if given not in ({}, {"approximate": "tanh"}, {"approximate": "none"}):
        raise UserError(f"{OPEN_CLIP_CONFIG}: act_kwargs is {given}; only approximate is known")
    return "gelu_tanh" if given.get("approximate") == "tanh" else "gelu"
