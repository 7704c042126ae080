"""All prepared sources on one device, and how a batch is drawn from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from dca.core.errors import UserError
from pretrain.config import PretrainConfig
from pretrain.prepare import LEXICON
from pretrain.texts import Tables, concatenate, lookup, token_ids

TEXT_TABLES = ("tokens", "lengths", "wordings", "ranges", "keys", "members", "group_start", "group_count")


@dataclass(frozen=True)
class TextBatch:
    """Texts of a batch. ids: (B, T). eot: (B,). keys: (B,). vectors: (B, E) of the teacher, or None."""

    ids: Tensor
    eot: Tensor
    keys: Tensor
    vectors: Tensor | None


@dataclass(frozen=True)
class Corpus:
    """Images (N, 3, S, S) uint8 with their groups of texts; sources one after the other.

    starts, counts, chances: (sources,). turns: (N,), true where an image may be rotated.
    lexicon: groups of texts without images.
    """

    images: Tensor
    aspects: Tensor
    turns: Tensor
    groups: Tensor
    starts: Tensor
    counts: Tensor
    chances: Tensor
    lexicon: Tensor
    tables: Tables
    vectors: Tensor | None
    names: tuple[str, ...]
    validation_images: Tensor
    validation_groups: Tensor

    def draw_images(self, batch: int, rng: torch.Generator) -> Tensor:
        """Positions (B,) of images: a source by its probability, then any image of it."""
        source = torch.multinomial(self.chances, batch, replacement=True, generator=rng)
        u = torch.rand(batch, generator=rng, device=self.images.device, dtype=torch.float64)
        return self.starts[source] + (u * self.counts[source]).long()

    def draw_texts(self, groups: Tensor, styles: Tensor, length: int, eot: int, rng: torch.Generator) -> TextBatch:
        """One text for each group (B,), in the given style (B,) if it has one."""
        u = torch.rand(2, len(groups), generator=rng, device=groups.device)
        meanings, texts = lookup(self.tables, groups.long(), styles, u)
        ids, last = token_ids(self.tables, texts, length, eot)
        vectors = None if self.vectors is None else self.vectors[meanings].float()
        return TextBatch(ids, last, self.tables["keys"][meanings], vectors)

    def draw_lexicon(self, batch: int, length: int, eot: int, rng: torch.Generator) -> TextBatch:
        """Texts of `batch` nouns."""
        places = torch.randint(len(self.lexicon), (batch,), generator=rng, device=self.lexicon.device)
        groups = self.lexicon[places]
        return self.draw_texts(groups, torch.zeros_like(groups, dtype=torch.long), length, eot, rng)


def load_corpus(config: PretrainConfig, device: torch.device, names: Sequence[str] = ()) -> Corpus:
    """Read the prepared sources (default: all in the folder) onto the device."""
    folder = Path(config.data.prepared)
    names = list(names) or sorted(p.name.removesuffix(".safetensors") for p in folder.glob("*.safetensors"))
    if not [n for n in names if n != LEXICON]:
        raise UserError(f"{folder}: no prepared images", hint="python -m pretrain prepare CONFIG.toml")
    parts = {name: load_file(folder / f"{name}.safetensors", device=str(device)) for name in names}
    with_images = [n for n in names if n != LEXICON]
    offsets = torch.tensor([0] + [len(parts[n]["group_start"]) for n in names]).cumsum(0).tolist()
    groups = {n: parts[n]["groups"].long() + offset for n, offset in zip(names, offsets, strict=False)}
    train = {n: ~parts[n]["validation"] for n in with_images}
    counts = torch.tensor([int(train[n].sum()) for n in with_images])
    held = [n for n in with_images if not bool(train[n].all())]
    step = max(1, sum(int((~train[n]).sum()) for n in held) // max(1, config.data.most_validation))

    def gather(key: str, n: str) -> Tensor:
        values = groups[n] if key == "groups" else parts[n][key]
        return values if bool(train[n].all()) else values[train[n]]

    def held_out(key: str) -> Tensor:
        values = [(groups[n] if key == "groups" else parts[n][key])[~train[n]] for n in held]
        return torch.cat(values)[::step] if values else torch.empty(0, device=device)

    turns = [torch.full((int(c),), config.kinds.get(n) == "aerial") for n, c in zip(with_images, counts, strict=True)]
    vectors = [parts[n]["meaning_vectors"] for n in names if "meaning_vectors" in parts[n]]
    return Corpus(
        images=torch.cat([gather("images", n) for n in with_images]),
        aspects=torch.cat([gather("aspects", n) for n in with_images]),
        turns=torch.cat(turns).to(device),
        groups=torch.cat([gather("groups", n) for n in with_images]),
        starts=(counts.cumsum(0) - counts).to(device),
        counts=counts.to(device),
        chances=_chances(config, with_images, counts).to(device),
        lexicon=groups.get(LEXICON, torch.empty(0, dtype=torch.long, device=device)),
        tables=concatenate([{k: parts[n][k] for k in TEXT_TABLES} for n in names]),
        vectors=torch.cat(vectors) if len(vectors) == len(names) else None,
        names=tuple(with_images),
        validation_images=held_out("images"),
        validation_groups=held_out("groups"),
    )


def _chances(config: PretrainConfig, names: Sequence[str], counts: Tensor) -> Tensor:
    """How often each source is drawn: n**power times its own weight."""
    weights = torch.tensor([config.weights.get(n, 1.0) for n in names])
    chances = counts.double() ** config.data.power * weights
    return chances / chances.sum()
