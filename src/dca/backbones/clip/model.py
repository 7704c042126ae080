"""CLIP: a ViT or a ResNet as image tower, and a causal text tower."""

from __future__ import annotations

from pathlib import Path

from dca.backbones.clip.config import CLIPConfig, VisionConfig
from dca.backbones.clip.resnet import ResNetTower
from dca.backbones.clip.text import CausalTextTower
from dca.backbones.clip.tokenizer import Tokenizer
from dca.backbones.clip.vision import VisionTower
from dca.backbones.dual_encoder import DualEncoder
from dca.backbones.preprocess import Preprocess
from dca.core.errors import UserError


class CLIP(DualEncoder):
    """A CLIP with its tokenizer and preprocessing; see `DualEncoder` for what it can do.

    Args:
        config: Sizes of the two towers; those of the image tower say whether it is a ViT or a ResNet.
        tokenizer: Turns text into ids.
        preprocess: Turns images into pixels.
        source: Short name, hub id or folder name, for display and for finding the weights again.

    Attributes:
        visual, text: The two towers.
        logit_scale: log τ, ().

    Example:
        >>> from PIL import Image
        >>> from dca import CLIP
        >>> clip = CLIP.from_pretrained("mini")
        >>> image = clip.encode_image([Image.new("RGB", (64, 64))])
        >>> texts = clip.encode_text(["a photo of a cat.", "a photo of a dog."])
        >>> image.shape == (1, clip.config.embed_dim), texts.shape == (2, clip.config.embed_dim)
        (True, True)
    """

    config: CLIPConfig
    visual: VisionTower | ResNetTower
    text: CausalTextTower
    tokenizer: Tokenizer

    def __init__(self, config: CLIPConfig, tokenizer: Tokenizer, preprocess: Preprocess, source: str = "") -> None:
        visual: VisionTower | ResNetTower
        if isinstance(config.vision, VisionConfig):
            visual = VisionTower(config.vision, config.embed_dim)
        else:
            visual = ResNetTower(config.vision, config.embed_dim)
        super().__init__(visual, CausalTextTower(config.text, config.embed_dim), tokenizer, preprocess, source)
        self.config = config

    @property
    def vit(self) -> VisionTower:
        """The image tower of a CLIP with a ViT.

        Raises:
            UserError: If it is a ResNet.
        """
        if isinstance(self.visual, VisionTower):
            return self.visual
        raise UserError(f"the image tower of {self.source} is a ResNet; a ViT is needed here")

    @classmethod
    def from_pretrained(cls, source: str | Path, *, revision: str | None = None, cache_dir: str | None = None) -> CLIP:
        """Load a frozen CLIP.

        Args:
            source: A short name ("mini", "vit-b-16"), a hub id, a folder or a state dict file.
            revision: Branch, tag or commit of the hub repository.
            cache_dir: Where files from the hub are kept; the hub's own cache by default.

        Returns:
            The backbone on the CPU, frozen, with compute type float32.

        Raises:
            UserError: If there is no such source, or its files are missing or do not fit together.

        Example:
            >>> from dca import CLIP
            >>> clip = CLIP.from_pretrained("mini")
            >>> clip.source, clip.config.vision.image_size
            ('mini', 64)
        """
        from dca.backbones.clip.weights import load_clip

        return load_clip(source, revision=revision, cache_dir=cache_dir)
