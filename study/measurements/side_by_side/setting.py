"""What both sides are given: a small CLIP with random weights, images, labels and class names.

Our methods get it in float32, as their users do, the authors' code in float64: so what differs is our rounding.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from dca.backbones.clip import CLIP, CLIPConfig, TextConfig, VisionConfig
from dca.backbones.clip.weights import initialize_weights, openai_source
from dca.core import seeds
from dca.methods.base import Batch, Problem

NAMES = ("cat", "tree house", "red car", "dog", "blue bird")
SHOTS, VIEWS = 4, 3
# Three blocks and 36 patches.
BLOCKS, SIZE, PATCH = 3, 96, 16


@dataclass(frozen=True)
class Images:
    """Images as a `Support`: evaluation views (N, 3, S, S), augmented views (V, N, 3, S, S) and labels (N,)."""

    clip: CLIP
    pixels: Tensor
    augmented: Tensor
    labels: Tensor
    validation: Images | None = None
    nested: None = None

    @property
    def groups(self) -> Tensor:
        """No image is a copy of another."""
        return torch.arange(len(self.labels))

    def map(self, encode: Callable[[Tensor], Tensor], *, views: int = 0, crop_low: float = 0.0) -> Tensor:
        """`encode` of every image or view, without gradients."""
        with torch.no_grad():
            return encode(self.augmented[:views].flatten(0, 1) if views else self.pixels)

    def frozen_features(self, *, views: int = 0, mirrored: bool = False, crop_low: float = 0.0) -> Tensor:
        """Features of the frozen backbone, not normalised."""
        found = self.map(lambda x: self.clip.encode_image(x.flip(-1) if mirrored else x), views=views)
        return found.to(self.pixels.dtype)

    def exactly(self, clip: CLIP) -> Images:
        """The same images in float64, encoded by a CLIP in float64."""
        validation = None if self.validation is None else self.validation.exactly(clip)
        return Images(clip, self.pixels.double(), self.augmented.double(), self.labels, validation)

    def loader(self, views: int = 0) -> Loader:
        """All images in one batch, in float64; with views, each pass gives the next augmented view."""
        passes = self.augmented[:views] if views else self.pixels[None]
        return Loader([(pixels.double(), self.labels) for pixels in passes])


class Loader(Sequence[Any]):
    """Stands for a DataLoader of one batch: pass i gives batch i, and from the start again."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self.batches, self.passes = batches, 0

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        return self.batches[0]

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        yield self.batches[(self.passes - 1) % len(self.batches)]


@dataclass(frozen=True)
class Setting:
    """A CLIP and a problem of five classes with training, validation and test images."""

    clip: CLIP
    train: Images
    test: Images

    @cached_property
    def exact(self) -> Setting:
        """The same in float64."""
        clip = copy.deepcopy(self.clip).double()
        return Setting(clip, self.train.exactly(clip), self.test.exactly(clip))

    def problem(self, dataset: str = "") -> Problem:
        """The problem as our methods are given it."""
        return Problem(names=NAMES, shots=SHOTS, seed=1, dataset=dataset, rules="strict")

    def batch(self, inputs: Tensor | None = None, labels: Tensor | None = None) -> Batch:
        """All training images, or other inputs, as one batch; its random stream is always the same."""
        inputs = self.train.pixels if inputs is None else inputs
        return Batch(inputs, self.train.labels if labels is None else labels, seeds.generator(1, "side by side"))

    def noise(self, like: Tensor, scale: float, stream: str) -> Tensor:
        """Random values in the shape of a tensor."""
        return scale * torch.randn(like.shape, generator=seeds.generator(1, "noise", stream), dtype=torch.float32)

    @cached_property
    def openai_state(self) -> dict[str, Tensor]:
        """The weights under the names of OpenAI's CLIP, as the authors' copies of it have them."""
        state = self.exact.clip.state_dict()
        return {k: v for name, tensor in state.items() for k, v in openai_source(name).write(tensor).items()}

    def authors_clip(self, build_model: Callable[..., Any], *args: Any) -> Any:
        """CLIP as the authors' own copy of its code builds it, frozen."""
        model: nn.Module = build_model(dict(self.openai_state), *args).double().eval()
        return model.requires_grad_(False)

    def tokenize(self, texts: str | Sequence[str], *args: Any, **kwargs: Any) -> Tensor:
        """Stands for `clip.tokenize`: ids of the tokenizer of this CLIP, padded with zeros."""
        rows = self.clip.tokenizer([texts] if isinstance(texts, str) else list(texts))
        ids = torch.zeros(len(rows), self.clip.config.text.context_length, dtype=torch.long)
        for row, found in zip(ids, rows, strict=True):
            row[: len(found)] = torch.tensor(found)
        return ids


@dataclass(frozen=True)
class Widths:
    """Sizes of the small CLIP; those of ViT-B/16, which two repositories have as constants."""

    vision: int = 768
    text: int = 512
    joint: int = 512


def small_clip(widths: Widths, generator: torch.Generator) -> CLIP:
    """A CLIP with random weights whose features differ from image to image, τ = 100."""
    mini = CLIP.from_pretrained("mini")
    words, one, other = mini.config.text, widths.vision, widths.text
    # OpenAI's code has heads of width 64.
    config = CLIPConfig(
        vision=VisionConfig(
            width=one, layers=BLOCKS, heads=one // 64, hidden=4 * one, activation="quick_gelu", image_size=SIZE,
            patch_size=PATCH,
        ),
        text=TextConfig(
            width=other, layers=BLOCKS, heads=other // 64, hidden=4 * other, activation="quick_gelu",
            vocab_size=words.vocab_size, context_length=words.context_length, sot_id=words.sot_id, eot_id=words.eot_id,
        ),
        embed_dim=widths.joint,
    )  # fmt: skip
    clip = initialize_weights(CLIP(config, mini.tokenizer, mini.preprocess, "random"), generator)
    with torch.no_grad():
        for name, tensor in clip.named_parameters():
            noise = torch.randn(tensor.shape, generator=generator)
            if name.endswith("bias"):
                tensor.copy_(0.1 * noise)
            elif ".ln_" in name:
                tensor.add_(0.2 * noise)
            elif "blocks" in name:
                tensor.mul_(2)
        clip.vit.cls.mul_(0.1)
        clip.logit_scale.fill_(math.log(100.0))
    return clip.freeze()


def make_setting(widths: Widths | None = None) -> Setting:
    """The setting of every comparison."""
    generator = seeds.generator(1, "setting")
    clip = small_clip(widths or Widths(), generator)
    centres = torch.randn(len(NAMES), 3, SIZE, SIZE, generator=generator)

    def drawn(per_class: int, views: int, validation: Images | None = None) -> Images:
        labels = torch.arange(len(NAMES)).repeat(per_class)
        noise = torch.randn(1 + views, len(labels), 3, SIZE, SIZE, generator=generator)
        pixels = centres[labels] + noise
        return Images(clip, pixels[0], pixels[1:], labels, validation)

    return Setting(clip, drawn(SHOTS, VIEWS, validation=drawn(3, 0)), drawn(4, 0))
