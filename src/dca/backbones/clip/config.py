"""Sizes and activation of a CLIP, read from the configuration files of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from dca.backbones.blocks import MAX_LAYERS, TowerConfig, check_sizes
from dca.backbones.config_keys import (
    HF_TOP,
    HF_TOWER,
    HF_VISION,
    OPEN_CLIP_TEXT,
    OPEN_CLIP_TOP,
    OPEN_CLIP_VISION,
    Section,
    refuse_unknown_keys,
)
from dca.backbones.preprocess import OPEN_CLIP_CONFIG
from dca.core.errors import UserError
from dca.core.hints import choose_architecture, choose_backbone, combine

# Stages of a ResNet; the stem and all but the first halve the size, the stem twice.
STAGES = 4
# Tensors that tell the sizes of a ResNet in the layout of OpenAI.
RESNET_POSITIONS, RESNET_FILTERS = "visual.attnpool.positional_embedding", "visual.layer1.0.conv1.weight"
# A tensor that is in OpenAI's files and in no others.
OPENAI_SAYS = "input_resolution"
# Keys of configuration files that are read below.
HF_PARTS = ("vision_config", "text_config", "vision_config_dict", "text_config_dict")
HF_READ = (
    "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
    "layer_norm_eps",
)  # fmt: skip
HF_READ_TEXT = ("vocab_size", "max_position_embeddings", "bos_token_id", "eos_token_id")
OPEN_CLIP_READ_VISION = ("image_size", "layers", "width", "head_width", "mlp_ratio", "patch_size", "norm_kwargs")
OPEN_CLIP_READ_TEXT = ("context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio", "norm_kwargs")


@dataclass(frozen=True, kw_only=True)
class VisionConfig(TowerConfig):
    """The image tower: a ViT over square patches."""

    image_size: int
    patch_size: int

    @property
    def patches(self) -> int:
        """Number of patch tokens of one image."""
        return (self.image_size // self.patch_size) ** 2


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """The image tower of RN50 and its relatives.

    width: of the stem, and of the filters of the first stage. stages: blocks of each of the four stages. heads: of
    attention pooling.
    """

    width: int
    stages: tuple[int, ...]
    heads: int
    image_size: int

    def __post_init__(self) -> None:
        check_sizes(self)
        if len(self.stages) != STAGES or not all(type(n) is int and 1 <= n <= MAX_LAYERS for n in self.stages):
            raise UserError(f"stages {list(self.stages)!r}: {STAGES} numbers of blocks, 1 to {MAX_LAYERS}, expected")
        if self.image_size % self.reduction or self.width % 2:
            raise UserError(
                f"a ResNet of width {self.width} for images of {self.image_size} px: an even width and a multiple of "
                f"{self.reduction} px expected"
            )
        if self.features % self.heads:
            raise UserError(f"width {self.features} is not a multiple of the {self.heads} attention heads")

    @property
    def reduction(self) -> int:
        """How many pixels a position is wide in the end."""
        return 1 << (STAGES + 1)

    @property
    def patches(self) -> int:
        """Number of positions in the end."""
        return (self.image_size // self.reduction) ** 2

    @property
    def features(self) -> int:
        """Width of the last stage."""
        return feature_width(self.width)


def feature_width(width: int) -> int:
    """Width of the last stage of a ResNet: it doubles from stage to stage, and each widens it 4 times in the end."""
    return 4 * width << (STAGES - 1)


@dataclass(frozen=True, kw_only=True)
class TextConfig(TowerConfig):
    """The causal text tower; features are read at the first EOT."""

    vocab_size: int
    context_length: int
    sot_id: int
    eot_id: int


@dataclass(frozen=True, kw_only=True)
class CLIPConfig:
    """Two towers and the joint embedding size D."""

    vision: VisionConfig | ResNetConfig
    text: TextConfig
    embed_dim: int

    def __post_init__(self) -> None:
        check_sizes(self)
        if max(self.text.sot_id, self.text.eot_id) >= self.text.vocab_size:
            raise UserError(f"SOT or EOT is outside the vocabulary of {self.text.vocab_size} tokens")
        if isinstance(self.vision, VisionConfig) and self.vision.patch_size > self.vision.image_size:
            raise UserError(f"patches of {self.vision.patch_size} px in images of {self.vision.image_size} px")

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionary, for records."""
        return asdict(self)

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], adapter: str = "transformers:NAME") -> CLIPConfig:
        """Read the `config.json` of a Hugging Face CLIP; `adapter` is the backbone for what this reader refuses."""
        if raw.get("model_type") != "clip":
            raise UserError(
                f"config.json describes a model of type '{raw.get('model_type')}', not 'clip'",
                hint=[
                    combine("let transformers run it", choose_backbone(adapter)),
                    "use a CLIP checkpoint with a ViT image tower, e.g. openai/clip-vit-base-patch16",
                ],
            )
        vision, text = (_hf_part(raw, name) for name in ("vision_config", "text_config"))
        refuse_unknown_keys(
            "config.json",
            [
                Section("", raw, {"model_type", "projection_dim", *HF_PARTS}, HF_TOP),
                Section("vision_config", vision, {*HF_READ, "image_size", "patch_size"}, HF_VISION),
                Section("text_config", text, {*HF_READ, *HF_READ_TEXT}, HF_TOWER),
            ],
            adapter,
        )
        vocab = text.get("vocab_size", 49408)
        eot = text.get("eos_token_id", vocab - 1)
        return cls(
            vision=VisionConfig(
                **_hf_tower(vision, layers=12, width=768, heads=12),
                image_size=vision.get("image_size", 224),
                patch_size=vision.get("patch_size", 32),
            ),
            text=TextConfig(
                **_hf_tower(text, layers=12, width=512, heads=8),
                vocab_size=vocab,
                context_length=text.get("max_position_embeddings", 77),
                # Old files carry placeholder ids 0 and 2; the real ones are the last two of the vocabulary.
                sot_id=vocab - 2 if eot == 2 else text.get("bos_token_id", vocab - 2),
                eot_id=vocab - 1 if eot == 2 else eot,
            ),
            embed_dim=raw.get("projection_dim", 512),
        )

    def to_hf(self) -> dict[str, Any]:
        """The `config.json` that `from_hf` reads and `transformers.CLIPModel` opens; of a ViT."""
        assert isinstance(self.vision, VisionConfig)

        def tower(c: TowerConfig, kind: str) -> dict[str, Any]:
            return {
                "model_type": kind,
                "hidden_size": c.width,
                "num_hidden_layers": c.layers,
                "num_attention_heads": c.heads,
                "intermediate_size": c.hidden,
                "hidden_act": c.activation,
                "layer_norm_eps": c.eps,
                "projection_dim": self.embed_dim,
            }

        vision, text = self.vision, self.text
        return {
            "architectures": ["CLIPModel"],
            "model_type": "clip",
            "projection_dim": self.embed_dim,
            "vision_config": tower(vision, "clip_vision_model")
            | {"image_size": vision.image_size, "patch_size": vision.patch_size},
            "text_config": tower(text, "clip_text_model")
            | {
                "vocab_size": text.vocab_size,
                "max_position_embeddings": text.context_length,
                "bos_token_id": text.sot_id,
                "eos_token_id": text.eot_id,
                "pad_token_id": text.eot_id,
            },
        }

    @classmethod
    def from_open_clip(cls, raw: Mapping[str, Any], adapter: str = "open_clip:NAME@TAG") -> CLIPConfig:
        """Read the `model_cfg` of an `open_clip_config.json`; `adapter`: the backbone for what this reader refuses."""
        vision, text = raw.get("vision_cfg") or {}, raw.get("text_cfg") or {}
        refuse_unknown_keys(
            OPEN_CLIP_CONFIG,
            [
                Section("", raw, {"embed_dim", "vision_cfg", "text_cfg", "quick_gelu"}, OPEN_CLIP_TOP),
                Section("vision_cfg", vision, OPEN_CLIP_READ_VISION, OPEN_CLIP_VISION),
                Section("text_cfg", text, OPEN_CLIP_READ_TEXT, OPEN_CLIP_TEXT),
            ],
            adapter,
        )
        layers = vision.get("layers", 12)
        if not isinstance(layers, int | list):
            raise UserError(
                f"{OPEN_CLIP_CONFIG} describes an image tower that is neither a plain ViT nor a ResNet of CLIP",
                hint=combine("let open_clip run it", choose_backbone(adapter)),
            )
        activation = "quick_gelu" if raw.get("quick_gelu") else "gelu"
        vocab = text.get("vocab_size", 49408)
        width, text_width = vision.get("width", 768), text.get("width", 512)
        return cls(
            vision=_open_clip_resnet(vision)
            if isinstance(layers, list)
            else VisionConfig(
                width=width,
                layers=layers,
                heads=width // vision.get("head_width", 64),
                hidden=int(width * vision.get("mlp_ratio", 4.0)),
                activation=activation,
                image_size=vision.get("image_size", 224),
                patch_size=vision.get("patch_size", 16),
                eps=open_clip_eps(vision),
            ),
            text=TextConfig(
                width=text_width,
                layers=text.get("layers", 12),
                heads=text.get("heads", 8),
                hidden=int(text_width * text.get("mlp_ratio", 4.0)),
                activation=activation,
                eps=open_clip_eps(text),
                vocab_size=vocab,
                context_length=text.get("context_length", 77),
                sot_id=vocab - 2,
                eot_id=vocab - 1,
            ),
            embed_dim=raw["embed_dim"],
        )

    @classmethod
    def from_openai_tensors(cls, state: Mapping[str, Tensor], folder: Path) -> CLIPConfig:
        """Read the sizes off the tensors of an OpenAI state dict."""
        is_resnet = RESNET_POSITIONS in state
        needed = ["token_embedding.weight", "text_projection", "positional_embedding"]
        needed += [RESNET_FILTERS] if is_resnet else ["visual.conv1.weight", "visual.positional_embedding"]
        if missing := [n for n in needed if n not in state]:
            raise UserError(f"{folder}: neither config.json nor the tensors of an OpenAI CLIP", details=missing)
        if OPENAI_SAYS not in state:
            raise UserError(
                f"{folder}: the state dict does not say which activation it was trained with",
                hint=[choose_architecture("NAME"), f"put its config.json or {OPEN_CLIP_CONFIG} beside it"],
            )
        vocab, text_width = state["token_embedding.weight"].shape
        return cls(
            vision=(_openai_resnet if is_resnet else _openai_vit)(state),
            text=TextConfig(
                width=text_width, layers=_count_blocks(state, "transformer."), heads=text_width // 64,
                hidden=4 * text_width, vocab_size=vocab, context_length=len(state["positional_embedding"]),
                sot_id=vocab - 2, eot_id=vocab - 1,
            ),
            embed_dim=state["text_projection"].shape[1],
        )  # fmt: skip


def _hf_part(raw: Mapping[str, Any], name: str) -> Any:
    """A part of a `config.json`; old files hold it twice, and then `transformers` takes the one named `..._dict`."""
    newer = raw.get(f"{name}_dict")
    return (raw.get(name) or {}) if newer is None else newer


def open_clip_eps(tower: Mapping[str, Any]) -> float:
    """ε of the norms, the only one of their arguments."""
    given = tower.get("norm_kwargs") or {}
    if more := sorted(set(given) - {"eps"}):
        raise UserError(f"{OPEN_CLIP_CONFIG}: norm_kwargs has {', '.join(more)}; only eps is known")
    eps: float = given.get("eps", 1e-5)
    return eps


def _hf_tower(raw: Mapping[str, Any], *, layers: int, width: int, heads: int) -> dict[str, Any]:
    """Fields shared by both towers, with the defaults that `transformers` omits from its files."""
    width = raw.get("hidden_size", width)
    return {
        "width": width,
        "layers": raw.get("num_hidden_layers", layers),
        "heads": raw.get("num_attention_heads", heads),
        "hidden": raw.get("intermediate_size", 4 * width),
        "activation": raw.get("hidden_act", "quick_gelu"),
        "eps": raw.get("layer_norm_eps", 1e-5),
    }


def _open_clip_resnet(raw: Mapping[str, Any]) -> ResNetConfig:
    """The `vision_cfg` of a ResNet."""
    width = raw["width"]
    return ResNetConfig(
        width=width,
        stages=tuple(raw["layers"]),
        heads=feature_width(width) // raw.get("head_width", 64),
        image_size=raw.get("image_size", 224),
    )


def _openai_vit(state: Mapping[str, Tensor]) -> VisionConfig:
    """The sizes of a ViT."""
    width, _, patch, _ = state["visual.conv1.weight"].shape
    side = int((len(state["visual.positional_embedding"]) - 1) ** 0.5)
    return VisionConfig(
        width=width, layers=_count_blocks(state, "visual.transformer."), heads=width // 64, hidden=4 * width,
        image_size=side * patch, patch_size=patch,
    )  # fmt: skip


def _openai_resnet(state: Mapping[str, Tensor]) -> ResNetConfig:
    """The sizes of a ResNet."""
    width = len(state[RESNET_FILTERS])
    blocks = [{n.split(".")[2] for n in state if n.startswith(f"visual.layer{s + 1}.")} for s in range(STAGES)]
    config = ResNetConfig(
        width=width, stages=tuple(map(len, blocks)), heads=feature_width(width) // 64, image_size=1 << (STAGES + 1)
    )
    side = int((len(state[RESNET_POSITIONS]) - 1) ** 0.5)
    return replace(config, image_size=side * config.reduction)


def _count_blocks(state: Mapping[str, Tensor], stem: str) -> int:
    return len({n.split("resblocks.")[1].split(".")[0] for n in state if n.startswith(f"{stem}resblocks.")})


VIT_B_16 = CLIPConfig(
    vision=VisionConfig(width=768, layers=12, heads=12, hidden=3072, image_size=224, patch_size=16),
    text=TextConfig(
        width=512, layers=12, heads=8, hidden=2048,
        vocab_size=49408, context_length=77, sot_id=49406, eot_id=49407,
    ),
    embed_dim=512,
)  # fmt: skip
