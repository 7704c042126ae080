"""Preprocessing: PIL image -> pixels, as the checkpoint requires."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dca.backbones.config_keys import HF_PROCESSOR, OPEN_CLIP_PREPROCESS, Section, refuse_unknown_keys
from dca.core.errors import UserError
from dca.core.files import read_json
from dca.core.hints import choose_backbone, combine
from dca.images.decode import Crop, center_crop

# transformers 5 writes a processor into one file, older ones the image part into another.
PROCESSOR_FILE, IMAGE_PROCESSOR_FILE = "processor_config.json", "preprocessor_config.json"
OPEN_CLIP_CONFIG = "open_clip_config.json"
MAX_SIDE = 1 << 14
OPENAI_MEAN, OPENAI_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
# Keys of a `preprocessor_config.json` that are read.
HF_READ = (
    "size", "crop_size", "image_mean", "image_std", "resample", "do_center_crop", "do_resize", "do_rescale",
    "do_normalize", "image_processor_type", "feature_extractor_type",
)  # fmt: skip
SIGLIP_PROCESSOR = "SiglipImageProcessor"
RESAMPLING = {"bilinear": 2, "bicubic": 3, "lanczos": 1, "nearest": 0}


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """Resize the short side, cut the centre, scale to [0, 1], normalise.

    resize: length of the short side after resizing, or None to squeeze the image to a square.
    size: side of the square that the image tower takes.
    resample: Pillow's filter number.
    even: where the margins around the cut cannot be equal, the left and upper one is the even number of the two, as
        torchvision rounds (OpenAI, open_clip, timm); otherwise the smaller one (transformers).
    """

    size: int
    resize: int | None
    resample: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    even: bool = False

    def __post_init__(self) -> None:
        sides = [self.size] if self.resize is None else [self.size, self.resize]
        if not all(1 <= side <= MAX_SIDE for side in sides):
            raise UserError(f"preprocessing gives images of {sides} px; 1 to {MAX_SIDE} expected")
        if self.resample not in set(Image.Resampling):
            raise UserError(f"preprocessing asks for filter number {self.resample}, which Pillow does not have")
        if not all(map(math.isfinite, (*self.mean, *self.std))) or not all(self.std):
            raise UserError(f"preprocessing normalises by mean {self.mean} and std {self.std}: finite, std not 0")
        if self.resize is not None and self.resize < self.size:
            raise UserError(f"preprocessing resizes to {self.resize} px and then cuts {self.size} px out of it")

    @property
    def parts(self) -> tuple[Preprocess]:
        """The preprocessing of each encoder: of one, this."""
        return (self,)

    @property
    def crops(self) -> tuple[Crop]:
        """Size, resize, resample and even of each encoder's crop, for programs that make it elsewhere."""
        return ((self.size, self.resize, int(self.resample), self.even),)

    @property
    def coverage(self) -> float:
        """Share of an image's short side that the crop covers."""
        return 1.0 if self.resize is None else self.size / self.resize

    def split(self, pixels: Tensor) -> list[Tensor]:
        """Pixels (B, 3, S, S) of each encoder."""
        return [pixels]

    @property
    def values(self) -> int:
        """Number of values of one image."""
        return 3 * self.size**2

    def crop(self, image: Image.Image) -> NDArray[np.uint8]:
        """The square that the image tower takes: uint8 (3, size, size)."""
        return center_crop(image, self.size, self.resize, self.resample, self.even)

    def normalize(self, pixels: Tensor) -> Tensor:
        """uint8, or float in [0, 1], (B, 3, S, S) -> normalised float32, on the same device."""
        scaled = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels.float()
        mean = torch.tensor(self.mean, device=pixels.device).view(3, 1, 1)
        std = torch.tensor(self.std, device=pixels.device).view(3, 1, 1)
        return (scaled - mean) / std

    def __call__(self, images: Sequence[Image.Image]) -> Tensor:
        """PIL images -> pixels (B, 3, S, S), on the CPU."""
        return self.normalize(torch.from_numpy(np.stack([self.crop(image) for image in images])))

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionary, for records; `even` is in it only where it is true."""
        values = asdict(self)
        return values if self.even else {name: value for name, value in values.items() if name != "even"}

    @classmethod
    def of_openai(cls, size: int) -> Preprocess:
        """What OpenAI's code does for an image tower that takes this size."""
        return cls(size=size, resize=size, resample=RESAMPLING["bicubic"], mean=OPENAI_MEAN, std=OPENAI_STD, even=True)

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], adapter: str = "transformers:NAME") -> Preprocess:
        """Read a Hugging Face `preprocessor_config.json`; `adapter` is the backbone for what this reader refuses."""
        refuse_unknown_keys(IMAGE_PROCESSOR_FILE, [Section("", raw, HF_READ, HF_PROCESSOR)], adapter)
        kind = raw.get("image_processor_type") or raw.get("feature_extractor_type") or "CLIPImageProcessor"
        if not str(kind).startswith(("CLIP", SIGLIP_PROCESSOR)):
            raise UserError(
                f"{IMAGE_PROCESSOR_FILE} is that of another family of models ({kind})",
                hint=combine("let transformers run it", choose_backbone(adapter)),
            )
        missing = [k for k in ("size", "image_mean", "image_std", "resample") if k not in raw]
        # Those of SigLIP squeeze images to a square, and their files say nothing of a crop.
        crops = raw.get("do_center_crop", not str(kind).startswith(SIGLIP_PROCESSOR))
        if crops and "crop_size" not in raw:
            missing.append("crop_size")
        if missing:
            raise UserError(
                f"preprocessor_config.json lacks {', '.join(missing)}", hint="take the checkpoint's own file"
            )
        off = [k for k in ("do_resize", "do_rescale", "do_normalize") if raw.get(k) is False]
        if off:
            raise UserError(f"preprocessor_config.json switches {', '.join(off)} off, which no CLIP does")
        shortest, exact = _hf_size(raw["size"])
        size = _hf_side(raw["crop_size"]) if crops else exact
        if size is None or (exact is not None and exact != size):
            raise UserError("preprocessor_config.json does not lead to a square image", hint="CLIP towers take squares")
        return cls(
            size=size,
            resize=shortest,
            resample=int(raw["resample"]),
            mean=_to_rgb(raw["image_mean"]),
            std=_to_rgb(raw["image_std"]),
        )

    def to_hf(self) -> dict[str, Any]:
        """The `preprocessor_config.json` that `from_hf` reads."""
        size = {"height": self.size, "width": self.size}
        return {
            "image_processor_type": "CLIPImageProcessor",
            "do_resize": True,
            "size": size if self.resize is None else {"shortest_edge": self.resize},
            "resample": self.resample,
            "do_center_crop": True,
            "crop_size": size,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "do_convert_rgb": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }

    @classmethod
    def from_open_clip(cls, raw: Mapping[str, Any], size: int, adapter: str = "open_clip:NAME@TAG") -> Preprocess:
        """Read the `preprocess_cfg` of an `open_clip_config.json`.

        size: image size of the tower, which open_clip takes whatever the file says. adapter: the backbone for what this
        reader refuses.
        """
        read = {"size", "mean", "std", "resize_mode", "interpolation"}
        section = Section("preprocess_cfg", raw, read, OPEN_CLIP_PREPROCESS)
        refuse_unknown_keys(OPEN_CLIP_CONFIG, [section], adapter)
        missing = [k for k in ("mean", "std") if k not in raw]
        if missing:
            raise UserError(f"open_clip_config.json lacks preprocess_cfg.{', preprocess_cfg.'.join(missing)}")
        mode = raw.get("resize_mode", "shortest")
        if mode not in ("shortest", "squash"):
            raise UserError(
                f"{OPEN_CLIP_CONFIG} asks for resize_mode '{mode}'; only shortest and squash are known",
                hint=combine("let open_clip run it", choose_backbone(adapter)),
            )
        interpolation = raw.get("interpolation", "bicubic")
        if interpolation not in RESAMPLING:
            raise UserError(
                f"{OPEN_CLIP_CONFIG} asks for interpolation '{interpolation}'; known: {', '.join(RESAMPLING)}"
            )
        return cls(
            size=size,
            resize=size if mode == "shortest" else None,
            resample=RESAMPLING[interpolation],
            mean=_to_rgb(raw["mean"]),
            std=_to_rgb(raw["std"]),
            even=mode == "shortest",
        )


def read_image_processor(folder: Path) -> dict[str, Any]:
    """The preprocessing that a Hugging Face folder states, as `Preprocess.from_hf` takes it.

    Raises:
        UserError: If the folder has no such file.
    """
    if (folder / IMAGE_PROCESSOR_FILE).is_file():
        return read_json(folder / IMAGE_PROCESSOR_FILE)
    if (folder / PROCESSOR_FILE).is_file() and "image_processor" in (raw := read_json(folder / PROCESSOR_FILE)):
        return dict(raw["image_processor"])
    raise UserError(
        f"{folder}: no {IMAGE_PROCESSOR_FILE}, so how images become pixels is not known",
        hint=f"put the checkpoint's {IMAGE_PROCESSOR_FILE} (or {PROCESSOR_FILE}, {OPEN_CLIP_CONFIG}) there",
    )


def _hf_size(size: Any) -> tuple[int | None, int | None]:
    """(short side, exact side): a number or {"shortest_edge"} is the first, a square the second."""
    if isinstance(size, int):
        return size, None
    if "shortest_edge" in size:
        return int(size["shortest_edge"]), None
    return None, _hf_side(size)


def _hf_side(size: Any) -> int | None:
    if isinstance(size, int):
        return size
    return int(size["height"]) if size.get("height") == size.get("width") else None


def _to_rgb(values: Sequence[float]) -> tuple[float, float, float]:
    r, g, b = (float(v) for v in values)
    return r, g, b
