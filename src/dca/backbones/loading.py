"""Encoders by the names that people give to `--backbone`: one, several for a pool, or "auto"."""

from __future__ import annotations

import os
from pathlib import Path

from dca.backbones import efficientnet_lite
from dca.backbones.architectures import OPENAI_MODELS, split_architecture
from dca.backbones.clip import CLIP
from dca.backbones.clip.weights import FILES
from dca.backbones.encoder import Encoder
from dca.backbones.siglip import SigLIP
from dca.backbones.siglip.weights import is_siglip
from dca.backbones.sources import (
    ADAPTED,
    ADAPTERS,
    AUTO,
    MINI,
    PHOTO_ENCODER,
    SEPARATOR,
    find_checkpoint,
    split_prefix,
)
from dca.core.errors import UserError

# A person's own default.
VARIABLE = "DCA_BACKBONE"


def default_backbone() -> str:
    """What "auto" stands for: DCA_BACKBONE, or `mini` and the photo encoder, where its package is installed."""
    if own := os.environ.get(VARIABLE, "").strip():
        return own
    return f"{MINI}{SEPARATOR}{PHOTO_ENCODER}" if efficientnet_lite.is_installed(PHOTO_ENCODER) else MINI


def split_names(source: str | Path) -> tuple[str, ...]:
    """The names of the encoders that a backbone consists of.

    Raises:
        UserError: If a name is empty or comes twice.

    >>> split_names("mini, efficientnet-lite0")
    ('mini', 'efficientnet-lite0')
    """
    text = str(source)
    if text == AUTO:
        text = default_backbone()
        if text == AUTO:
            raise UserError(f"{VARIABLE} is {AUTO}, which stands for its value", hint=f"unset {VARIABLE}")
    if SEPARATOR not in text or Path(text).expanduser().exists():
        return (text,)
    names = tuple(part.strip() for part in text.split(SEPARATOR))
    if not all(names) or len(set(names)) < len(names):
        raise UserError(f"backbone {text}: names of different encoders expected, with commas between them")
    return names


def load_encoder(name: str | Path) -> Encoder:
    """One encoder on the CPU, by short name, hub id, folder or file, or through another library (LIBRARY:NAME).

    Raises:
        UserError: If there is no such encoder, or its files are missing or do not fit together.
    """
    name = ADAPTED.get(str(name), name)
    if split_prefix(str(name))[0] in ADAPTERS:
        from dca.backbones.adapters import LibraryEncoder

        return LibraryEncoder.from_pretrained(str(name))
    if str(name) in efficientnet_lite.VARIANTS:
        return efficientnet_lite.EfficientNetLite.from_pretrained(str(name))
    is_clip = split_architecture(str(name))[0] is not None or str(name) in OPENAI_MODELS
    if not is_clip and is_siglip(find_checkpoint(name, FILES).path):
        return SigLIP.from_pretrained(name)
    return CLIP.from_pretrained(name)
