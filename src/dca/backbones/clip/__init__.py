"""CLIP with a ViT or a ResNet as image tower: its towers, tokenizer and checkpoints."""

from dca.backbones.clip.config import VIT_B_16, CLIPConfig, ResNetConfig, TextConfig, VisionConfig
from dca.backbones.clip.model import CLIP
from dca.backbones.clip.tokenizer import Tokenizer

__all__ = ["CLIP", "VIT_B_16", "CLIPConfig", "ResNetConfig", "TextConfig", "Tokenizer", "VisionConfig"]
