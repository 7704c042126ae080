"""CLIP: the two towers, the logit scale, and what belongs to a checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dca.clip.blocks import Update
from dca.clip.config import CLIPConfig
from dca.clip.preprocess import Preprocess
from dca.clip.text import TextTower
from dca.clip.tokenizer import Tokenizer
from dca.clip.tokens import ExtraTokens
from dca.clip.vision import VisionTower

if TYPE_CHECKING:
    from PIL import Image


class CLIP(nn.Module):
    """A dual encoder with its tokenizer and preprocessing.

    Features are returned before normalisation, in float32. `compute_dtype` is what the towers
    calculate in; weights stay float32.
    """

    def __init__(self, config: CLIPConfig, tokenizer: Tokenizer, preprocess: Preprocess, source: str = "") -> None:
        super().__init__()
        self.config = config
        self.tokenizer = tokenizer
        self.preprocess = preprocess
        self.source = source
        self.compute_dtype = torch.float32
        self.visual = VisionTower(config.vision, config.embed_dim)
        self.text = TextTower(config.text, config.embed_dim)
        self.logit_scale = nn.Parameter(torch.zeros(()))
        self._tau: float | None = None

    @classmethod
    def from_pretrained(cls, source: str | Path, *, revision: str | None = None, cache_dir: str | None = None) -> CLIP:
        """Load a frozen CLIP from a short name, a hub id, a folder or a state dict file."""
        from dca.clip.weights import load

        return load(source, revision=revision, cache_dir=cache_dir)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.logit_scale.device

    @property
    def tau(self) -> float:
        """exp(logit_scale), the scale of the softmax; read once, since a frozen one does not change."""
        if self._tau is None or self.logit_scale.requires_grad:
            self._tau = float(self.logit_scale.detach().exp())
        return self._tau

    def freeze(self) -> CLIP:
        """No gradients for any weight, evaluation mode; returns self."""
        return self.requires_grad_(False).eval()

    def encode_image(self, images: Sequence[Image.Image] | Tensor, extra: ExtraTokens | None = None) -> Tensor:
        """PIL images, or pixels (B, 3, S, S) -> features (B, D), not normalised."""
        pixels = images if isinstance(images, Tensor) else self.preprocess(images)
        with self.autocast():
            features: Tensor = self.visual(pixels.to(self.device), extra)
        return features.float()

    def encode_text(self, texts: Sequence[str] | Tensor | Sequence[Sequence[int]]) -> Tensor:
        """Strings, or ids (N, T), or id sequences -> features (N, D), not normalised."""
        with self.autocast():
            return self.text.encode_ids(self._sequences(texts)).float()

    def encode_prompts(
        self,
        contexts: Sequence[Tensor],
        names: Sequence[Sequence[int]],
        deep: Sequence[Mapping[int, Tensor]] | None = None,
    ) -> Tensor:
        """M contexts in front of C class names -> features (M, C, D); see `TextTower`."""
        with self.autocast():
            return self.text.encode_prompts(contexts, names, deep).float()

    def encode_embedded(self, sequences: Sequence[Tensor]) -> Tensor:
        """Embedded sequences (T_i, W), each from SOS to EOT -> features (N, D)."""
        with self.autocast():
            return self.text.encode_packed(torch.cat(list(sequences)), [len(rows) for rows in sequences]).float()

    @contextmanager
    def updated(self, updates: Mapping[str, Update]) -> Iterator[None]:
        """Add to queries, keys or values while the context lasts, e.g. a low-rank product.

        updates: "visual.0.q" (tower, block, one of q k v) -> a function from the input of that
        projection to what is added to its output.
        """
        touched = []
        for name, update in updates.items():
            tower, block, part = name.split(".")
            attention = list((self.visual if tower == "visual" else self.text).blocks)[int(block)].attn
            attention.updates = {**attention.updates, part: update}
            touched.append(attention)
        try:
            yield
        finally:
            for attention in touched:
                attention.updates = {}

    def _sequences(self, texts: Sequence[str] | Tensor | Sequence[Sequence[int]]) -> list[list[int]]:
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

    def autocast(self) -> torch.autocast:
        """A context in which the towers calculate in `compute_dtype`."""
        enabled = self.compute_dtype != torch.float32
        return torch.autocast(self.device.type, dtype=self.compute_dtype if enabled else None, enabled=enabled)

    def about(self) -> dict[str, str]:
        """What decides the features of an image: they are stored under this."""
        return {"source": self.source, "precision": str(self.compute_dtype), "backbone": self.digest()}

    def digest(self) -> str:
        """sha256 of weights, tokenizer and preprocessing: the identity of this backbone."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
        digest.update(self.tokenizer.digest().encode())
        digest.update(repr(sorted(self.preprocess.to_dict().items())).encode())
        digest.update(repr(self.config).encode())
        return digest.hexdigest()
