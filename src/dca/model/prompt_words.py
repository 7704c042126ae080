"""Learned prompts in words: the tokens nearest to every learned vector, and the angles between prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dca.backbones.dual_encoder import DualEncoder
from dca.methods.base import Method

# Most prompts that are put into words: a method with one context per class has one for each of them.
MOST = 24
WORDS = 3


@dataclass(frozen=True)
class NearWord:
    """A token near a learned vector. text: as the tokenizer writes it. distance: Euclidean, of the embeddings."""

    text: str
    distance: float


@dataclass(frozen=True)
class PromptWords:
    """One learned prompt.

    name: of the prompt. tokens: for every learned vector, the nearest tokens, the nearest first.
    """

    name: str
    tokens: tuple[tuple[NearWord, ...], ...]

    @property
    def sentence(self) -> str:
        """The nearest token of every vector."""
        return " ".join(words[0].text for words in self.tokens)


@dataclass(frozen=True)
class PromptReport:
    """The learned prompts of a method.

    Attributes:
        prompts: The prompts in words; at most `MOST`.
        left_out: How many more there are.
        typical_distance: Median distance between a token and the nearest other one, to compare distances with.
        angles: Angle between the text features of each two prompts in degrees, the mean over classes, (M, M); empty
            for a single prompt.
    """

    prompts: tuple[PromptWords, ...]
    left_out: int
    typical_distance: float
    angles: tuple[tuple[float, ...], ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `dca explain --prompts --json` prints them."""
        rows = [
            {
                "prompt": prompt.name,
                "tokens": [[{"text": w.text, "distance": w.distance} for w in words] for words in prompt.tokens],
            }
            for prompt in self.prompts
        ]
        return {
            "prompts": rows,
            "left_out": self.left_out,
            "typical_distance": self.typical_distance,
            "angles": [list(row) for row in self.angles],
        }


@torch.no_grad()
def describe_prompts(method: Method, labels: Sequence[Any]) -> PromptReport | None:
    """Describe the learned prompts of a finished method in words.

    Args:
        method: The method.
        labels: Label of each class.

    Returns:
        Prompts and angles; None if the method learns no prompt.

    Example:
        >>> from dca import Classifier
        >>> from dca.datasets.sample import load_sample
        >>> from dca.model.prompt_words import describe_prompts
        >>> model = Classifier("coop", shots=1, epochs=0, device="cpu").fit(load_sample(per_class_train=1))
        >>> describe_prompts(model.method_, model.classes_).prompts[0].name
        'the prompt'
    """
    named = _name_contexts(method.text_contexts(), labels)
    if not named:
        return None
    table, ids = _word_embeddings(method.clip)
    prompts = tuple(
        PromptWords(name, tuple(_nearest_words(row, table, ids, method.clip) for row in rows))
        for name, rows in named[:MOST]
    )
    return PromptReport(
        prompts, max(len(named) - MOST, 0), _typical_distance(table), _prompt_angles(method.prompt_features())
    )


def _name_contexts(contexts: Sequence[Tensor], labels: Sequence[Any]) -> list[tuple[str, Tensor]]:
    """Every learned context (L, W) with a name."""
    found = []
    for number, context in enumerate(contexts, start=1):
        prompt = f"prompt {number}" if len(contexts) > 1 else "the prompt"
        if context.dim() == 2:
            found.append((prompt, context))
        else:
            own = f"{prompt}, " if len(contexts) > 1 else ""
            found += [(f"{own}{label}", rows) for label, rows in zip(labels, context, strict=True)]
    return found


def _word_embeddings(clip: DualEncoder) -> tuple[Tensor, list[int]]:
    """Embeddings (V, W) of all tokens that are text, and their ids."""
    special = clip.tokenizer.special_ids
    ids = [i for i in range(clip.text.embedding.num_embeddings) if i not in special]
    return clip.text.embed(ids), ids


def _nearest_words(row: Tensor, table: Tensor, ids: Sequence[int], clip: DualEncoder) -> tuple[NearWord, ...]:
    """The tokens nearest to a vector (W,)."""
    distances, nearest = torch.cdist(row[None].double(), table.double())[0].topk(WORDS, largest=False)
    pairs = zip(nearest.tolist(), distances.tolist(), strict=True)
    return tuple(NearWord(clip.tokenizer.decode([ids[n]]), distance) for n, distance in pairs)


def _typical_distance(table: Tensor, sample: int = 256) -> float:
    """Median distance from a token to the nearest other one, over evenly spread tokens of the table (V, W)."""
    some = table[:: max(len(table) // sample, 1)].double()
    nearest = torch.cdist(some, table.double()).topk(2, largest=False).values[:, 1]
    return float(nearest.median())


def _prompt_angles(features: Tensor | None) -> tuple[tuple[float, ...], ...]:
    """Mean angle in degrees between unit text features (M, C, D) of each two prompts: (M, M)."""
    if features is None or len(features) < 2:
        return ()
    cosines = torch.einsum("mcd,ncd->mnc", features.double(), features.double()).clamp(-1, 1)
    degrees = (cosines.acos() * (180 / math.pi)).mean(dim=-1).fill_diagonal_(0.0)
    return tuple(tuple(row) for row in degrees.tolist())
