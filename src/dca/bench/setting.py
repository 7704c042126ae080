"""What is measured: a backbone, classes, and a DCA model on them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.clip import CLIP, VIT_B_16
from dca.clip.preprocess import Preprocess
from dca.clip.random_weights import initialize
from dca.clip.tokenizer import load_tokenizer
from dca.clip.weights import mini_folder
from dca.core import seeds
from dca.data.class_lists import class_list
from dca.methods.dca import DCA
from dca.methods.interface import Batch, Problem
from dca.methods.shared.intra_class import IntraClass

RANDOM = "random-vit-b-16"


def backbone(name: str, device: torch.device, dtype: torch.dtype) -> CLIP:
    """A backbone on a device; `RANDOM` has the shape of ViT-B/16 and random weights."""
    clip = random_vit_b_16() if name == RANDOM else CLIP.from_pretrained(name)
    return clip.on(device).with_dtype(dtype)


def random_vit_b_16() -> CLIP:
    """A CLIP of the shape of ViT-B/16 with random weights."""
    tokenizer = load_tokenizer(mini_folder(), VIT_B_16.text.context_length)
    size = VIT_B_16.vision.image_size
    transform = Preprocess(size=size, resize=size, resample=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    clip = CLIP(VIT_B_16, tokenizer, transform, RANDOM)
    return initialize(clip, torch.Generator().manual_seed(0)).freeze()


def names_of(count: int) -> tuple[str, ...]:
    """Class names: those of ImageNet, then the same with numbers."""
    known = [name for _, name in class_list("imagenet")]
    return tuple(known[c % len(known)] + (f" {c // len(known)}" if c >= len(known) else "") for c in range(count))


def units(*shape: int, device: torch.device | str = "cpu", seed: int = 0) -> Tensor:
    """Random unit vectors around a common direction."""
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(
        torch.randn(shape[-1], generator=generator) + torch.randn(shape, generator=generator), dim=-1
    ).to(device)


def method_of(clip: CLIP, classes: int, shots: int = 2) -> DCA:
    """DCA for that many classes, ready for training steps; L_in's centres are those of random features."""
    method = DCA.build(clip, Problem(names=names_of(classes), shots=16, seed=1), DCA.Options())
    features = units(classes * shots, clip.config.embed_dim, device=clip.device)
    labels = torch.arange(classes, device=clip.device).repeat_interleave(shots)
    method._intra_class = IntraClass.of(features, labels, method.problem.names, method.problem.shots)
    return method


def batch_of(clip: CLIP, classes: int, size: int) -> Batch:
    """A batch of random pixels."""
    generator, side = torch.Generator().manual_seed(2), clip.config.vision.image_size
    pixels = torch.randn(size, 3, side, side, generator=generator).to(clip.device)
    labels = torch.randint(classes, (size,), generator=generator).to(clip.device)
    return Batch(pixels, labels, seeds.generator(1, "bench"))
