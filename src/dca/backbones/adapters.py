"""Encoders that other libraries compute, for methods over features: `open_clip:...`, `timm:...`, `transformers:...`.

    open_clip:NAME@TAG     a model and weights of open_clip's list; TAG may also be a file of weights
    open_clip:PLACE        a hub id or a folder with open_clip_config.json
    timm:NAME              a model of timm's list, a hub id, or a folder with config.json; images only
    transformers:PLACE     a hub id or a folder with config.json; texts, too, where the model reads them

The library computes features from pixels and ids from texts; its preprocessing is read from its own settings and done
by ours (`Preprocess`), which gives the same pixels, so that an image is decoded once for all encoders. A model whose
preprocessing cannot be written so is refused. Nothing in a checkpoint runs: weights are safetensors, or pickles that
the library opens with torch's `weights_only`; code of repositories is refused (`without_remote_code`).
"""

from __future__ import annotations

import copy
import inspect
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from dca.backbones.encoder import USUAL_TAU, Ability, Encoder
from dca.backbones.preprocess import OPEN_CLIP_CONFIG, RESAMPLING, Preprocess, read_image_processor
from dca.backbones.sources import (
    CheckpointFiles,
    download,
    find_local,
    is_hub_id,
    join_prefix,
    name_without_path,
    record_location,
    split_prefix,
)
from dca.backbones.state_dict import hash_backbone
from dca.core.device import compute_in
from dca.core.errors import MissingPackageError, UserError, unknown_name

if TYPE_CHECKING:
    from PIL import Image

# Texts that pass a text tower at once.
TEXTS_AT_ONCE = 64
# Texts whose ids stand for a tokenizer in the identity of an encoder.
PROBES = ("a photo of a cat.", "Straße, 東京 & naïve!", "x" * 400)
# Classes of `transformers` by the type that config.json names, and how their image feature is read. Two towers:
DUAL = ("clip", "siglip", "metaclip_2", "altclip", "chinese_clip", "align")
# ... the row of the class token after the last norm:
CLASS_TOKEN = ("dinov2", "dinov2_with_registers", "dinov3_vit", "vit", "deit")
# ... the mean over positions after the last norm:
POOLED = ("convnext", "convnextv2", "dinov3_convnext", "resnet", "regnet", "swin", "swinv2")
# Texts that are padded to their full length, as in training; the others to the longest.
PADDED = ("siglip",)
# Image processors that cut no centre out unless they are told to.
SQUEEZING = ("Siglip", "ViT", "DINOv3ViT")
CUTTING = ("CLIP", "Bit", "ChineseCLIP", "Deit", "DeiT")

TRANSFORMERS_FILES = CheckpointFiles(
    weights=("model*.safetensors", "pytorch_model.bin"),
    others=("*.json", "*.txt", "*.model"),
    summary="config.json, model.safetensors, preprocessor_config.json, and the tokenizer's files",
)
OPEN_CLIP_FILES = CheckpointFiles(
    weights=("open_clip_model.safetensors", "open_clip_pytorch_model.bin"),
    others=("*.json", "*.txt", "*.model"),
    summary=f"{OPEN_CLIP_CONFIG}, open_clip_model.safetensors, and the tokenizer's files, if it has its own",
)


@dataclass(frozen=True)
class Parts:
    """What a library gives for one name.

    model: the network. preprocess: images to pixels. image_features: pixels (B, 3, S, S) -> features (B, D), by the
    model that is its first argument. settings: what else decides features, as plain values. tokenize: N texts -> what
    `text_features` takes; None without texts. text_features: -> (N, D). tau: scale of the cosines.
    """

    model: nn.Module
    preprocess: Preprocess
    image_features: Callable[[Any, Tensor], Tensor]
    settings: Mapping[str, Any]
    tokenize: Callable[[list[str]], dict[str, Tensor]] | None = None
    text_features: Callable[[Any, dict[str, Tensor]], Tensor] | None = None
    tau: float = USUAL_TAU


class LibraryEncoder(Encoder):
    """An encoder that another library computes: image features, and text features where the model reads texts.

    Args:
        library: Name of the library.
        name: Name of the model there, for display and for finding it again.
        parts: What the library gives for it.
    """

    def __init__(self, library: str, name: str, parts: Parts) -> None:
        super().__init__()
        self.library = library
        self.source = join_prefix(library, name)
        self.preprocess = parts.preprocess
        self.model = parts.model.requires_grad_(False).eval()
        self._parts = parts
        self._dtype = torch.float32
        self._feature_dim, self._floats = _measure(self)

    @classmethod
    def from_pretrained(cls, source: str) -> LibraryEncoder:
        """Load an encoder by LIBRARY:NAME.

        Raises:
            UserError: If the library is not installed, has no such model, or computes it in a way that we cannot.
        """
        library, name = split_prefix(source)
        if library not in LIBRARIES:
            raise UserError(f"backbone {source}: one of {', '.join(LIBRARIES)} is expected before the colon")
        module, package, load = LIBRARIES[library]
        require_library(module, package, source)
        try:
            with without_remote_code(source):
                encoder = cls(library, name_without_path(name), load(name))
        except UserError:
            raise
        except Exception as error:  # the libraries raise almost anything
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise UserError(
                f"backbone {source}: {library} {version(package)} cannot load it: {reason}",
                hint=[f"see the names that {library} lists", "a folder with the model's own files"],
            ) from error
        if (path := find_local(name)) is not None:
            before, at, _ = name.rpartition("@") if path.is_file() else ("", "", "")
            record_location(encoder.digest, path, f"{library}:{before}{at}")
        return encoder

    @property
    def abilities(self) -> frozenset[Ability]:  # type: ignore[override]
        """Image features, and text features where the model reads texts."""
        texts = {Ability.TEXT_FEATURES} if self._parts.text_features is not None else set()
        return frozenset({Ability.IMAGE_FEATURES} | texts)

    @property
    def feature_dim(self) -> int:
        """D, the length of a feature."""
        return self._feature_dim

    @property
    def floats_per_image(self) -> int:
        """Values of the largest output of a layer, of the first image that it was given."""
        return self._floats

    @cached_property
    def digest(self) -> str:
        """sha256 of weights, settings of the model, preprocessing, and of the ids of a few texts."""
        tokenize = self._parts.tokenize
        ids = {name: tensor.tolist() for name, tensor in tokenize(list(PROBES)).items()} if tokenize else {}
        settings = [self.library, dict(self._parts.settings), self.preprocess.to_dict(), ids]
        return hash_backbone(self.model.state_dict(), [json.dumps(settings, sort_keys=True, default=str)])

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The type in which it computes."""
        return self._dtype

    @property
    def tau(self) -> float:
        """Scale of the cosines between images and texts, as it was trained."""
        return self._parts.tau

    def describe(self) -> dict[str, Any]:
        """Library and settings of the model."""
        return {"library": self.library, "settings": dict(self._parts.settings)}

    def with_dtype(self, dtype: torch.dtype, *, features: torch.dtype | None = None) -> Self:
        """Another encoder with the same weights and another compute type; this one if it has that type already."""
        chosen = features or dtype
        if chosen == self._dtype:
            return self
        other = copy.copy(self)
        other._dtype = chosen
        return other

    def to_device(self, device: torch.device | str) -> Self:
        """This encoder if its weights are on the device, else a copy there."""
        target = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
        if target == self.device:
            return self
        other = copy.copy(self)
        other._modules = {**self._modules, "model": copy.deepcopy(self.model).to(target)}
        return other

    def encode_image(self, images: Sequence[Image.Image] | Tensor) -> Tensor:
        """Image features, as the library computes them.

        Args:
            images: PIL images, or normalised pixels (B, 3, S, S).

        Returns:
            Features (B, D), float32, not normalised.
        """
        pixels = images if isinstance(images, Tensor) else self.preprocess(images)
        with compute_in(self._dtype, self.device):
            return self._parts.image_features(self.model, pixels.to(self.device)).float()

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Text features, as the library computes them.

        Args:
            texts: N strings.

        Returns:
            Features (N, D), float32, not normalised.

        Raises:
            UserError: If the model reads no texts.
        """
        tokenize, encode = self._parts.tokenize, self._parts.text_features
        if tokenize is None or encode is None:
            return super().encode_text(texts)
        features = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            inputs = tokenize(list(texts[start : start + TEXTS_AT_ONCE]))
            with compute_in(self._dtype, self.device):
                found = encode(self.model, {name: tensor.to(self.device) for name, tensor in inputs.items()})
            features.append(found.float())
        return torch.cat(features)


@torch.no_grad()
def _measure(encoder: LibraryEncoder) -> tuple[int, int]:
    """Length of a feature, and values of the largest output of a layer, of one grey image."""
    largest = 0

    def see(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal largest
        if isinstance(output, Tensor):
            largest = max(largest, output.numel())

    hooks = [module.register_forward_hook(see) for module in encoder.model.modules()]
    size = encoder.preprocess.size
    features = encoder.encode_image(torch.zeros(1, 3, size, size))
    for hook in hooks:
        hook.remove()
    if features.dim() != 2:
        raise UserError(f"{encoder.source} gives features of shape {tuple(features.shape)}; one row per image expected")
    return features.shape[1], max(largest, 3 * size * size)


# Safety.

_GATE = threading.Lock()


@contextmanager
def without_remote_code(source: str) -> Iterator[None]:
    """Inside, `transformers` imports no code of a repository and asks nobody whether it should.

    Other libraries call it without a word about remote code, and then it may ask on a terminal; so the one function
    through which such code is imported is closed.
    """
    try:
        dynamic: Any = import_module("transformers.dynamic_module_utils")
    except ImportError:
        yield
        return

    def refuse(*arguments: Any, **more: Any) -> Any:
        raise UserError(f"backbone {source}: its repository brings code of its own to run, which is refused")

    with _GATE:
        before = dynamic.get_class_in_module, dynamic.TIME_OUT_REMOTE_CODE
        dynamic.get_class_in_module, dynamic.TIME_OUT_REMOTE_CODE = refuse, 0
        try:
            yield
        finally:
            dynamic.get_class_in_module, dynamic.TIME_OUT_REMOTE_CODE = before


def refuse_code(source: str, settings: Any) -> None:
    """Raise if settings of a checkpoint allow its code to run."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            if key in ("trust_remote_code", "code_revision") and value:
                raise UserError(f"backbone {source}: its configuration asks for {key}, which is refused")
            refuse_code(source, value)
    elif isinstance(settings, list):
        for value in settings:
            refuse_code(source, value)


def require_library(module: str, package: str, source: str) -> None:
    """Raise if a library cannot be imported."""
    try:
        import_module(module)
        version(package)
    except (ImportError, PackageNotFoundError, RuntimeError) as error:
        raise MissingPackageError(
            f"backbone {source} needs the library {module}, which cannot be imported ({error})",
            hint=f"`pip install 'dca-prompt[{module}]'`",
        ) from error


# open_clip


def load_open_clip(name: str) -> Parts:
    """The parts of a model of open_clip: NAME@TAG, NAME@FILE, a hub id or a folder."""
    open_clip: Any = import_module("open_clip")
    folder = _model_folder(name, OPEN_CLIP_FILES)
    options: dict[str, Any] = {}
    if folder is not None:
        config = json.loads((folder / OPEN_CLIP_CONFIG).read_text(encoding="utf-8")).get("model_cfg")
        model_name = f"local-dir:{folder}"
    else:
        model_name, at, tag = name.partition("@")
        config = open_clip.get_model_config(model_name)
        if config is None:
            raise unknown_name("model of open_clip", model_name, open_clip.list_models())
        known = open_clip.list_pretrained_tags_by_model(model_name)
        if not at or (tag not in known and not Path(tag).expanduser().is_file()):
            raise unknown_name(f"weights of {model_name} (NAME@TAG)", tag, known)
        published = open_clip.get_pretrained_cfg(model_name, tag) if tag in known else {}
        options = {"pretrained": tag if tag in known else str(Path(tag).expanduser())}
        # Its own list says which weights want it; the name of the model alone would leave it out.
        options["force_quick_gelu"] = bool(published.get("quick_gelu"))
    refuse_code(f"open_clip:{name}", config)
    model = open_clip.create_model(model_name, weights_only=True, require_pretrained=True, **options)
    tokenizer = open_clip.get_tokenizer(model_name)
    settings = dict(model.visual.preprocess_cfg)
    size = _to_square(settings.pop("size"))
    return Parts(
        model=model,
        preprocess=Preprocess.from_open_clip(settings, size),
        image_features=lambda m, pixels: m.encode_image(pixels),
        settings={"model": config, "quick_gelu": options.get("force_quick_gelu", False)},
        tokenize=lambda texts: {"text": tokenizer(texts)},
        text_features=lambda m, inputs: m.encode_text(inputs["text"]),
        tau=float(model.logit_scale.detach().exp()),
    )


# timm


def load_timm(name: str) -> Parts:
    """The parts of a model of timm: a name, a hub id or a folder."""
    timm, data_of, models = (import_module(part) for part in ("timm", "timm.data", "timm.models"))
    if inspect.signature(models.load_state_dict).parameters["weights_only"].default is not True:
        raise UserError(
            f"timm {version('timm')} would run what is in a pickle of weights", hint="`pip install -U timm`"
        )
    path = Path(name).expanduser()
    place = f"local-dir:{path}" if path.is_dir() else f"hf-hub:{name}" if is_hub_id(name) else name
    if place == name and not timm.is_model(name.partition(".")[0]):
        raise unknown_name("model of timm", name, timm.list_models(pretrained=True))
    model = timm.create_model(place, pretrained=True, num_classes=0)
    data = data_of.resolve_model_data_config(model)
    return Parts(
        model=model,
        preprocess=_timm_preprocess(data),
        image_features=lambda m, pixels: m(pixels),
        settings={"model": name if place == name else model.pretrained_cfg.get("architecture"), "data": dict(data)},
    )


def _timm_preprocess(data: Mapping[str, Any]) -> Preprocess:
    """The preprocessing of timm at evaluation as ours."""
    channels, *sides = data["input_size"]
    size, share, mode = _to_square(sides), data.get("crop_pct") or 0.875, data.get("crop_mode") or "center"
    interpolation = data.get("interpolation", "bicubic")
    exact = mode == "center" or (mode == "squash" and share == 1)
    if channels != 3 or not exact or interpolation not in RESAMPLING:
        raise UserError(f"timm's preprocessing of this model is not known: {channels=}, {mode=}, {interpolation=}")
    return Preprocess(
        size=size,
        resize=math.floor(size / share) if mode == "center" else None,
        resample=RESAMPLING[interpolation],
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
        even=mode == "center",
    )


# transformers


def load_transformers(name: str) -> Parts:
    """The parts of a model of transformers: a hub id or a folder."""
    transformers: Any = import_module("transformers")
    folder = _model_folder(name, TRANSFORMERS_FILES)
    if folder is None:
        raise UserError(f"backbone transformers:{name}: no such folder, and not the form of a hub id (owner/name)")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    refuse_code(f"transformers:{name}", config)
    kind = config.get("model_type")
    if kind not in (*DUAL, *CLASS_TOKEN, *POOLED):
        raise unknown_name("type of model for transformers", str(kind), [*DUAL, *CLASS_TOKEN, *POOLED])
    offline: Any = {"trust_remote_code": False, "local_files_only": True}
    model, report = transformers.AutoModel.from_pretrained(
        str(folder), dtype=torch.float32, output_loading_info=True, **offline
    )
    if missing := sorted(key for key in report["missing_keys"] if kind in DUAL or "pooler" not in key):
        raise UserError(f"backbone transformers:{name}: weights lack tensors of the model", details=missing)
    parts: dict[str, Any] = {
        "model": model,
        "preprocess": _transformers_preprocess(read_image_processor(folder)),
        "settings": {"type": kind, "config": {k: v for k, v in config.items() if k != "_name_or_path"}},
    }
    if kind not in DUAL:
        read = _class_token if kind in CLASS_TOKEN else _pooled
        return Parts(**parts, image_features=lambda m, pixels: read(m(pixel_values=pixels)))
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **offline)
    length = model.config.text_config.max_position_embeddings
    padding: Any = {"padding": "max_length" if kind in PADDED else True, "truncation": True, "max_length": length}

    def tokenize(texts: list[str]) -> dict[str, Tensor]:
        return dict(tokenizer(texts, return_tensors="pt", **padding))

    return Parts(
        **parts,
        image_features=lambda m, pixels: _tensor(m.get_image_features(pixel_values=pixels)),
        tokenize=tokenize,
        text_features=lambda m, inputs: _tensor(m.get_text_features(**inputs)),
        tau=float(model.logit_scale.detach().exp()) if hasattr(model, "logit_scale") else USUAL_TAU,
    )


def _tensor(output: Any) -> Tensor:
    """Features of a model: a tensor, or in newer versions the record that holds it."""
    features: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return features


def _class_token(output: Any) -> Tensor:
    features: Tensor = output.last_hidden_state[:, 0]
    return features


def _pooled(output: Any) -> Tensor:
    features: Tensor = output.pooler_output.flatten(1)
    return features


def _transformers_preprocess(raw: Mapping[str, Any]) -> Preprocess:
    """The preprocessing of an image processor, of any of the families that resize and cut out a square."""
    kind = str(raw.get("image_processor_type") or raw.get("feature_extractor_type") or "")
    if kind.startswith("ConvNext"):
        return _convnext_preprocess(raw)
    if not kind.startswith((*SQUEEZING, *CUTTING)):
        raise UserError(f"the preprocessing of this model ({kind or 'unnamed'}) is not known")
    cuts = raw.get("do_center_crop", not kind.startswith(SQUEEZING))
    more = {"image_processor_type": "CLIPImageProcessor", "do_center_crop": bool(cuts)}
    return Preprocess.from_hf({k: v for k, v in raw.items() if v is not None} | more)


def _convnext_preprocess(raw: Mapping[str, Any]) -> Preprocess:
    """ConvNeXt's: a share of the image below 384 px, all of it squeezed from there on."""
    size = int(raw["size"]["shortest_edge"])
    resize = None if size >= 384 else int(size / raw.get("crop_pct", 224 / 256))
    known = ("size", "crop_pct", "image_processor_type", "feature_extractor_type", "do_center_crop", "crop_size")
    rest = {k: v for k, v in raw.items() if k not in known and v is not None}
    square = {"height": size, "width": size}
    how: dict[str, Any] = {"size": square if resize is None else {"shortest_edge": resize}, "crop_size": square}
    return Preprocess.from_hf(rest | how | {"do_center_crop": resize is not None})


def _model_folder(name: str, files: CheckpointFiles) -> Path | None:
    """The folder of a hub id or path; None for a name of a library's list."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    return download(name, files, None, None) if is_hub_id(name) and "@" not in name else None


def _to_square(size: Any) -> int:
    """The side of a square that is given as one number or two."""
    sides = list(size) if isinstance(size, Sequence) else [size]
    if len(set(sides)) != 1:
        raise UserError(f"images of {sides} px; only squares are known")
    return int(sides[0])


# Library -> the module that is imported, its package, and the function that loads a model of it.
LIBRARIES: dict[str, tuple[str, str, Callable[[str], Parts]]] = {
    "open_clip": ("open_clip", "open_clip_torch", load_open_clip),
    "timm": ("timm", "timm", load_timm),
    "transformers": ("transformers", "transformers", load_transformers),
}
