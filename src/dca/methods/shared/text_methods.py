"""Trained methods whose finished head may need the features of the training images, for covariances.

Methods with one text feature per class, and the distances and losses of DCA for them.

They are trained as in their papers; the finished model can use the distance of DCA instead of the
cosine. The DCA paper shows in this way that covariances help other methods, too ("baseline + d_m").
With `alpha_in` or `beta_ts` the terms of DCA are added to their loss:

    L + α L_in + β L_ts

Methods that update layers of CLIP's towers and classify by one sentence per class.

    p(y | x) = softmax_y( τ cos(f, t_y) ),    L = CE(p, y)

f and t come from the updated towers; the sentences are those of the dataset.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.clip import CLIP
from dca.backbones.clip.blocks import Update
from dca.core.errors import UserError
from dca.core.options import opt
from dca.methods.base import Batch, Head, Problem, Step, Support, TrainedMethod, TrainingOptions
from dca.methods.shared import gaussian, losses
from dca.methods.shared.heads import LinearHead, MahalanobisHead, PromptHead
from dca.methods.shared.losses import IntraClass
from dca.methods.shared.metric import Metric
from dca.methods.shared.prompts import alphabetical, sentences
from dca.methods.shared.shots import ClassFeatures, OtherClasses, check_class_features


class KeepsShots(TrainedMethod):
    """A method that stores text features and the features of the training images; it has the option `test_metric`.

    A class with one image takes the covariance of all images of the fit. So that this stays as it is in a model for
    some of the classes, such a model also stores the others' images and texts (`rest_...`).
    """

    results = MappingProxyType(
        {
            "text_features": torch.float32,
            "shot_features": torch.float32,
            "shot_counts": torch.int64,
            "rest_features": torch.float32,
            "rest_counts": torch.int64,
            "rest_text": torch.float32,
        }
    )
    text_features: Tensor
    shot_features: Tensor
    shot_counts: Tensor
    rest_features: Tensor
    rest_counts: Tensor
    rest_text: Tensor

    @abstractmethod
    def encode_text(self) -> Tensor:
        """Unit text features of the classes, (C, D) or (M, C, D)."""

    @property
    def shots(self) -> ClassFeatures:
        """The stored features of the training images."""
        return ClassFeatures(
            self.shot_features, self.shot_counts, OtherClasses(self.rest_features, self.rest_counts, self.rest_text)
        )

    def keep(self, text: Tensor, shots: ClassFeatures) -> None:
        """Store text features (C, D) or (M, C, D) and training features."""
        rest = shots.rest or OtherClasses.none(text)
        self.text_features, self.shot_features, self.shot_counts = text, shots.features, shots.counts
        self.rest_features, self.rest_counts, self.rest_text = rest.features, rest.counts, rest.centers

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """As for every method; models had no `rest_...` at first."""
        text = state.get("text_features")
        if text is not None and text.dim() > 1 and not any(name.startswith("rest_") for name in state):
            rest = OtherClasses.none(text)
            state = {**state, "rest_features": rest.features, "rest_counts": rest.counts, "rest_text": rest.centers}
        super().restore(state)

    def prompt_features(self) -> Tensor | None:
        """The stored text features."""
        return self.text_features if self.text_features.dim() == 3 else self.text_features[None]

    def training_features(self) -> tuple[Tensor, Tensor] | None:
        """The stored features."""
        return (self.shot_features, self.shots.labels()) if len(self.shot_features) else None

    @property
    def shot_views(self) -> int:
        """Augmented views of each image that are stored; 0 for the evaluation view."""
        return 0

    @property
    def keeps_shots(self) -> bool:
        """Whether features of training images are stored with these options."""
        return True

    def without_shots(self) -> Any:
        """The options of a model without training features: there are no covariances."""
        covariances = self.options.test_metric == "mahalanobis"
        return dataclasses.replace(self.options, test_metric="euclidean") if covariances else self.options

    def retarget(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """Prompts on the new names; covariances by class, or Euclidean distances if one is missing."""
        other = self.copy_for(problem, sources)
        text = other.encode_text().detach()
        shots = self.shots.select(sources) or ClassFeatures.none(len(problem.names), text)
        if not len(shots.features):
            other.options = self.without_shots()
        other.keep(text, self._with_rest(shots, sources))
        return other.build_head()

    def _with_rest(self, shots: ClassFeatures, sources: Sequence[int | None]) -> ClassFeatures:
        """The selected shots, with the others' where a class takes the covariance of all images."""
        if not len(shots.features) or bool((shots.counts > 1).all()):
            return dataclasses.replace(shots, rest=None)
        left = sorted(set(range(len(self.shot_counts))) - set(sources))
        rest = self.shots.rest or OtherClasses.none(self.text_features)
        return dataclasses.replace(shots, rest=rest.joined(self.shots, self.text_features, left))

    def with_class(self, name: str, images: Support) -> Self:
        """Prompts on the new name, and a covariance from its images; without any, that of all images."""
        other = super().with_class(name, images)
        rows = self.shot_features[:0]
        if self.keeps_shots and len(images.labels):
            rows = self.encode_all(images, views=self.shot_views)
        other.options = self.options  # `retarget` gives up covariances for a class without a source
        other.keep(other.text_features, dataclasses.replace(self.shots.append(rows), rest=self.shots.rest))
        return other.build_head()


@dataclass(frozen=True, kw_only=True)
class TextHeadOptions(TrainingOptions):
    """A recipe, and how the finished model compares image with text."""

    test_metric: Metric = opt("cosine", "distance between image and text in the finished model")
    covariance: gaussian.Covariance = opt(
        "class",
        "of d_m: one covariance per class, shrunk by γ, or one for all",
        source="DCA",
    )
    center: Literal["text", "visual"] = opt("text", "centre of the covariance of a class", source="DCA")
    gamma1: float | None = opt(None, "γ1, shrinkage toward the identity; auto: by shots", low=0, source="DCA")
    gamma2: float | None = opt(None, "γ2, shrinkage of the off-diagonal; auto: by shots", low=0, source="DCA")
    floor: float = opt(0.0, gaussian.FLOOR_HELP, low=0, high=1)
    alpha_in: float = opt(0.0, "α, weight of DCA's L_in, which pulls images to the centre of their class", low=0)
    beta_ts: float = opt(0.0, "β, weight of DCA's L_ts, which pushes texts apart", low=0)


class TextHead(KeepsShots):
    """A method with one unit text feature per class; it adds its parameters, `encode_text` and `step`.

    A step adds `dca_terms` to its own terms.
    """

    # Whether text features are learned; otherwise L_ts would be a constant.
    learns_text: ClassVar[bool] = True
    head_options = ("gamma1", "gamma2", "floor", "covariance", "center")

    options: TextHeadOptions

    @classmethod
    def resolve(cls, options: Any, problem: Problem) -> Any:
        """γ1 and γ2 by shots."""
        gamma1, gamma2 = gaussian.gammas(problem.shots)
        return options.fill_unset(gamma1=gamma1, gamma2=gamma2)

    def __init__(self, clip: CLIP, problem: Problem, options: Any) -> None:
        super().__init__(clip, problem, options)
        idle = [("alpha_in", "image features")] if options.alpha_in and self.has_frozen_image_tower else []
        idle += [("beta_ts", "text features")] if options.beta_ts and not self.learns_text else []
        if idle:
            raise UserError(
                f"{self.name} has no use for {' and '.join(name for name, _ in idle)}",
                details=[f"{name}: it does not learn {what}" for name, what in idle],
                hint=f"leave {' and '.join(name for name, _ in idle)} at 0",
            )

    @property
    def keeps_shots(self) -> bool:
        """Only covariances need them."""
        return self.options.test_metric == "mahalanobis"

    @property
    def changeable_options(self) -> tuple[str, ...]:
        """All belong to covariances."""
        return self.head_options if self.keeps_shots else ()

    def prepare(self, support: Support) -> None:
        """The constants of L_in."""
        if self.options.alpha_in:
            self._intra_class = IntraClass.of_backbone(support, self.problem.names, self.problem.shots)

    def dca_terms(self, f: Tensor, t: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """α L_in of unit image features f (B, D) and β L_ts of unit text features t (C, D), where not 0."""
        terms = {}
        if self.options.alpha_in:
            terms["in"] = self.options.alpha_in * self._intra_class(f, labels)
        if self.options.beta_ts:
            terms["ts"] = self.options.beta_ts * losses.text_separation(t)
        return terms

    def finish(self, support: Support) -> None:
        """Text features and, for covariances, the training images through the finished image tower."""
        C, text = len(self.problem.names), self.encode_text().detach()
        shots = ClassFeatures.none(C, text)
        if self.keeps_shots:
            shots = ClassFeatures.group(self.encode_all(support), support.labels, C)
        self.keep(text, shots)

    def make_head(self) -> Head:
        """Softmax of τ cos, or of τ / (d + ε) with the chosen distance d."""
        u, tau, options = self.text_features[None], self.clip.tau, self.options
        if options.test_metric == "cosine":
            return LinearHead.cosine(self.text_features, tau)
        if options.test_metric == "euclidean":
            return PromptHead.of(u, tau, "euclidean")
        family = gaussian.dca(
            options.gamma1, options.gamma2, self.problem.shots, covariance=options.covariance, floor=options.floor
        )
        with gaussian.naming_classes(self.problem.names):
            return MahalanobisHead.of(u, self.shots, family, tau=tau, center=options.center)

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """One text feature per class; training features if the metric needs them."""
        expected = C, D = len(self.problem.names), self.clip.config.embed_dim
        found = tuple(state["text_features"].shape)
        problems = [] if found == expected else [f"text_features: shape {found}, expected {expected}"]
        if self.keeps_shots:
            return problems + check_class_features(state, C, D)
        kept = sum(state[name].numel() for name in ("shot_features", "rest_features", "rest_counts"))
        kept += int(state["shot_counts"].abs().sum())
        return problems + (["shot_features: none expected"] if kept else [])


TOWERS = ("visual", "text")


class UpdatedTowers(TextHead):
    """A method with updates of both towers; it adds its parameters and `updates`.

    steps_per_shot: training takes this many steps for each image of a class, whatever the number of classes.
    """

    trains_on = "images"
    steps_per_shot: ClassVar[int]

    @classmethod
    def resolve(cls, options: Any, problem: Problem) -> Any:
        """Steps as epochs: the training loop drops a short last batch unless it is the only one."""
        size = options.batch_size or 32
        steps = max(len(problem.names) * problem.shots // size, 1)
        epochs = -(-cls.steps_per_shot * problem.shots // steps)
        return super().resolve(options.fill_unset(batch_size=size, epochs=epochs), problem)

    def __init__(self, clip: CLIP, problem: Problem, options: Any) -> None:
        super().__init__(clip, problem, options)
        order = alphabetical(problem.names)
        self.sentences = clip.tokenizer(sentences([problem.names[place] for place in order], problem.template))
        self._places = torch.tensor(order, device=clip.device).argsort()

    @abstractmethod
    def updates(self) -> Mapping[str, Update]:
        """What is added to the outputs of layers, by name."""

    def training_updates(self, batch: Batch) -> Mapping[str, Update]:
        """The updates of a training step."""
        return self.updates()

    def encode(self, pixels: Tensor) -> Tensor:
        """f: unit image features through the updated tower, (B, D)."""
        return F.normalize(self.clip.encode_image(pixels, updates=self.updates()), dim=-1)

    def encode_text(self) -> Tensor:
        """t: unit features of the sentences through the updated tower, (C, D)."""
        return self.encode_sentences(self.updates())

    def encode_sentences(self, updates: Mapping[str, Update]) -> Tensor:
        """Unit features (C, D) of the sentences with these updates, in the order of the classes."""
        return F.normalize(self.clip.encode_text(self.sentences, updates=updates)[self._places], dim=-1)

    def step(self, batch: Batch) -> Step:
        """Cross-entropy of one batch through both towers."""
        updates = self.training_updates(batch)
        f = F.normalize(self.clip.encode_image(batch.inputs, updates=updates), dim=-1)
        return self.compare(f, self.encode_sentences(updates), batch.labels)

    def compare(self, f: Tensor, t: Tensor, labels: Tensor) -> Step:
        """The step of unit image features f (B, D) and unit class vectors t (C, D)."""
        logits = self.clip.tau * f @ t.T
        terms = {"cls": F.cross_entropy(logits, labels), **self.dca_terms(f, t, labels)}
        return Step(terms, logits.detach().softmax(dim=-1))
