"""CLIP: an image tower and a text tower, the logit scale, and the tokenizer and preprocessing of a checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from dca.backbones.clip.blocks import Update, group_updates
from dca.backbones.clip.config import VIT_B_16, CLIPConfig
from dca.backbones.clip.text import TextTower
from dca.backbones.clip.tokenizer import Tokenizer
from dca.backbones.clip.vision import BlockCallback, ExtraTokens, VisionTower
from dca.backbones.encoder import Ability, Encoder
from dca.backbones.preprocess import Preprocess
from dca.backbones.state_dict import hash_backbone
from dca.core.device import compute_in

if TYPE_CHECKING:
    from PIL import Image

# N strings, ids (N, T), or N sequences of ids.
Texts = Sequence[str] | Tensor | Sequence[Sequence[int]]


class CLIP(Encoder):
    """A dual encoder with its tokenizer and preprocessing.

    Encoding changes nothing in the object: extra tokens, updates of layers and the compute type are
    arguments of one call, so several methods and threads can share a CLIP. Features are float32 and not
    normalised. Weights are float32; the towers compute in `dtype` (autocast), or in `feature_dtype` where nothing
    learned takes part: images and texts without extra tokens and updates, and the parts of the image tower.

    Args:
        config: Sizes of the two towers.
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

    abilities: ClassVar[frozenset[Ability]] = frozenset(Ability)
    preprocess: Preprocess

    def __init__(self, config: CLIPConfig, tokenizer: Tokenizer, preprocess: Preprocess, source: str = "") -> None:
        super().__init__()
        self.config = config
        self.tokenizer = tokenizer
        self.preprocess = preprocess
        self.source = source
        self.visual = VisionTower(config.vision, config.embed_dim)
        self.text = TextTower(config.text, config.embed_dim)
        self.logit_scale = nn.Parameter(torch.zeros(()))
        self._dtype = self._feature_dtype = torch.float32
        self._tau: float | None = None
        # A list, so that objects made by `with_dtype` share the digest whichever of them computes it.
        self._digest: list[str] = []

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

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.logit_scale.device

    @property
    def feature_dim(self) -> int:
        """D, the size of the space that images and texts share."""
        return self.config.embed_dim

    @property
    def floats_per_image(self) -> int:
        """Rows of the image tower times the width of its hidden layer."""
        return (1 + self.config.vision.patches) * self.config.vision.hidden

    @property
    def patches_per_side(self) -> int:
        """Patches of the image tower."""
        return self.config.vision.image_size // self.config.vision.patch_size

    def describe(self) -> dict[str, Any]:
        """Sizes of both towers."""
        return self.config.to_dict()

    @property
    def dtype(self) -> torch.dtype:
        """The type in which the towers compute unless a call asks for another one."""
        return self._dtype

    @property
    def feature_dtype(self) -> torch.dtype:
        """The type in which the towers compute frozen features unless a call asks for another one."""
        return self._feature_dtype

    @property
    def precision(self) -> str:
        """The compute types in words, for identities: "float32", or "float32, features bfloat16"."""
        common, own = (str(dtype).removeprefix("torch.") for dtype in (self._dtype, self._feature_dtype))
        return common if common == own else f"{common}, features {own}"

    @property
    def is_full_size(self) -> bool:
        """Whether the image tower is as wide as ViT-B's or wider, so that matrix products take nearly all its time."""
        return self.config.vision.width >= VIT_B_16.vision.width

    @property
    def tau(self) -> float:
        """exp(logit_scale), the scale of the softmax; read once if the weights are frozen."""
        if self._tau is None or self.logit_scale.requires_grad:
            self._tau = float(self.logit_scale.detach().exp())
        return self._tau

    @property
    def digest(self) -> str:
        """sha256 of weights, tokenizer and preprocessing: the identity of this backbone.

        Computed once if the weights are frozen; `load_clip` has already done so.
        """
        if self._digest and not any(p.requires_grad for p in self.parameters()):
            return self._digest[0]
        self._digest[:] = [compute_digest(self)]
        return self._digest[0]

    def freeze(self) -> CLIP:
        """Switch gradients off for every weight and set evaluation mode; returns self."""
        return self.requires_grad_(False).eval()

    def with_dtype(self, dtype: torch.dtype, *, features: torch.dtype | None = None) -> CLIP:
        """Another CLIP with the same weight tensors and another compute type; this one is unchanged.

        Args:
            dtype: Type in which the towers compute: torch.float32 or torch.bfloat16.
            features: Type in which they compute frozen features; `dtype` by default.

        Returns:
            The other CLIP; this one if it has these types already.

        Example:
            >>> import torch
            >>> from dca import CLIP
            >>> CLIP.from_pretrained("mini").with_dtype(torch.bfloat16).dtype
            torch.bfloat16
        """
        types = dtype, features or dtype
        if types == (self._dtype, self._feature_dtype):
            return self
        other = copy.copy(self)
        other._dtype, other._feature_dtype = types
        return other

    def to_device(self, device: torch.device | str) -> CLIP:
        """This CLIP if its weights are on `device`, else a copy there; this one stays where it is.

        Args:
            device: A device or its name.

        Returns:
            A CLIP whose weights are on the device.

        Raises:
            RuntimeError: If there is no such device.

        Example:
            >>> from dca import CLIP
            >>> clip = CLIP.from_pretrained("mini")
            >>> clip.to_device("cpu") is clip
            True
        """
        target = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
        if target == self.device:
            return self
        # Entries of `memo` replace what deepcopy would copy: each weight goes to the device once, and the
        # immutable parts are shared.
        memo: dict[int, object] = {id(part): part for part in (self.config, self.tokenizer, self.preprocess)}
        for parameter in self.parameters():
            memo[id(parameter)] = nn.Parameter(parameter.detach().to(target), parameter.requires_grad)
        return copy.deepcopy(self, memo)

    def encode_image(
        self,
        images: Sequence[Image.Image] | Tensor,
        *,
        tokens: ExtraTokens | None = None,
        updates: Mapping[str, Update] | None = None,
        dtype: torch.dtype | None = None,
        on_block: BlockCallback | None = None,
    ) -> Tensor:
        """Image features.

        Args:
            images: PIL images, or normalised pixels (B, 3, S, S).
            tokens: Rows that a method adds to those of the image.
            updates: What is added to the outputs of layers: "visual.0.q" (tower, block, one of q, k, v, out, fc, proj,
                ln_1, ln_2), "visual.ln_pre" or "visual.ln_post" -> a function from the input of that linear layer
                or norm to what is added to its output. Names of the text tower are ignored.
            dtype: Compute type of this call; by default `self.dtype`, without tokens and updates `self.feature_dtype`.
            on_block: Called after each block with its name ("visual.0", ...) and the rows (B, T, W) that leave it.

        Returns:
            Features (B, D), float32, not normalised.

        Raises:
            ValueError: If the name of an update is not that of a layer.
        """
        pixels = images if isinstance(images, Tensor) else self.preprocess(images)
        own = group_updates(updates, "visual", self.config.vision.layers)
        with self._autocast(dtype, frozen=tokens is None and not updates):
            features: Tensor = self.visual(pixels.to(self.device), tokens, own, on_block)
        return features.float()

    def encode_until_last_block(self, pixels: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        """The rows that enter the last block of the image tower.

        Args:
            pixels: Normalised pixels (B, 3, S, S).
            dtype: Compute type of this call; `self.feature_dtype` by default.

        Returns:
            Rows (B, T, W), float32.
        """
        with self._autocast(dtype, frozen=True):
            return self.visual.run_until_last_block(pixels.to(self.device)).float()

    def encode_unprojected(self, pixels: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        """The vectors that the last layer of the image tower, its projection, maps to features.

        Args:
            pixels: Normalised pixels (B, 3, S, S).
            dtype: Compute type of this call; `self.feature_dtype` by default.

        Returns:
            Vectors (B, W), float32, not normalised; `visual.projection` of them is `encode_image`.
        """
        with self._autocast(dtype, frozen=True):
            return self.visual.encode_unprojected(pixels.to(self.device)).float()

    def encode_with_patches(self, pixels: Tensor, *, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """Image features, and local features of the patches, from one pass of the image tower.

        Attention in the last block mixes the patches, so local features leave it out. With x the row of a patch that
        enters this block and v = x + out(value(ln_1 x)), the local feature is ln_post(v + mlp(ln_2 v)).

        Args:
            pixels: Normalised pixels (B, 3, S, S).
            dtype: Compute type of this call; `self.feature_dtype` by default.

        Returns:
            The features (B, D) of `encode_image`, and patches (B, P, W) before the projection; both float32.
        """
        with self._autocast(dtype, frozen=True):
            features, patches = self.visual.encode_with_patches(pixels.to(self.device))
        return features.float(), patches.float()

    def encode_text(
        self,
        texts: Texts,
        *,
        updates: Mapping[str, Update] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Text features.

        Args:
            texts: N strings, ids (N, T), or N id sequences; ids behind the first EOT are ignored.
            updates: As in `encode_image`, with names such as "text.0.q" and "text.ln_final".
            dtype: Compute type of this call; by default `self.dtype`, without updates `self.feature_dtype`.

        Returns:
            Features (N, D), float32, not normalised.

        Raises:
            ValueError: If an id sequence has no EOT, or the name of an update is not that of a layer.
        """
        with self._autocast(dtype, frozen=not updates):
            return self.text.encode_ids(self._sequences(texts), self._text_updates(updates)).float()

    def encode_prompts(
        self,
        contexts: Sequence[Tensor] | Tensor,
        names: Sequence[Sequence[int]],
        deep: Sequence[Mapping[int, Tensor]] | None = None,
        *,
        updates: Mapping[str, Update] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Text features of C class names behind each of M contexts.

        Args:
            contexts: M embedded contexts, each (L_m, W), or (C, L_m, W) with one per class. Or one tensor
                (B, L, W) of B contexts; its batch size may be symbolic (torch.export).
            names: Ids of each class name with EOT and without SOS.
            deep: For each context, block index -> tokens (L_m, W) or (C, L_m, W) that replace its rows
                at the input of that block.
            updates: As in `encode_text`.
            dtype: Compute type of this call; `self.dtype` by default.

        Returns:
            Features (M, C, D), float32, not normalised.

        Raises:
            ValueError: If the name of an update is not that of a layer.

        Example:
            >>> import torch
            >>> from dca import CLIP
            >>> clip = CLIP.from_pretrained("mini")
            >>> names = [[*clip.tokenizer.encode(name), clip.tokenizer.eot_id] for name in ("cat", "dog", "oak")]
            >>> contexts = torch.randn(2, 4, clip.config.text.width)
            >>> clip.encode_prompts(contexts, names).shape == (2, 3, clip.config.embed_dim)
            True
        """
        learned = [contexts] if isinstance(contexts, Tensor) else list(contexts)
        learned += [tokens for more in deep or () for tokens in more.values()]
        with self._autocast(dtype):
            if updates:
                return self.text.encode_prompts(contexts, names, deep, self._text_updates(updates)).float()
            return run_on_side_stream(learned, lambda: self.text.encode_prompts(contexts, names, deep).float())

    def encode_embedded_text(self, sequences: Sequence[Tensor], *, dtype: torch.dtype | None = None) -> Tensor:
        """Text features of sequences that are embedded already.

        Args:
            sequences: N tensors (T_i, W), each from SOS to EOT.
            dtype: Compute type of this call; `self.dtype` by default.

        Returns:
            Features (N, D), float32, not normalised.
        """
        with self._autocast(dtype):
            return self.text.encode_packed(torch.cat(list(sequences)), [len(rows) for rows in sequences]).float()

    def _text_updates(self, updates: Mapping[str, Update] | None) -> Mapping[int, Mapping[str, Update]]:
        return group_updates(updates, "text", self.config.text.layers)

    def _sequences(self, texts: Texts) -> list[list[int]]:
        """Id sequences, each ending at its first EOT."""
        if isinstance(texts, Tensor):
            texts = texts.tolist()
        if texts and isinstance(texts[0], str):
            return self.tokenizer([str(t) for t in texts])
        eot = self.config.text.eot_id
        rows = [[int(i) for i in row] for row in texts]
        if missing := [n for n, row in enumerate(rows) if eot not in row]:
            raise ValueError(f"id sequences {missing[:5]} hold no EOT ({eot})")
        return [row[: row.index(eot) + 1] for row in rows]

    def _autocast(self, dtype: torch.dtype | None, *, frozen: bool = False) -> AbstractContextManager[object]:
        """A context in which the towers compute in `dtype`, or in this CLIP's type; frozen: in that of features."""
        return compute_in(dtype or (self._feature_dtype if frozen else self._dtype), self.device)


def compute_digest(clip: CLIP) -> str:
    """sha256 of the weights as they are now, the tokenizer, the preprocessing and the configuration."""
    preprocess = repr(sorted(clip.preprocess.to_dict().items()))
    return hash_backbone(clip.state_dict(), [clip.tokenizer.digest(), preprocess, repr(clip.config)])


# Overlapping the towers on a GPU. What a prompt method gives to the text tower are its own parameters, which exist
# before a step begins; so the text tower need not wait for the image tower, although a step calls it later.


@dataclass(frozen=True)
class _SideStream:
    stream: torch.cuda.Stream
    start: torch.cuda.Event


_SIDE_STREAM: ContextVar[_SideStream | None] = ContextVar("side_stream", default=None)


@contextmanager
def overlap_towers() -> Iterator[None]:
    """Inside, run the text tower on a GPU stream of its own, from the start of this context on.

    Parameters must not be changed inside.
    """
    start = torch.cuda.Event()  # type: ignore[no-untyped-call]
    start.record()
    token = _SIDE_STREAM.set(_SideStream(torch.cuda.Stream(), start))  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        _SIDE_STREAM.reset(token)


def run_on_side_stream(inputs: Iterable[Tensor], work: Callable[[], Tensor]) -> Tensor:
    """Return `work()`, computed on the side stream if `overlap_towers` is on and all inputs existed when it began.

    inputs: all tensors with gradients that `work` reads; one that is not a leaf was computed since.
    """
    side = _SIDE_STREAM.get()
    if side is None or not all(tensor.is_leaf for tensor in inputs):
        return work()
    main = torch.cuda.current_stream()
    side.stream.wait_event(side.start)
    with torch.cuda.stream(side.stream):
        result = work()
    main.wait_stream(side.stream)
    result.record_stream(main)
    return result
