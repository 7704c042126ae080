"""The frozen backbone. It does not depend on methods, datasets or training."""

from dca.backbones.clip.blocks import Update
from dca.backbones.clip.config import VIT_B_16, CLIPConfig, TextConfig, VisionConfig
from dca.backbones.clip.model import CLIP
from dca.backbones.clip.preprocess import Preprocess
from dca.backbones.clip.tokenizer import Tokenizer
from dca.backbones.clip.vision import ExtraTokens, Tap

__all__ = [
    "CLIP",
    "CLIPConfig",
    "ExtraTokens",
    "Preprocess",
    "Tap",
    "TextConfig",
    "Tokenizer",
    "Update",
    "VIT_B_16",
    "VisionConfig",
]
