"""The frozen backbone. It does not depend on methods, datasets or training."""

from dca.clip.blocks import Update
from dca.clip.config import VIT_B_16, CLIPConfig, TextConfig, VisionConfig
from dca.clip.model import CLIP
from dca.clip.preprocess import Preprocess
from dca.clip.tokenizer import Tokenizer
from dca.clip.tokens import ExtraTokens
from dca.clip.vision import Tap

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
