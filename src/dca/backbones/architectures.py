"""Named architectures of CLIP, for files of tensors that do not say their sizes, and OpenAI's models by name.

Architectures have the names and the meaning that open_clip gives them: `ViT-B-16` computes GELU, `ViT-B-16-quickgelu`
QuickGELU, with which OpenAI, DFN and MetaCLIP trained. OpenAI's own files say what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dca.core.errors import UserError, unknown_name

QUICK = "-quickgelu"
# Where OpenAI's code keeps what it downloads.
OPENAI_CACHE = Path("~/.cache/clip")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Sizes of a CLIP whose text tower is OpenAI's but for its width and depth.

    embed_dim: D. image_size: side of an image. layers: of the image tower; of a ResNet, those of its four stages.
    width: of the image tower. patch_size: of a ViT. head_width: width of one of its attention heads. mlp_ratio: hidden
    width of its MLPs over its width. text_width, text_layers: of the text tower, whose heads are 64 wide.
    """

    embed_dim: int
    image_size: int = 224
    layers: int | tuple[int, ...]
    width: int
    patch_size: int | None = None
    head_width: int = 64
    mlp_ratio: float = 4.0
    text_width: int
    text_layers: int = 12

    def to_open_clip(self, *, quick_gelu: bool) -> dict[str, Any]:
        """The `model_cfg` of an `open_clip_config.json`."""
        vision: dict[str, Any] = {"image_size": self.image_size, "width": self.width}
        if isinstance(self.layers, tuple):
            vision |= {"layers": list(self.layers)}
        else:
            vision |= {"layers": self.layers, "patch_size": self.patch_size}
            vision |= {"head_width": self.head_width, "mlp_ratio": self.mlp_ratio}
        text = {"context_length": 77, "vocab_size": 49408, "width": self.text_width, "heads": self.text_width // 64}
        text["layers"] = self.text_layers
        return {"embed_dim": self.embed_dim, "quick_gelu": quick_gelu, "vision_cfg": vision, "text_cfg": text}


ARCHITECTURES: Mapping[str, Architecture] = {
    "ViT-B-32": Architecture(embed_dim=512, layers=12, width=768, patch_size=32, text_width=512),
    "ViT-B-32-256": Architecture(
        embed_dim=512, image_size=256, layers=12, width=768, patch_size=32, text_width=512
    ),
    "ViT-B-16": Architecture(embed_dim=512, layers=12, width=768, patch_size=16, text_width=512),
    "ViT-B-16-plus-240": Architecture(
        embed_dim=640, image_size=240, layers=12, width=896, patch_size=16, text_width=640
    ),
    "ViT-L-14": Architecture(embed_dim=768, layers=24, width=1024, patch_size=14, text_width=768),
    "ViT-L-14-336": Architecture(
        embed_dim=768, image_size=336, layers=24, width=1024, patch_size=14, text_width=768
    ),
    "ViT-H-14": Architecture(
        embed_dim=1024, layers=32, width=1280, patch_size=14, head_width=80, text_width=1024, text_layers=24
    ),
    "ViT-H-14-378": Architecture(
        embed_dim=1024, image_size=378, layers=32, width=1280, patch_size=14, head_width=80, text_width=1024,
        text_layers=24,
    ),
    "ViT-g-14": Architecture(
        embed_dim=1024, layers=40, width=1408, patch_size=14, head_width=88, mlp_ratio=4.3637, text_width=1024,
        text_layers=24,
    ),
    "ViT-bigG-14": Architecture(
        embed_dim=1280, layers=48, width=1664, patch_size=14, head_width=104, mlp_ratio=4.9231, text_width=1280,
        text_layers=32,
    ),
    "RN50": Architecture(embed_dim=1024, layers=(3, 4, 6, 3), width=64, text_width=512),
    "RN101": Architecture(embed_dim=512, layers=(3, 4, 23, 3), width=64, text_width=512),
    "RN50x4": Architecture(embed_dim=640, image_size=288, layers=(4, 6, 10, 6), width=80, text_width=640),
    "RN50x16": Architecture(embed_dim=768, image_size=384, layers=(6, 8, 18, 8), width=96, text_width=768),
    "RN50x64": Architecture(embed_dim=1024, image_size=448, layers=(3, 15, 36, 10), width=128, text_width=1024),
}  # fmt: skip


@dataclass(frozen=True)
class OpenAIModel:
    """A file of OpenAI, as its code downloads it: name, sha256, and a hub repository with the same weights."""

    file: str
    sha256: str
    repository: str

    @property
    def path(self) -> Path:
        """Where OpenAI's code puts it."""
        return OPENAI_CACHE.expanduser() / self.file


# By the names that people type (`clip.available_models()`); the address of each file contains its sha256.
OPENAI_MODELS: Mapping[str, OpenAIModel] = {
    "ViT-B/32": OpenAIModel(
        "ViT-B-32.pt", "40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af",
        "openai/clip-vit-base-patch32",
    ),
    "ViT-B/16": OpenAIModel(
        "ViT-B-16.pt", "5806e77cd80f8b59890b7e101eabd078d9fb84e6937f9e85e4ecb61988df416f",
        "openai/clip-vit-base-patch16",
    ),
    "ViT-L/14": OpenAIModel(
        "ViT-L-14.pt", "b8cca3fd41ae0c99ba7e8951adf17d267cdb84cd88be6f7c2e0eca1737a03836",
        "openai/clip-vit-large-patch14",
    ),
    "ViT-L/14@336px": OpenAIModel(
        "ViT-L-14-336px.pt", "3035c92b350959924f9f00213499208652fc7ea050643e8b385c2dac08641f02",
        "openai/clip-vit-large-patch14-336",
    ),
    "RN50": OpenAIModel(
        "RN50.pt", "afeb0e10f9e5a86da6080e35cf09123aca3b358a0c3e3b6c78a7b63bc04b6762", "timm/resnet50_clip.openai"
    ),
    "RN101": OpenAIModel(
        "RN101.pt", "8fa8567bab74a42d41c5915025a8e4538c3bdbe8804a470a72f30b0d94fab599", "timm/resnet101_clip.openai"
    ),
    "RN50x4": OpenAIModel(
        "RN50x4.pt", "7e526bd135e493cef0776de27d5f42653e6b4c8bf9e0f653bb11773263205fdd", "timm/resnet50x4_clip.openai"
    ),
    "RN50x16": OpenAIModel(
        "RN50x16.pt", "52378b407f34354e150460fe41077663dd5b39c54cd0bfd2b27167a4a06ec9aa",
        "timm/resnet50x16_clip.openai",
    ),
    "RN50x64": OpenAIModel(
        "RN50x64.pt", "be1cfb55d75a9666199fb2206c106743da0f6468c9d327f3e0d0a543a9919d9c",
        "timm/resnet50x64_clip.openai",
    ),
}  # fmt: skip


def list_architectures() -> list[str]:
    """All names, those with QuickGELU behind those without."""
    return [*ARCHITECTURES, *(f"{name}{QUICK}" for name in ARCHITECTURES)]


def join_architecture(architecture: str, backbone: str) -> str:
    """ARCHITECTURE:FILE, the name of a backbone whose file of tensors does not say its sizes.

    Raises:
        UserError: If there is no such architecture, or the backbone is no file.
    """
    if architecture.removesuffix(QUICK) not in ARCHITECTURES:
        raise unknown_name("architecture", architecture, list_architectures())
    if not Path(backbone).expanduser().is_file():
        raise UserError(f"an architecture is named for a file of tensors, and {backbone} is none")
    return f"{architecture}:{backbone}"


def split_architecture(name: str) -> tuple[str | None, str]:
    """ARCHITECTURE:FILE in its two parts; None for a backbone that names no architecture.

    >>> split_architecture("ViT-B-16-quickgelu:weights.pt")
    ('ViT-B-16-quickgelu', 'weights.pt')
    >>> split_architecture("weights.pt")
    (None, 'weights.pt')
    """
    first, colon, rest = name.partition(":")
    known = first.removesuffix(QUICK) in ARCHITECTURES
    return (first, rest) if colon and rest and known else (None, name)
