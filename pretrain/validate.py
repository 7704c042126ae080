"""Zero-shot accuracy on the validation images of a run."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pretrain.corpus import Corpus
from pretrain.state import State
from pretrain.texts import token_ids
from pretrain.towers import encode_padded, encode_patches


@torch.no_grad()
def validate(corpus: Corpus, state: State, batch: int = 500) -> float:
    """Percentage of validation images whose own name is the nearest, with averaged weights."""
    own = {name: p.detach().clone() for name, p in state.clip.named_parameters()}
    for name, parameter in state.clip.named_parameters():
        parameter.copy_(state.average[name])
    try:
        device = state.clip.device
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            classes, labels = _classes(corpus)
            ids, eot = token_ids(corpus.tables, classes, state.clip.config.text.context_length, _eot(state))
            texts = encode_padded(state.clip.text, ids, eot)
            right = 0
            for start in range(0, len(labels), batch):
                images = _encode(corpus.validation_images[start : start + batch], state)
                right += int(((images @ texts.T).argmax(1) == labels[start : start + batch]).sum())
    finally:
        for name, parameter in state.clip.named_parameters():
            parameter.copy_(own[name])
    return 100 * right / len(labels)


def _eot(state: State) -> int:
    return state.clip.config.text.eot_id


def _classes(corpus: Corpus) -> tuple[Tensor, Tensor]:
    """The first wording of each class (C,), and the class of each image (N,)."""
    first = corpus.tables["members"][corpus.tables["group_start"][corpus.validation_groups].long()].long()
    keys, labels = torch.unique(corpus.tables["keys"][first], return_inverse=True)
    meanings = torch.zeros_like(keys).scatter(0, labels, first)
    return corpus.tables["wordings"][corpus.tables["ranges"][meanings, 0, 0].long()].long(), labels


def _encode(images: Tensor, state: State) -> Tensor:
    """Features (B, D) of whole images (B, 3, S, S) uint8."""
    size = state.clip.preprocess.size
    pixels = F.interpolate(images.float(), size=(size, size), mode="bicubic", antialias=True).clamp(0, 255) / 255
    rng = torch.Generator(images.device)
    features = encode_patches(state.clip.vit, state.clip.preprocess.normalize(pixels), 1.0, rng)
    return F.normalize(features, dim=-1)
