"""SigLIP and SigLIP 2 of fixed resolution: their towers, tokenizers and checkpoints."""

from dca.backbones.siglip.config import SigLIPConfig, SigLIPTextConfig
from dca.backbones.siglip.model import SigLIP
from dca.backbones.siglip.tokenizer import SigLIPTokenizer

__all__ = ["SigLIP", "SigLIPConfig", "SigLIPTextConfig", "SigLIPTokenizer"]
