"""The frozen backbone. Knows no method, no dataset, no training."""

from dca.clip.config import VIT_B_16, CLIPConfig, TextConfig, VisionConfig
from dca.clip.model import CLIP
from dca.clip.preprocess import Preprocess
from dca.clip.tokenizer import Tokenizer
from dca.clip.tokens import ExtraTokens

__all__ = [
    "CLIP",
    "CLIPConfig",
    "ExtraTokens",
    "Preprocess",
    "TextConfig",
    "Tokenizer",
    "VIT_B_16",
    "VisionConfig",
]
