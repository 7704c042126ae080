"""Tensor names of this package and of published checkpoints.

One table maps each of our tensors to the checkpoint tensors it is made of. Missing tensors, unexpected
tensors and the way to write a checkpoint all follow from it.

Random weights for a CLIP that is trained from scratch, as in the CLIP paper.

Finding, checking and mapping checkpoints.
"""

from __future__ import annotations

import logging
import math
import pickle
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from dca.backbones.clip import config as configs
from dca.backbones.clip import preprocess
from dca.backbones.clip.blocks import Block
from dca.backbones.clip.config import CLIPConfig, TextConfig, VisionConfig
from dca.backbones.clip.model import CLIP
from dca.backbones.clip.tokenizer import OPENAI_MERGES, load_tokenizer
from dca.backbones.sources import HUB_IDS, MINI, is_hub_id, local_source, remember
from dca.core.errors import UserError, unknown_name
from dca.core.files import read_json
from dca.core.hints import choose_backbone, combine

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


Normal = Callable[[torch.Tensor, float], None]


@torch.no_grad()
def initialize(clip: CLIP, generator: torch.Generator) -> CLIP:
    """Fill every weight in place from `generator`; returns clip."""

    def normal(tensor: torch.Tensor, std: float) -> None:
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * std)

    for tower in (clip.visual, clip.text):
        width = tower.config.width
        for block in tower.blocks:
            _fill_block(block, width, tower.config.layers, normal)
        normal(tower.projection.weight, width**-0.5)
    normal(clip.visual.patch_embed.weight, clip.config.vision.width**-0.5)
    normal(clip.visual.cls, clip.config.vision.width**-0.5)
    normal(clip.visual.positions, clip.config.vision.width**-0.5)
    normal(clip.text.embedding.weight, 0.02)
    normal(clip.text.positions, 0.01)
    for module in clip.modules():
        if isinstance(module, nn.LayerNorm):
            module.weight.fill_(1)
            module.bias.zero_()
    clip.logit_scale.fill_(math.log(1 / 0.07))
    return clip


def _fill_block(block: Block, width: int, layers: int, normal: Normal) -> None:
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


log = logging.getLogger(__name__)

# transformers 5 writes a processor into one file, older ones the image part into another.
PROCESSOR, IMAGE_PROCESSOR = "processor_config.json", "preprocessor_config.json"
SMALL_FILES = ["config.json", IMAGE_PROCESSOR, PROCESSOR, "tokenizer.json", "vocab.json", "merges.txt"]
OPEN_CLIP_CONFIG = "open_clip_config.json"
WEIGHT_FILES = [
    "model.safetensors",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "open_clip_pytorch_model.bin",
]
WANTED = "config.json, model.safetensors, tokenizer.json (or vocab.json and merges.txt), preprocessor_config.json"
PICKLES = {".bin", ".pt", ".pth"}


def load(source: str | Path, *, revision: str | None = None, cache_dir: str | None = None) -> CLIP:
    """Frozen CLIP from a short name, a hub id, a folder or a state dict file; see `CLIP.from_pretrained`."""
    name, path = str(source), Path(source).expanduser()
    local = False
    if name == MINI:
        path = mini_folder()
    elif name in HUB_IDS:
        path = fetch(HUB_IDS[name], revision, cache_dir)
    elif path.exists():
        local = path.resolve() != mini_folder().resolve()
        name = local_source(path) if local else MINI
    elif is_hub_id(name):
        path = fetch(name, revision, cache_dir)
    else:
        raise _no_such_source(name)
    clip = (_load_folder(path) if path.is_dir() else _load_file(path)).freeze()
    clip.source = name
    digest = clip.digest  # computed here, once for the life of the object
    if local:
        remember(digest, path)
    return clip


def mini_folder() -> Path:
    """The folder of the checkpoint that comes with the package."""
    return Path(str(files("dca.backbones") / MINI))


def blank(config: CLIPConfig) -> CLIP:
    """A CLIP of this shape without weights, to count and to plan with; it cannot encode."""
    tokenizer = load_tokenizer(mini_folder(), config.text.context_length)
    size = config.vision.image_size
    transform = preprocess.Preprocess(size=size, resize=size, resample=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    with torch.device("meta"):
        return CLIP(config, tokenizer, transform).freeze()


def _no_such_source(source: str) -> UserError:
    if "/" in source or "." in source:
        return UserError(f"backbone {source}: no such file or folder", hint=f"a folder with {WANTED}")
    return unknown_name("backbone", source, [MINI, *HUB_IDS])


def fetch(repo: str, revision: str | None, cache_dir: str | None) -> Path:
    """Folder of a hub repository, from the cache or the network (HF_HUB_OFFLINE respected)."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    target = cache_dir or constants.HF_HUB_CACHE
    log.info("looking for %s in %s, then on the hub", repo, target)
    folder = None
    try:
        # One weight file is enough: pickles are asked for only where nothing safer exists.
        for weights in WEIGHT_FILES:
            wanted = [*SMALL_FILES, OPEN_CLIP_CONFIG, weights]
            folder = Path(snapshot_download(repo, revision=revision, cache_dir=cache_dir, allow_patterns=wanted))
            if (folder / weights).is_file():
                return folder
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"backbone {repo} is not in the cache ({target}) and could not be fetched: {reason}",
            details=[f"wanted: {WANTED}"],
            hint=[
                "connect to the internet once",
                combine(f"put these files of {repo} into a folder", choose_backbone("FOLDER")),
            ],
        ) from None
    raise UserError(f"backbone {repo} holds none of {', '.join(WEIGHT_FILES)}", hint=f"wanted: {WANTED}")


def _load_folder(folder: Path) -> CLIP:
    """A folder in Hugging Face or open_clip layout."""
    weights = next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    if weights is None:
        raise UserError(f"backbone {folder} holds none of {', '.join(WEIGHT_FILES)}", hint=f"wanted: {WANTED}")
    return _build(weights, folder, weights.name.startswith("open_clip"))


def _load_file(path: Path) -> CLIP:
    """A state dict file; tokenizer and preprocessing must be beside it."""
    return _build(path, path.parent, (path.parent / OPEN_CLIP_CONFIG).is_file())


def _build(weights: Path, folder: Path, prefer_open_clip: bool) -> CLIP:
    """Put configuration, tokenizer, preprocessing and checked weights together."""
    state = read_state(weights)
    try:
        config, transform = _describe(folder, state, prefer_open_clip)
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise UserError(
            f"{folder}: the configuration is damaged ({type(error).__name__}: {error})",
            hint="take the checkpoint's own files again",
        ) from error
    origin = hf_origin if is_hf(state) else openai_origin
    if transform.size != config.vision.image_size:
        raise UserError(
            f"{folder}: preprocessing gives {transform.size} px, the image tower takes {config.vision.image_size} px"
        )
    tokenizer = load_tokenizer(_tokenizer_folder(folder), config.text.context_length)
    if (tokenizer.sot_id, tokenizer.eot_id) != (config.text.sot_id, config.text.eot_id):
        raise UserError(
            f"{folder}: the tokenizer's SOT and EOT are {tokenizer.sot_id} and {tokenizer.eot_id}, "
            f"the checkpoint's {config.text.sot_id} and {config.text.eot_id}",
            hint="take both from the same checkpoint",
        )
    if (largest := max(tokenizer.engine.get_vocab().values())) >= config.text.vocab_size:
        raise UserError(
            f"{folder}: the tokenizer gives ids up to {largest}, the text tower has {config.text.vocab_size}",
            hint="take both from the same checkpoint",
        )
    with torch.device("meta"):
        clip = CLIP(config, tokenizer, transform)
    clip.load_state_dict(_mapped(clip, state, origin, weights), assign=True)
    return clip


def _describe(
    folder: Path, state: Mapping[str, Tensor], prefer_open_clip: bool
) -> tuple[CLIPConfig, preprocess.Preprocess]:
    """Configuration and preprocessing, from the files beside the weights."""
    if (folder / OPEN_CLIP_CONFIG).is_file() and (prefer_open_clip or not (folder / "config.json").is_file()):
        raw = read_json(folder / OPEN_CLIP_CONFIG)
        config = configs.from_open_clip(raw.get("model_cfg") or {})
        return config, preprocess.from_open_clip(raw.get("preprocess_cfg") or {}, config.vision.image_size)
    transform = preprocess.from_hf(_image_settings(folder))
    if (folder / "config.json").is_file():
        return configs.from_hf(read_json(folder / "config.json")), transform
    return config_of_state(state, folder), transform


def _image_settings(folder: Path) -> dict[str, Any]:
    """What a Hugging Face folder says about how images become pixels."""
    if (folder / IMAGE_PROCESSOR).is_file():
        return read_json(folder / IMAGE_PROCESSOR)
    if (folder / PROCESSOR).is_file() and "image_processor" in (raw := read_json(folder / PROCESSOR)):
        return dict(raw["image_processor"])
    raise UserError(
        f"{folder}: no {IMAGE_PROCESSOR}, so how images become pixels is not known",
        hint=f"put the checkpoint's {IMAGE_PROCESSOR} (or {PROCESSOR}, {OPEN_CLIP_CONFIG}) beside the weights",
    )


def config_of_state(state: Mapping[str, Tensor], folder: Path) -> CLIPConfig:
    """Sizes read off the tensors of an OpenAI state dict."""
    needed = ["visual.conv1.weight", "visual.positional_embedding", "token_embedding.weight", "text_projection"]
    if missing := [n for n in needed if n not in state]:
        raise UserError(f"{folder}: neither config.json nor the tensors of an OpenAI CLIP with a ViT", details=missing)
    if "input_resolution" not in state:
        raise UserError(
            f"{folder}: the state dict does not say which activation it was trained with",
            hint=f"put its config.json or {OPEN_CLIP_CONFIG} beside it",
        )
    width, _, patch, _ = state["visual.conv1.weight"].shape
    side = int((len(state["visual.positional_embedding"]) - 1) ** 0.5)
    vocab, text_width = state["token_embedding.weight"].shape
    return CLIPConfig(
        vision=VisionConfig(
            width=width, layers=_count(state, "visual.transformer."), heads=width // 64, hidden=4 * width,
            image_size=side * patch, patch_size=patch,
        ),
        text=TextConfig(
            width=text_width, layers=_count(state, "transformer."), heads=text_width // 64, hidden=4 * text_width,
            vocab_size=vocab, context_length=len(state["positional_embedding"]), sot_id=vocab - 2, eot_id=vocab - 1,
        ),
        embed_dim=state["text_projection"].shape[1],
    )  # fmt: skip


def _count(state: Mapping[str, Tensor], stem: str) -> int:
    return len({n.split("resblocks.")[1].split(".")[0] for n in state if n.startswith(f"{stem}resblocks.")})


def _mapped(clip: CLIP, state: Mapping[str, Tensor], origin: Any, path: Path) -> dict[str, Tensor]:
    """Our float32 tensors from theirs; every wrong, missing or foreign name in one error."""
    problems, used, mapped = [], set(), {}
    for name, target in clip.state_dict().items():
        source = origin(name)
        used.update(source.names)
        if missing := [n for n in source.names if n not in state]:
            problems += [f"missing {n}" for n in missing]
            continue
        tensor = source.read(state)
        if name == "logit_scale":
            tensor = tensor.reshape(())
        if tensor.shape != target.shape:
            problems.append(f"{', '.join(source.names)}: shape {tuple(tensor.shape)}, expected {tuple(target.shape)}")
        elif not torch.isfinite(tensor).all():
            problems.append(f"{', '.join(source.names)}: holds NaN or infinite values")
        mapped[name] = tensor.float().contiguous()
    problems += [f"unexpected {n}" for n in sorted(set(state) - used) if not NOT_WEIGHTS.match(n)]
    if problems:
        raise UserError(
            f"{path}: the tensors are not those of the model its configuration describes",
            details=problems,
            hint="take weights and configuration from the same checkpoint",
        )
    return mapped


def read_state(path: Path) -> dict[str, Tensor]:
    """Tensors of a file, by name. Nothing in the file is ever executed."""
    if path.suffix in PICKLES:
        state = _read_pickle(path)
    else:
        try:
            state = load_file(path)
        except (SafetensorError, OSError, ValueError, MemoryError) as error:
            raise UserError(f"{path}: not a readable safetensors file ({error})") from None
    state = state.get("state_dict", state)
    if not isinstance(state, dict):
        raise UserError(f"{path}: its state_dict is a {type(state).__name__}, not tensors by name")
    return {str(name).removeprefix("module."): t for name, t in state.items() if isinstance(t, Tensor)}


def _read_pickle(path: Path) -> dict[str, Any]:
    """A `weights_only` load; whatever would need code is refused."""
    way_out = "use the checkpoint's safetensors form, or write one (safetensors.torch.save_file) where you trust it"
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any("/code/" in n or n.endswith("constants.pkl") for n in archive.namelist()):
                raise UserError(f"{path}: a TorchScript archive, which holds code; refused", hint=way_out)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{path}: not a plain file of tensors; refused ({reason})", hint=way_out) from None
    if not isinstance(state, dict):
        raise UserError(f"{path}: holds a {type(state).__name__}, not a state dict", hint=way_out)
    return state


def _tokenizer_folder(folder: Path) -> Path:
    """The folder itself, or an installed package that carries OpenAI's merge list."""
    own = ["tokenizer.json", "vocab.json", OPENAI_MERGES]
    if any((folder / name).is_file() for name in own):
        return folder
    from importlib.util import find_spec

    for package in ("open_clip", "clip"):
        spec = find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            if (Path(place) / OPENAI_MERGES).is_file():
                return Path(place)
    return folder
