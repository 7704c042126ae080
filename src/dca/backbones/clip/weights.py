"""CLIP checkpoints: loading them in the layouts of Hugging Face, open_clip and OpenAI, and random initial weights."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from dca.backbones.architectures import ARCHITECTURES, QUICK, split_architecture
from dca.backbones.blocks import Block
from dca.backbones.clip.config import OPENAI_SAYS, RESNET_POSITIONS, CLIPConfig, ResNetConfig, TextConfig
from dca.backbones.clip.model import CLIP
from dca.backbones.clip.resnet import ResNetTower, fold_batch_norm
from dca.backbones.clip.tokenizer import (
    OPENAI_MERGES,
    OPENAI_VOCABULARY,
    Tokenizer,
    load_openai_tokenizer,
    load_tokenizer,
)
from dca.backbones.clip.vision import VisionTower
from dca.backbones.preprocess import (
    IMAGE_PROCESSOR_FILE,
    OPEN_CLIP_CONFIG,
    PROCESSOR_FILE,
    Preprocess,
    read_image_processor,
)
from dca.backbones.sources import (
    CheckpointFiles,
    explain_damaged_configuration,
    find_checkpoint,
    find_repository,
    hub_id,
    join_prefix,
    mini_folder,
    record_location,
    require_image_size,
)
from dca.backbones.state_dict import TensorSource, read_state_dict, rename_tensors
from dca.core.errors import UserError
from dca.core.files import read_json
from dca.core.hints import choose_architecture

FILES = CheckpointFiles(
    weights=("model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model.bin"),
    others=(
        "config.json",
        IMAGE_PROCESSOR_FILE,
        PROCESSOR_FILE,
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
        "merges.txt",
        OPEN_CLIP_CONFIG,
    ),
    summary="config.json, model.safetensors, tokenizer.json (or vocab.json and merges.txt), preprocessor_config.json",
)
# Repositories of the hub whose models were trained with QuickGELU; the configuration in some of them does not say so.
QUICK_GELU_REPOSITORIES = frozenset({
    "apple/DFN2B-CLIP-ViT-B-16",
    "apple/DFN2B-CLIP-ViT-L-14",
    "apple/DFN5B-CLIP-ViT-H-14",
    "apple/DFN5B-CLIP-ViT-H-14-378",
    "timm/resnet101_clip.openai",
    "timm/resnet101_clip.yfcc15m",
    "timm/resnet50_clip.cc12m",
    "timm/resnet50_clip.openai",
    "timm/resnet50_clip.yfcc15m",
    "timm/resnet50x16_clip.openai",
    "timm/resnet50x4_clip.openai",
    "timm/resnet50x64_clip.openai",
    "timm/vit_base_patch16_clip_224.metaclip_2pt5b",
    "timm/vit_base_patch16_clip_224.metaclip_400m",
    "timm/vit_base_patch16_clip_224.openai",
    "timm/vit_base_patch32_clip_224.laion400m_e31",
    "timm/vit_base_patch32_clip_224.laion400m_e32",
    "timm/vit_base_patch32_clip_224.metaclip_2pt5b",
    "timm/vit_base_patch32_clip_224.metaclip_400m",
    "timm/vit_base_patch32_clip_224.openai",
    "timm/vit_gigantic_patch14_clip_224.metaclip_2pt5b",
    "timm/vit_huge_patch14_clip_224.metaclip2_worldwide",
    "timm/vit_huge_patch14_clip_224.metaclip_2pt5b",
    "timm/vit_large_patch14_clip_224.metaclip_2pt5b",
    "timm/vit_large_patch14_clip_224.metaclip_400m",
    "timm/vit_large_patch14_clip_224.openai",
    "timm/vit_large_patch14_clip_336.openai",
})  # fmt: skip


def load_clip(source: str | Path, *, revision: str | None = None, cache_dir: str | None = None) -> CLIP:
    """Frozen CLIP from a name, a hub id, a folder or a file of tensors; see `CLIP.from_pretrained`."""
    architecture, place = split_architecture(str(source))
    checkpoint = find_checkpoint(place, FILES, revision=revision, cache_dir=cache_dir)
    path, name = checkpoint.path, join_prefix(architecture, checkpoint.name)
    repository = hub_id(checkpoint.name) or find_repository(path)
    if path.is_dir():
        if architecture is not None:
            raise UserError(f"backbone {source}: an architecture is for a file of tensors, and {path} is a folder")
        clip = _load_folder(path, repository).freeze()
    else:
        clip = _load_file(path, repository, architecture).freeze()
    clip.source = name
    digest = clip.digest  # computed here, once for the life of the object
    if checkpoint.local:
        record_location(digest, path, join_prefix(architecture, ""))
    return clip


def build_without_weights(config: CLIPConfig) -> CLIP:
    """A CLIP of these sizes without weights, to count parameters and to plan with; it cannot encode."""
    tokenizer = load_tokenizer(mini_folder(), config.text.context_length)
    size = config.vision.image_size
    preprocess = Preprocess(size=size, resize=size, resample=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    with torch.device("meta"):
        return CLIP(config, tokenizer, preprocess).freeze()


def _load_folder(folder: Path, repository: str | None) -> CLIP:
    """A folder in Hugging Face or open_clip layout."""
    weights = next((folder / name for name in FILES.weights if (folder / name).is_file()), None)
    if weights is None:
        raise UserError(f"backbone {folder} holds none of {', '.join(FILES.weights)}", hint=f"wanted: {FILES.summary}")
    return _load_weights(weights, folder, weights.name.startswith("open_clip"), repository)


def _load_file(path: Path, repository: str | None, architecture: str | None) -> CLIP:
    """A file of tensors; what it does not say itself must be beside it, unless its architecture is named."""
    return _load_weights(path, path.parent, (path.parent / OPEN_CLIP_CONFIG).is_file(), repository, architecture)


def _load_weights(
    weights: Path, folder: Path, prefer_open_clip: bool, repository: str | None, architecture: str | None = None
) -> CLIP:
    """Put configuration, tokenizer, preprocessing and checked weights together."""
    state = read_state_dict(weights)
    with explain_damaged_configuration(folder):
        if architecture is not None:
            quick_gelu = _settle_activation(architecture, state, weights)
            sizes = ARCHITECTURES[architecture.removesuffix(QUICK)].to_open_clip(quick_gelu=quick_gelu)
            config = CLIPConfig.from_open_clip(sizes)
            preprocess = Preprocess.of_openai(config.vision.image_size)
        else:
            config, preprocess = _read_config(folder, state, prefer_open_clip, repository)
    require_image_size(folder, preprocess.size, config.vision.image_size)
    tokenizer = _load_tokenizer(folder, config.text)
    if (tokenizer.sot_id, tokenizer.eot_id) != (config.text.sot_id, config.text.eot_id):
        raise UserError(
            f"{folder}: the tokenizer's SOT and EOT are {tokenizer.sot_id} and {tokenizer.eot_id}, "
            f"the checkpoint's {config.text.sot_id} and {config.text.eot_id}",
            hint="take both from the same checkpoint",
        )
    if (largest := max(tokenizer.bpe.get_vocab().values())) >= config.text.vocab_size:
        raise UserError(
            f"{folder}: the tokenizer gives ids up to {largest}, the text tower has {config.text.vocab_size}",
            hint="take both from the same checkpoint",
        )
    with torch.device("meta"):
        clip = CLIP(config, tokenizer, preprocess)
    source_of = hf_source if is_hf_state(state) else openai_source
    if isinstance(config.vision, ResNetConfig):
        state = fold_batch_norms(state, weights)
    clip.load_state_dict(
        rename_tensors(state, clip.state_dict(), source_of, ignored=NOT_WEIGHTS, path=weights), assign=True
    )
    return clip


def _read_config(
    folder: Path, state: Mapping[str, Tensor], prefer_open_clip: bool, repository: str | None
) -> tuple[CLIPConfig, Preprocess]:
    """Configuration and preprocessing: OpenAI's files say them, for others they are beside the weights."""
    if OPENAI_SAYS in state:
        config = CLIPConfig.from_openai_tensors(state, folder)
        if not any((folder / name).is_file() for name in (IMAGE_PROCESSOR_FILE, PROCESSOR_FILE)):
            return config, Preprocess.of_openai(config.vision.image_size)
        return config, Preprocess.from_hf(read_image_processor(folder))
    if (folder / OPEN_CLIP_CONFIG).is_file() and (prefer_open_clip or not (folder / "config.json").is_file()):
        raw, adapter = read_json(folder / OPEN_CLIP_CONFIG), f"open_clip:{folder}"
        model = dict(raw.get("model_cfg") or {})
        if repository in QUICK_GELU_REPOSITORIES:
            model["quick_gelu"] = True
        config = CLIPConfig.from_open_clip(model, adapter)
        return config, Preprocess.from_open_clip(raw.get("preprocess_cfg") or {}, config.vision.image_size, adapter)
    # The configuration first: what is not a CLIP at all has other preprocessing, too.
    adapter = f"transformers:{folder}"
    if (folder / "config.json").is_file():
        config = CLIPConfig.from_hf(read_json(folder / "config.json"), adapter)
    else:
        config = CLIPConfig.from_openai_tensors(state, folder)
    return config, Preprocess.from_hf(read_image_processor(folder), adapter)


def _settle_activation(architecture: str, state: Mapping[str, Tensor], path: Path) -> bool:
    """Whether a file of this architecture was trained with QuickGELU.

    Raises:
        UserError: If the name says GELU, and the numbers look as if they came from OpenAI, which published float16.
    """
    if architecture.endswith(QUICK) or OPENAI_SAYS in state:
        return True
    weights = [tensor for tensor in state.values() if tensor.is_floating_point() and tensor.dim() > 1]
    if all(torch.equal(tensor.float(), tensor.half().float()) for tensor in weights):
        raise UserError(
            f"{path} may be OpenAI's: all its numbers are those of float16. {architecture} computes GELU, and OpenAI "
            "trained with QuickGELU",
            hint=[choose_architecture(f"{architecture}{QUICK}"), f"put {OPEN_CLIP_CONFIG} beside it, if it is not"],
        )
    return False


def _load_tokenizer(folder: Path, config: TextConfig) -> Tokenizer:
    """The tokenizer of the folder; where it has none and the vocabulary has the size of OpenAI's, that one."""
    own = any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json", OPENAI_MERGES))
    if not own and config.vocab_size == OPENAI_VOCABULARY:
        return load_openai_tokenizer(config.context_length)
    return load_tokenizer(folder, config.context_length)


# Names of tensors: ours -> the checkpoint's.

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
NOT_WEIGHTS = re.compile(
    r"(.*\.)?(position_ids|attn_mask|input_resolution|context_length|vocab_size|num_batches_tracked)$"
)
BLOCK = re.compile(r"(visual|text)\.blocks\.(\d+)\.(.+)\.(weight|bias)$")


# ResNet towers: ours -> OpenAI's, for convolutions whose batch norms are folded.
RESNET_STEM = re.compile(r"visual\.stem\.(\d)\.(weight|bias)$")
RESNET_BLOCK = re.compile(r"visual\.stages\.(\d)\.(\d+)\.(conv\d|shortcut)\.(weight|bias)$")
RESNET_END = re.compile(r"visual\.end\.(q|k|v|projection)\.(weight|bias)$")
# OpenAI's convolutions of a ResNet; `batch_norm_of` names their batch norms.
RESNET_CONVOLUTION = re.compile(r"visual\.(layer\d\.\d+\.)?(conv\d|downsample\.0)\.weight$")


def resnet_source(name: str) -> TensorSource | None:
    """The tensors in which a state dict with folded batch norms keeps our tensor `name` of a ResNet tower."""
    if name == "visual.end.positions":
        return TensorSource((RESNET_POSITIONS,))
    if match := RESNET_STEM.match(name):
        return TensorSource((f"visual.conv{int(match[1]) + 1}.{match[2]}",))
    if match := RESNET_BLOCK.match(name):
        part = "downsample.0" if match[3] == "shortcut" else match[3]
        return TensorSource((f"visual.layer{int(match[1]) + 1}.{match[2]}.{part}.{match[4]}",))
    if match := RESNET_END.match(name):
        part = "c" if match[1] == "projection" else match[1]
        return TensorSource((f"visual.attnpool.{part}_proj.{match[2]}",))
    return None


def batch_norm_of(convolution: str) -> str:
    """The batch norm behind a convolution: conv2 -> bn2, downsample.0 -> downsample.1."""
    stem, _, part = convolution.rpartition(".")
    return f"{stem}.{part.replace('conv', 'bn') if 'conv' in part else '1'}"


def fold_batch_norms(state: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """A ResNet's state dict with convolutions that contain their batch norms.

    Raises:
        UserError: If a batch norm is missing or misshapen.
    """
    folded, problems = dict(state), []
    for name in filter(RESNET_CONVOLUTION.match, state):
        stem, weight = name.removesuffix(".weight"), state[name]
        norm, sizes = batch_norm_of(stem), {"weight", "bias", "running_mean", "running_var"}
        found = {n: folded.pop(f"{norm}.{n}") for n in sizes if f"{norm}.{n}" in state}
        problems += [f"missing {norm}.{n}" for n in sorted(sizes - set(found))]
        problems += [f"{norm}.{n}: shape {tuple(t.shape)}" for n, t in found.items() if t.shape != weight.shape[:1]]
        if not problems:
            folded[name], folded[f"{stem}.bias"] = fold_batch_norm(weight, found)
    if problems:
        raise UserError(f"{path}: batch norms are not those of its convolutions", details=problems)
    return folded


def hf_source(name: str) -> TensorSource:
    """The tensors in which `transformers` keeps our tensor `name`."""
    if name in HF_TOP:
        return TensorSource((HF_TOP[name],))
    if match := BLOCK.match(name):
        tower, layer, part, kind = match.groups()
        stem = f"{'vision' if tower == 'visual' else 'text'}_model.encoder.layers.{layer}"
        if part == "attn.qkv":
            return TensorSource(tuple(f"{stem}.self_attn.{x}_proj.{kind}" for x in "qkv"))
        return TensorSource((f"{stem}.{HF_BLOCK[part]}.{kind}",))
    part, kind = name.rsplit(".", 1)
    return TensorSource((f"{HF_NORM[part]}.{kind}",))


def openai_source(name: str) -> TensorSource:
    """The tensors in which OpenAI's and open_clip's state dicts keep our tensor `name`."""
    if (source := resnet_source(name)) is not None:
        return source
    if name in OPENAI_TOP:
        return TensorSource((OPENAI_TOP[name],), transposed=name.endswith("projection.weight"))
    if match := BLOCK.match(name):
        tower, layer, part, kind = match.groups()
        stem = f"{'visual.' if tower == 'visual' else ''}transformer.resblocks.{layer}"
        if part == "attn.qkv":
            return TensorSource((f"{stem}.attn.in_proj_{kind}",))
        return TensorSource((f"{stem}.{OPENAI_BLOCK[part]}.{kind}",))
    part, kind = name.rsplit(".", 1)
    return TensorSource((f"{OPENAI_NORM[part]}.{kind}",))


def is_hf_state(names: Iterable[str]) -> bool:
    """Whether these are the tensor names of `transformers`."""
    return any(n.startswith("vision_model.") for n in names)


def to_hf_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict under the names of `transformers`."""
    return {k: v for name, tensor in state.items() for k, v in hf_source(name).write(tensor).items()}


# Random initial weights, for a CLIP that is trained from scratch.

Normal = Callable[[torch.Tensor, float], None]


@torch.no_grad()
def initialize_weights(clip: CLIP, generator: torch.Generator) -> CLIP:
    """Fill every weight in place with random numbers, scaled as in the CLIP paper; returns clip."""

    def normal(tensor: torch.Tensor, std: float) -> None:
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * std)

    if isinstance(clip.visual, ResNetTower):
        _initialize_resnet(clip.visual, normal)
    towers = (clip.text,) if isinstance(clip.visual, ResNetTower) else (clip.visual, clip.text)
    for tower in towers:
        width = tower.config.width
        for block in tower.blocks:
            _initialize_block(block, width, tower.config.layers, normal)
        normal(tower.projection.weight, width**-0.5)
    if isinstance(clip.visual, VisionTower):
        width = clip.visual.width
        normal(clip.visual.patch_embed.weight, width**-0.5)
        normal(clip.visual.cls, width**-0.5)
        normal(clip.visual.positions, width**-0.5)
    normal(clip.text.embedding.weight, 0.02)
    normal(clip.text.positions, 0.01)
    for module in clip.modules():
        if isinstance(module, nn.LayerNorm):
            module.weight.fill_(1)
            module.bias.zero_()
    clip.logit_scale.fill_(math.log(1 / 0.07))
    return clip


def _initialize_resnet(tower: ResNetTower, normal: Normal) -> None:
    """Convolutions so that variances stay; what blocks add to their input is scaled down with depth."""
    blocks = [block for stage in tower.stages for block in stage.children()]
    for name, module in tower.named_modules():
        if isinstance(module, nn.Conv2d):
            inputs = module.weight[0].numel()
            normal(module.weight, (2 / inputs) ** 0.5 * (len(blocks) ** -0.5 if name.endswith("conv3") else 1))
        elif isinstance(module, nn.Linear):
            normal(module.weight, module.in_features**-0.5)
        if isinstance(module, nn.Conv2d | nn.Linear):
            assert module.bias is not None
            module.bias.zero_()
    normal(tower.end.positions, tower.width**-0.5)


def _initialize_block(block: Block, width: int, layers: int, normal: Normal) -> None:
    """Attention and MLP of one block; residual outputs are scaled down with depth."""
    residual = width**-0.5 * (2 * layers) ** -0.5
    normal(block.attn.qkv.weight, width**-0.5)
    normal(block.attn.out.weight, residual)
    first, last = block.mlp[0], block.mlp[2]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    normal(first.weight, (2 * width) ** -0.5)
    normal(last.weight, residual)
    for linear in (block.attn.qkv, block.attn.out, first, last):
        linear.bias.zero_()
