"""CLIP with a ViT image tower: its towers, tokenizer and checkpoints."""

from dca.backbones.clip.blocks import Update
from dca.backbones.clip.config import VIT_B_16, CLIPConfig, TextConfig, VisionConfig
from dca.backbones.clip.model import CLIP
from dca.backbones.clip.tokenizer import Tokenizer
from dca.backbones.clip.vision import BlockCallback, ExtraTokens

__all__ = [
    "CLIP",
    "VIT_B_16",
    "BlockCallback",
    "CLIPConfig",
    "ExtraTokens",
    "TextConfig",
    "Tokenizer",
    "Update",
    "VisionConfig",
]
