"""SigLIP (Zhai et al., ICCV 2023) and SigLIP 2 (Tschannen et al., 2025) of fixed resolution.

They were trained to tell for every pair of an image and a text whether it belongs together:

    p(pair) = sigmoid( τ cos(f, t) + b ),    τ = exp(logit_scale)

A method reads τ as it reads CLIP's. The bias b is the same for all classes, so it cancels in the softmax over classes
that all methods use; it is loaded with the weights and enters the identity of the backbone, nothing else.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from dca.backbones.dual_encoder import DualEncoder
from dca.backbones.preprocess import Preprocess
from dca.backbones.siglip.config import SigLIPConfig
from dca.backbones.siglip.text import SigLIPTextTower
from dca.backbones.siglip.tokenizer import SigLIPTokenizer
from dca.backbones.siglip.vision import SigLIPVisionTower


class SigLIP(DualEncoder):
    """A SigLIP with its tokenizer and preprocessing; see `DualEncoder` for what it can do.

    Args:
        config: Sizes of the two towers.
        tokenizer: Turns text into ids.
        preprocess: Turns images into pixels.
        source: Hub id or folder name, for display and for finding the weights again.

    Attributes:
        visual, text: The two towers.
        logit_scale: log τ, ().
        logit_bias: b, ().
    """

    config: SigLIPConfig
    visual: SigLIPVisionTower
    text: SigLIPTextTower
    tokenizer: SigLIPTokenizer

    def __init__(
        self, config: SigLIPConfig, tokenizer: SigLIPTokenizer, preprocess: Preprocess, source: str = ""
    ) -> None:
        text = SigLIPTextTower(config.text, config.embed_dim, tokenizer.pad_id)
        super().__init__(SigLIPVisionTower(config.vision), text, tokenizer, preprocess, source)
        self.config = config
        self.logit_bias = nn.Parameter(torch.zeros(()))

    @classmethod
    def from_pretrained(
        cls, source: str | Path, *, revision: str | None = None, cache_dir: str | None = None
    ) -> SigLIP:
        """Load a frozen SigLIP.

        Args:
            source: A hub id or a folder, in the layout of transformers or of open_clip.
            revision: Branch, tag or commit of the hub repository.
            cache_dir: Where files from the hub are kept; the hub's own cache by default.

        Returns:
            The backbone on the CPU, frozen, with compute type float32.

        Raises:
            UserError: If there is no such source, or its files are missing or do not fit together.
        """
        from dca.backbones.siglip.weights import load_siglip

        return load_siglip(source, revision=revision, cache_dir=cache_dir)
