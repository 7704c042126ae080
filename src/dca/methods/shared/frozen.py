"""What methods over frozen features share: the plain encoders, views, and a choice made on validation images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.clip import CLIP
from dca.core.errors import UserError
from dca.core.options import opt
from dca.methods.interface import Batch, Method, Problem, Step, Support
from dca.methods.recipe import Recipe

T = TypeVar("T")
# The sentences that CLIP's authors chose for ImageNet; other sets have one of their own.
SEVEN = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)


@dataclass(frozen=True, kw_only=True)
class FrozenOptions(Recipe):
    """What every method over frozen features can be told."""

    templates: tuple[str, ...] = opt((), "sentences with {} for the name; none: the dataset's own, on ImageNet CLIP's")

    def __post_init__(self) -> None:
        super().__post_init__()
        if wrong := [t for t in self.templates if "{}" not in t]:
            raise UserError("templates without {} for the class name", details=wrong)


def class_texts(clip: CLIP, problem: Problem, templates: Sequence[str] = (), imagenet: Sequence[str] = SEVEN) -> Tensor:
    """Text features of every sentence and class, not normalised: (T, C, D)."""
    names = [name.replace("_", " ") for name in problem.names]
    sentences = templates or (imagenet if problem.dataset == "imagenet" else (problem.template,))
    with torch.no_grad():
        return torch.stack([clip.encode_text([s.replace("{}", name) for name in names]) for s in sentences])


def unit_mean(texts: Tensor) -> Tensor:
    """t̂: normalised mean of unit vectors, as CLIP does it. (T, C, D) -> (C, D)."""
    return F.normalize(F.normalize(texts, dim=-1).mean(dim=0), dim=-1)


def image_views(support: Support, clip: CLIP, views: int) -> Tensor:
    """Raw features of `views` augmented views of each image, or of its evaluation view: (N, V, D)."""
    rows = support.frozen_features(clip, views=views)
    return rows.reshape(max(views, 1), -1, rows.shape[-1]).transpose(0, 1).contiguous()


def one_view(batch: Batch) -> Tensor:
    """Unit features of one view of each image, drawn at random. Inputs (B, V, D) -> (B, D)."""
    B, V = batch.inputs.shape[:2]
    drawn = torch.randint(V, (B,), generator=batch.generator).to(batch.inputs.device)
    return F.normalize(batch.inputs[torch.arange(B, device=drawn.device), drawn], dim=-1)


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Share of rows (N, C) whose largest value stands at their label (N,)."""
    return float((logits.argmax(dim=-1) == labels).double().mean())


def first_best(candidates: Iterable[T], score: Callable[[T], float]) -> tuple[T, float]:
    """The candidate of the highest score, and that score; of equal ones the first."""
    scored = [(candidate, score(candidate)) for candidate in candidates]
    return max(scored, key=lambda pair: pair[1])


def shape_problems(found: dict[str, tuple[Tensor, tuple[int, ...]]]) -> list[str]:
    """One line for each tensor that is not of the shape it should be."""
    return [
        f"{name}: shape {tuple(tensor.shape)}, expected {shape}"
        for name, (tensor, shape) in found.items()
        if tensor.shape != shape
    ]


class FrozenMethod(Method):
    """A method whose image features are CLIP's own; what it learns lies behind them."""

    imagenet_templates: ClassVar[Sequence[str]] = SEVEN

    def texts(self) -> Tensor:
        """Text features of the sentences, not normalised: (T, C, D)."""
        return class_texts(self.clip, self.problem, self.options.templates, self.imagenet_templates)

    def step(self, batch: Batch) -> Step:
        """A loss of one batch, for methods that have one."""
        raise TypeError(f"{self.name} has no training step")
