"""What methods use of an encoder with two towers, whatever its family: CLIP, SigLIP.

An image tower and a text tower map into one space. A family is a subclass of `DualEncoder` with towers of its own; a
tower says by its `abilities` what can be done with it, and methods ask for that (`Method.needs`), never for a family.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor, nn

from dca.backbones.blocks import Blocks, TowerUpdates, Update, group_updates
from dca.backbones.encoder import Ability, Encoder
from dca.backbones.preprocess import Preprocess
from dca.backbones.state_dict import hash_backbone
from dca.core.device import compute_in

if TYPE_CHECKING:
    from PIL import Image

# N strings, ids (N, T), or N sequences of ids.
Texts = Sequence[str] | Tensor | Sequence[Sequence[int]]
# Called after each block with its name, "visual.0" for the first, and the rows (B, T, W) that leave it.
BlockCallback = Callable[[str, Tensor], None]


@dataclass(frozen=True)
class ExtraTokens:
    """Tokens that a method adds to those of the image.

    layers: block index -> (V, W), or (B, V, W) with tokens for each image. The tokens of block l
        are part of its input; they replace the rows that an earlier block inserted.
    position: after CLS, which is the beginning in a tower without CLS, or behind the last row.
    before_norm: the tokens of block 0 pass through ln_pre with the other rows, in a tower that has it.
    """

    layers: Mapping[int, Tensor] = field(default_factory=dict)
    position: Literal["after_cls", "end"] = "after_cls"
    before_norm: bool = False

    def insert(self, x: Tensor, layer: int, present: int, cls: int = 1) -> tuple[Tensor, int]:
        """Insert the tokens of `layer` into x (B, T, W); returns x and its number of extra rows.

        present: number of extra rows inserted by earlier blocks, which these tokens replace. cls: number of CLS rows.
        """
        tokens = self.layers.get(layer)
        if tokens is None:
            return x, present
        tokens = tokens.to(x.dtype).expand(*x.shape[:-2], -1, -1)
        if self.position == "end":
            return torch.cat([x[..., : x.shape[-2] - present, :], tokens], dim=-2), tokens.shape[-2]
        return torch.cat([x[..., :cls, :], tokens, x[..., cls + present :, :]], dim=-2), tokens.shape[-2]


NO_TOKENS = ExtraTokens()


class TextTokenizer(Protocol):
    """Text to ids and back, as methods use it.

    context_length: most ids of a text. start_ids: ids before the text, SOT for CLIP. eot_id: id behind it.
    """

    context_length: int
    eot_id: int

    @property
    def start_ids(self) -> tuple[int, ...]:
        """Ids that every sequence begins with."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that are no text."""

    def encode(self, text: str, *, continued: bool = False) -> list[int]:
        """Ids of the text alone; continued: as they are behind other words."""

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text with `start_ids` and `eot_id`, at most `context_length`."""

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text of the ids."""

    def digest(self) -> str:
        """sha256 of all that decides ids."""


# What every encoder with two towers can do; the image tower adds its own.
TEXT_ABILITIES = frozenset({
    Ability.IMAGE_FEATURES, Ability.TEXT_FEATURES, Ability.TEXT_PROMPTS, Ability.TEXT_LAYERS,
})  # fmt: skip


class ImageTower(nn.Module, ABC):
    """An image tower.

    Attributes:
        abilities: What it can do beyond features.
        outside_norms: Names of the layer norms outside the blocks.
        layers: Number of blocks whose layers can be changed.
        width: W, of its rows or of the vectors before the projection.
        patch_size: Side of a patch in pixels.
        patches: P, number of patches.
        floats_per_image: Number of values in its largest activation.
        is_full_size: Whether bfloat16 makes it faster on CPUs with instructions for it.
        blocks: Its blocks, where it has `Ability.IMAGE_LAYERS`.
        projection: The layer that ends it, where it has `Ability.PROJECTION`.
    """

    abilities: ClassVar[frozenset[Ability]] = frozenset()
    outside_norms: ClassVar[tuple[str, ...]] = ()
    layers: int
    width: int
    patch_size: int
    patches: int
    floats_per_image: int
    is_full_size: bool
    blocks: Blocks
    projection: nn.Linear

    @abstractmethod
    def forward(
        self,
        pixels: Tensor,
        tokens: ExtraTokens | None = None,
        updates: TowerUpdates | None = None,
        on_block: BlockCallback | None = None,
    ) -> Tensor:
        """Pixels (B, 3, S, S) -> features (B, D), not normalised."""

    @abstractmethod
    def run_until_end(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, S, S) -> what enters the end of the tower, (B, ...)."""

    @abstractmethod
    def copy_end(self) -> nn.Module:
        """A copy of the end: a module that maps what enters it to features (B, D), not normalised."""

    def encode_unprojected(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, S, S) -> the vectors (B, W) that the projection maps to features; with `PROJECTION`."""
        raise TypeError(f"{type(self).__name__} does not end with a projection")

    def encode_with_patches(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels (B, 3, S, S) -> features (B, D), not normalised, and patches (B, P, W); with `PATCHES`."""
        raise TypeError(f"{type(self).__name__} has no local features")


class TextTower(nn.Module, ABC):
    """A text tower that takes learned prompts, and whose layers can be changed.

    Attributes:
        outside_norms: Names of the layer norms outside the blocks.
        layers: Number of blocks.
        blocks: Its blocks.
        width: W, of embeddings and rows.
        embedding: Embeddings of all tokens.
    """

    outside_norms: ClassVar[tuple[str, ...]] = ()
    layers: int
    width: int
    blocks: Blocks
    embedding: nn.Embedding

    @abstractmethod
    def embed(self, ids: Sequence[int]) -> Tensor:
        """Token embeddings (R, W) of R ids, without positions."""

    @abstractmethod
    def encode_ids(self, sequences: Sequence[Sequence[int]], updates: TowerUpdates | None = None) -> Tensor:
        """Id sequences up to EOT, of any lengths -> features (N, D)."""

    @abstractmethod
    def encode_embedded(self, sequences: Sequence[Tensor]) -> Tensor:
        """Embedded sequences (T_i, W) up to EOT, without positions -> features (N, D)."""

    @abstractmethod
    def encode_prompts(
        self,
        contexts: Sequence[Tensor] | Tensor,
        names: Sequence[Sequence[int]],
        deep: Sequence[Mapping[int, Tensor]] | None = None,
        updates: TowerUpdates | None = None,
    ) -> Tensor:
        """Features (M, C, D) of C names behind each of M contexts; see `DualEncoder.encode_prompts`."""


class DualEncoder(Encoder, ABC):
    """Two towers with their tokenizer and preprocessing.

    Encoding changes nothing in the object: extra tokens, updates of layers and the compute type are
    arguments of one call, so several methods and threads can share it. Features are float32 and not
    normalised. Weights are float32; the towers compute in `dtype` (autocast), or in `feature_dtype` where nothing
    learned takes part: images and texts without extra tokens and updates, and the parts of the image tower.

    Args:
        visual: The image tower.
        text: The text tower.
        tokenizer: Turns text into ids.
        preprocess: Turns images into pixels.
        source: Short name, hub id or folder name, for display and for finding the weights again.

    Attributes:
        config: Sizes of the two towers.
        logit_scale: log τ, ().
    """

    preprocess: Preprocess
    config: Any

    def __init__(
        self,
        visual: ImageTower,
        text: TextTower,
        tokenizer: TextTokenizer,
        preprocess: Preprocess,
        source: str = "",
    ) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.preprocess = preprocess
        self.source = source
        self.visual = visual
        self.text = text
        self.logit_scale = nn.Parameter(torch.zeros(()))
        self._dtype = self._feature_dtype = torch.float32
        self._tau: float | None = None
        # A list, so that objects made by `with_dtype` share the digest whichever of them computes it.
        self._digest: list[str] = []

    @property
    def abilities(self) -> frozenset[Ability]:  # type: ignore[override]
        """Those of every text tower, and those of the image tower."""
        return self.visual.abilities | TEXT_ABILITIES

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.logit_scale.device

    @property
    def feature_dim(self) -> int:
        """D, the size of the space that images and texts share."""
        size: int = self.config.embed_dim
        return size

    @property
    def floats_per_image(self) -> int:
        """Number of values in the largest activation of the image tower, per image."""
        return self.visual.floats_per_image

    @property
    def patches_per_side(self) -> int:
        """Patches, or positions, of the image tower."""
        return math.isqrt(self.visual.patches)

    def describe(self) -> dict[str, Any]:
        """Sizes of both towers."""
        sizes: dict[str, Any] = self.config.to_dict()
        return sizes

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
        """Whether bfloat16 makes the image tower faster on CPUs with instructions for it."""
        return self.visual.is_full_size

    @property
    def tau(self) -> float:
        """exp(logit_scale), the scale of the softmax; read once if the weights are frozen."""
        if self._tau is None or self.logit_scale.requires_grad:
            self._tau = float(self.logit_scale.detach().exp())
        return self._tau

    @property
    def digest(self) -> str:
        """sha256 of weights, tokenizer and preprocessing: the identity of this backbone.

        Computed once if the weights are frozen; loading has already done so.
        """
        if self._digest and not any(p.requires_grad for p in self.parameters()):
            return self._digest[0]
        self._digest[:] = [compute_digest(self)]
        return self._digest[0]

    def freeze(self) -> Self:
        """Switch gradients off for every weight and set evaluation mode; returns self."""
        return self.requires_grad_(False).eval()

    def with_dtype(self, dtype: torch.dtype, *, features: torch.dtype | None = None) -> Self:
        """Another encoder with the same weight tensors and another compute type; this one is unchanged.

        Args:
            dtype: Type in which the towers compute: torch.float32 or torch.bfloat16.
            features: Type in which they compute frozen features; `dtype` by default.

        Returns:
            The other encoder; this one if it has these types already.

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

    def to_device(self, device: torch.device | str) -> Self:
        """This encoder if its weights are on `device`, else a copy there; this one stays where it is.

        Args:
            device: A device or its name.

        Returns:
            An encoder whose weights are on the device.

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
                ln_1, ln_2), "visual.ln_post" or another norm outside the blocks -> a function from the input of that
                linear layer or norm to what is added to its output. Names of the text tower are ignored.
            dtype: Compute type of this call; by default `self.dtype`, without tokens and updates `self.feature_dtype`.
            on_block: Called after each block with its name ("visual.0", ...) and the rows (B, T, W) that leave it.

        Returns:
            Features (B, D), float32, not normalised.

        Raises:
            ValueError: If the name of an update is not that of a layer.
        """
        pixels = images if isinstance(images, Tensor) else self.preprocess(images)
        own = self._group_updates(updates, "visual", self.visual.layers)
        with self._autocast(dtype, frozen=tokens is None and not updates):
            features: Tensor = self.visual(pixels.to(self.device), tokens, own, on_block)
        return features.float()

    def encode_until_end(self, pixels: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        """What enters the end of the image tower, which `visual.copy_end` copies: for a ViT its last block.

        Args:
            pixels: Normalised pixels (B, 3, S, S).
            dtype: Compute type of this call; `self.feature_dtype` by default.

        Returns:
            Rows (B, T, W), or maps (B, W, H, H) of a convolutional tower, float32.
        """
        with self._autocast(dtype, frozen=True):
            return self.visual.run_until_end(pixels.to(self.device)).float()

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

        The last attention mixes the patches, so local features leave it out. In a ViT, with x the row of a patch that
        enters the last block and v = x + out(value(ln_1 x)), the local feature is ln_post(v + mlp(ln_2 v)).

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
            names: Ids of each class name with EOT and without those that begin a sequence.
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
            >>> contexts = torch.randn(2, 4, clip.text.width)
            >>> clip.encode_prompts(contexts, names).shape == (2, 3, clip.feature_dim)
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
            sequences: N tensors (T_i, W), each from its beginning (SOS, where there is one) to EOT.
            dtype: Compute type of this call; `self.dtype` by default.

        Returns:
            Features (N, D), float32, not normalised.
        """
        with self._autocast(dtype):
            return self.text.encode_embedded(sequences).float()

    def _text_updates(self, updates: Mapping[str, Update] | None) -> TowerUpdates:
        return self._group_updates(updates, "text", self.text.layers)

    def _group_updates(self, updates: Mapping[str, Update] | None, tower: str, layers: int) -> TowerUpdates:
        outside = {"visual": self.visual.outside_norms, "text": self.text.outside_norms}
        return group_updates(updates, tower, layers, outside)

    def _sequences(self, texts: Texts) -> list[list[int]]:
        """Id sequences, each ending at its first EOT."""
        if isinstance(texts, Tensor):
            texts = texts.tolist()
        if texts and isinstance(texts[0], str):
            return self.tokenizer([str(t) for t in texts])
        eot = self.tokenizer.eot_id
        rows = [[int(i) for i in row] for row in texts]
        if missing := [n for n, row in enumerate(rows) if eot not in row]:
            raise ValueError(f"id sequences {missing[:5]} hold no EOT ({eot})")
        return [row[: row.index(eot) + 1] for row in rows]

    def _autocast(self, dtype: torch.dtype | None, *, frozen: bool = False) -> AbstractContextManager[object]:
        """A context in which the towers compute in `dtype`, or in this encoder's type; frozen: in that of features."""
        return compute_in(dtype or (self._feature_dtype if frozen else self._dtype), self.device)


def compute_digest(clip: DualEncoder) -> str:
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
