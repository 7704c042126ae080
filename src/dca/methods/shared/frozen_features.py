"""Methods over the features of frozen towers: class texts, augmented views, selection, and base classes.

`ClassNameMethod` is for heads that are made of class names alone: p(y | x) = softmax_y( τ f·t_y ).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.encoder import Ability, Encoder
from dca.core.errors import UserError
from dca.core.options import option
from dca.methods.base import CROP_LOW, VIEW_CROP_LOW, Batch, Head, Method, Problem, Support, TrainingOptions
from dca.methods.shared.heads import LinearHead

T = TypeVar("T")
# The sentences that CLIP's authors chose for ImageNet; other datasets have one sentence each.
SEVEN_TEMPLATES = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)


@dataclass(frozen=True, kw_only=True)
class FrozenOptions(TrainingOptions):
    """Options of every method over frozen features."""

    templates: tuple[str, ...] = option(
        (),
        'sentences with {} for the name, as in ["a photo of a {}.", "a drawing of a {}."]; none: that of the dataset, '
        "for ImageNet CLIP's seven",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if wrong := [t for t in self.templates if "{}" not in t]:
            raise UserError("templates without {} for the class name", details=wrong)


def crop_option() -> Any:
    """The option `crop_low` of methods that are not trained in steps but use augmented views."""
    help = "smallest share of the image in an augmented view"
    return option(VIEW_CROP_LOW, help, low=0.001, high=1, source="Tip-Adapter's code")


def select_templates(
    problem: Problem, templates: Sequence[str] = (), imagenet: Sequence[str] = SEVEN_TEMPLATES
) -> Sequence[str]:
    """Sentences with {} for the name: those given, else CLIP's for ImageNet, else that of the dataset."""
    return templates or (imagenet if problem.dataset == "imagenet" else (problem.template,))


def encode_class_texts(
    encoder: Encoder,
    problem: Problem,
    templates: Sequence[str] = (),
    imagenet: Sequence[str] = SEVEN_TEMPLATES,
    names: Sequence[str] | None = None,
) -> Tensor:
    """Encode every sentence of every class: (T, C, D), not normalised; zeros if the encoder knows no texts.

    names: instead of those of the problem.
    """
    names = [name.replace("_", " ") for name in problem.names] if names is None else names
    sentences = select_templates(problem, templates, imagenet)
    if Ability.TEXT_FEATURES not in encoder.abilities:
        return torch.zeros(len(sentences), len(names), encoder.feature_dim, device=encoder.device)
    with torch.no_grad():
        return torch.stack([encoder.encode_text([s.replace("{}", name) for name in names]) for s in sentences])


def unit_mean(texts: Tensor) -> Tensor:
    """t̂: normalised mean of unit vectors, as CLIP computes it. (T, C, D) -> (C, D)."""
    return F.normalize(F.normalize(texts, dim=-1).mean(dim=0), dim=-1)


def encode_views(support: Support, views: int, crop_low: float = CROP_LOW) -> Tensor:
    """Raw features of `views` augmented views of each image, or of its evaluation view if 0: (N, V, D)."""
    return group_by_image(support.frozen_features(views=views, crop_low=crop_low), views)


def group_by_image(rows: Tensor, views: int) -> Tensor:
    """Group rows, which are view after view, by image: (V · N, D) -> (N, V, D)."""
    return rows.reshape(max(views, 1), -1, rows.shape[-1]).transpose(0, 1).contiguous()


def draw_view(batch: Batch) -> Tensor:
    """Draw one view of each image. Inputs (B, V, D) -> (B, D), not normalised."""
    B, V = batch.inputs.shape[:2]
    drawn = torch.randint(V, (B,), generator=batch.generator).to(batch.inputs.device)
    return batch.inputs[torch.arange(B, device=drawn.device), drawn]


def draw_unit_view(batch: Batch) -> Tensor:
    """Draw one view of each image. Inputs (B, V, D) -> unit features (B, D)."""
    return F.normalize(draw_view(batch), dim=-1)


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Share of rows (N, C) whose largest value is that of their label (N,)."""
    return float((logits.argmax(dim=-1) == labels).double().mean())


def log_loss_at_best_scale(logits: Tensor, labels: Tensor) -> float:
    """Minimum over t of the mean of CE(t z, y); t does not change the ranking. logits: z (N, C), labels: y (N,).

    The loss is convex in t: bisection on its slope, for t of 10⁻³ to 10² in units of the spread of the logits. The
    upper limit keeps classes that are separated perfectly comparable.
    """
    z = logits.double() - logits.double().mean(dim=-1, keepdim=True)
    z = z / z.square().mean().sqrt().clamp_min(1e-30)
    own = z.gather(1, labels[:, None]).mean()
    low, high = -3.0, 2.0
    for _ in range(24):
        middle = (low + high) / 2
        slope = ((z * 10**middle).softmax(dim=-1) * z).sum(dim=-1).mean() - own
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float(F.cross_entropy(10**low * z, labels))


def first_best(candidates: Iterable[T], score: Callable[[T], float]) -> tuple[T, float]:
    """Find the first candidate with the highest score, and that score."""
    scored = [(candidate, score(candidate)) for candidate in candidates]
    return max(scored, key=lambda pair: pair[1])


def check_shapes(state: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Compare saved tensors with expected shapes; one line for each difference."""
    return [
        f"{name}: shape {tuple(state[name].shape)}, expected {shape}"
        for name, shape in expected.items()
        if state[name].shape != shape
    ]


class FrozenMethod(Method):
    """A method that leaves both towers unchanged and works on their features.

    Attributes:
        imagenet_templates: Sentences for ImageNet.
        class_rows: Stored tensors with one row per class, if the score of a class depends on its own rows only.
    """

    imagenet_templates: ClassVar[Sequence[str]] = SEVEN_TEMPLATES
    class_rows: ClassVar[frozenset[str]] = frozenset()

    def texts(self) -> Tensor:
        """Text features of the sentences, not normalised: (T, C, D)."""
        return encode_class_texts(self.encoder, self.problem, self.options.templates, self.imagenet_templates)

    def prompt_features(self) -> Tensor | None:
        """Unit features of the sentences, (T, C, D)."""
        return F.normalize(self.texts(), dim=-1)

    def class_parameters(self) -> set[str]:
        """Parameters among `class_rows`."""
        return {name for name, _ in self.named_parameters() if name in self.class_rows}

    def without_class(self, index: int) -> Self:
        """Drop the rows of the class; the other scores stay: probabilities p_y / (1 - p_index)."""
        if not self.class_rows:
            return super().without_class(index)
        kept = self.other_classes(index)
        return self.with_rows(kept, [self.problem.names[c] for c in kept])

    def with_rows(self, kept: Sequence[int], names: Sequence[str]) -> Self:
        """A method with the rows `kept` of `class_rows` under these names, and its head."""
        other = self.copy_for(dataclasses.replace(self.problem, names=tuple(names)), kept)
        for name in self.results:
            tensor: Tensor = getattr(self, name)
            setattr(other, name, tensor[list(kept)] if name in self.class_rows else tensor)
        return other.build_head()


class ClassNameMethod(Method):
    """A method whose finished head is one unit text feature per class; `finish` computes them and needs no image."""

    results = MappingProxyType({"text_features": torch.float32})
    text_features: Tensor

    def finish(self, support: Support | None = None) -> None:
        """Compute `text_features`, (C, D)."""
        raise NotImplementedError

    def retarget(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """Encode the same sentences for other names."""
        other = self.copy_for(problem, sources)
        other.finish()
        return other.build_head()

    def prompt_features(self) -> Tensor | None:
        """The text features, (1, C, D)."""
        return self.text_features[None]

    def make_head(self) -> Head:
        """Softmax of τ cos."""
        return LinearHead.cosine(self.text_features, self.encoder.tau)

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """One text feature per class."""
        expected = (len(self.problem.names), self.encoder.feature_dim)
        return check_shapes(state, {"text_features": expected})
