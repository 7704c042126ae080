"""Base classes of trained methods that compare images with text features.

`ClassFeatureMethod` stores text features and, for covariances, the features of the training images.

`TextFeatureMethod` has one text feature per class. Methods are trained as in their papers; the finished model can use
the distance of DCA instead of the cosine. The DCA paper shows in this way that covariances help other methods, too
("baseline + d_m"). With `alpha_in` or `beta_ts` the terms of DCA are added to their loss:

    L + α L_in + β L_ts

`TowerUpdateMethod` updates layers of CLIP's towers and classifies by one sentence per class, that of the dataset:

    p(y | x) = softmax_y( τ cos(f, t_y) ),    L = CE(p, y),    f and t from the updated towers
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

from dca.backbones.blocks import Update
from dca.backbones.encoder import Encoder
from dca.core.errors import UserError
from dca.core.options import option, replace_options
from dca.methods.base import Batch, Head, Problem, Step, Support, TrainedMethod, TrainingOptions
from dca.methods.shared import gaussian, losses
from dca.methods.shared.class_features import ClassFeatures, OtherClasses, check_class_features
from dca.methods.shared.frozen_features import check_shapes
from dca.methods.shared.heads import LinearHead, MahalanobisHead, PromptHead
from dca.methods.shared.losses import IntraClass
from dca.methods.shared.metric import Metric
from dca.methods.shared.prompts import alphabetical_order, fill_template


class ClassFeatureMethod(TrainedMethod):
    """A method that stores text features and features of the training images; it has the option `test_metric`.

    A class with one image takes the covariance of all images of the fit. So that this stays as it is in a model for
    some of the classes, such a model also stores the images and texts of the other classes (`other_...`).
    """

    results = MappingProxyType(
        {
            "text_features": torch.float32,
            "train_features": torch.float32,
            "train_counts": torch.int64,
            "other_features": torch.float32,
            "other_counts": torch.int64,
            "other_text": torch.float32,
        }
    )
    text_features: Tensor
    train_features: Tensor
    train_counts: Tensor
    other_features: Tensor
    other_counts: Tensor
    other_text: Tensor

    @abstractmethod
    def encode_text(self) -> Tensor:
        """Unit text features of the classes, (C, D) or (M, C, D)."""

    @property
    def class_features(self) -> ClassFeatures:
        """The stored features of the training images."""
        others = OtherClasses(self.other_features, self.other_counts, self.other_text)
        return ClassFeatures(self.train_features, self.train_counts, others)

    def store(self, text: Tensor, features: ClassFeatures) -> None:
        """Store text features (C, D) or (M, C, D) and training features."""
        others = features.others or OtherClasses.empty(text)
        self.text_features, self.train_features, self.train_counts = text, features.features, features.counts
        self.other_features, self.other_counts, self.other_text = others.features, others.counts, others.centers

    def prompt_features(self) -> Tensor | None:
        """The stored text features."""
        return self.text_features if self.text_features.dim() == 3 else self.text_features[None]

    def stored_training_features(self) -> tuple[Tensor, Tensor] | None:
        """The stored features and their classes."""
        return (self.train_features, self.class_features.labels()) if len(self.train_features) else None

    @property
    def feature_views(self) -> int:
        """Number of augmented views of each image that are stored; 0 for the evaluation view."""
        return 0

    @property
    def stores_features(self) -> bool:
        """Whether features of training images are stored with these options."""
        return True

    def options_without_features(self) -> Any:
        """The options of a model that stores no training features, so that there are no covariances."""
        covariances = self.options.test_metric == "mahalanobis"
        return replace_options(self.options, test_metric="euclidean") if covariances else self.options

    def retarget(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """Put the prompts on the new names; covariances follow their classes.

        If a class has no source, distances become Euclidean.
        """
        other = self.copy_for(problem, sources)
        text = other.encode_text().detach()
        features = self.class_features.select(sources) or ClassFeatures.empty(len(problem.names), text)
        if not len(features.features):
            other.options = self.options_without_features()
        other.store(text, self._with_other_classes(features, sources))
        return other.build_head()

    def _with_other_classes(self, features: ClassFeatures, sources: Sequence[int | None]) -> ClassFeatures:
        """Add the images of the other classes if a selected class takes the covariance of all images."""
        if not len(features.features) or bool((features.counts > 1).all()):
            return dataclasses.replace(features, others=None)
        removed = sorted(set(range(len(self.train_counts))) - set(sources))
        others = self.class_features.others or OtherClasses.empty(self.text_features)
        return dataclasses.replace(features, others=others.extend(self.class_features, self.text_features, removed))

    def with_class(self, name: str, images: Support) -> Self:
        """Put the prompts on the new name; its covariance is that of its images, or of all images without any."""
        other = super().with_class(name, images)
        rows = self.train_features[:0]
        if self.stores_features and len(images.labels):
            rows = self.encode_all(images, views=self.feature_views)
        other.options = self.options  # `retarget` gives up covariances for a class without a source
        features = dataclasses.replace(self.class_features.append(rows), others=self.class_features.others)
        other.store(other.text_features, features)
        return other.build_head()


@dataclass(frozen=True, kw_only=True)
class TextFeatureOptions(TrainingOptions):
    """Training options, and how the finished model compares images with texts."""

    test_metric: Metric = option("cosine", "distance between image and text in the finished model")
    covariance: gaussian.Covariance = option(
        "class",
        "covariance of d_m: one per class, shrunk by γ, or one for all",
        source="DCA",
    )
    center: Literal["text", "visual"] = option("text", "centre of the covariance of a class", source="DCA")
    gamma1: float | None = option(None, "γ1, shrinkage toward the identity; auto: by shots", low=0, source="DCA")
    gamma2: float | None = option(None, "γ2, shrinkage of the off-diagonal; auto: by shots", low=0, source="DCA")
    floor: float = option(0.0, gaussian.FLOOR_HELP, low=0, high=1)
    alpha_in: float = option(0.0, "α, weight of DCA's L_in, which pulls images to the centre of their class", low=0)
    beta_ts: float = option(0.0, "β, weight of DCA's L_ts, which pushes texts apart", low=0)


class TextFeatureMethod(ClassFeatureMethod):
    """A method with one unit text feature per class; it adds its parameters, `encode_text` and `step`.

    A step adds `dca_terms` to its own terms.
    """

    # Whether text features are learned; otherwise L_ts would be a constant.
    learns_text: ClassVar[bool] = True
    head_options = ("gamma1", "gamma2", "floor", "covariance", "center")

    options: TextFeatureOptions

    @classmethod
    def resolve(cls, options: Any, problem: Problem) -> Any:
        """γ1 and γ2 by shots."""
        gamma1, gamma2 = gaussian.paper_gammas(problem.shots)
        return options.fill_unset(gamma1=gamma1, gamma2=gamma2)

    def __init__(self, encoder: Encoder, problem: Problem, options: Any) -> None:
        super().__init__(encoder, problem, options)
        unused = [("alpha_in", "image features")] if options.alpha_in and self.has_frozen_image_tower else []
        unused += [("beta_ts", "text features")] if options.beta_ts and not self.learns_text else []
        if unused:
            names = " and ".join(name for name, _ in unused)
            raise UserError(
                f"{self.name} has no use for {names}",
                details=[f"{name}: it does not learn {what}" for name, what in unused],
                hint=f"leave {names} at 0",
            )

    @property
    def stores_features(self) -> bool:
        """Only covariances need them."""
        return self.options.test_metric == "mahalanobis"

    @property
    def changeable_options(self) -> tuple[str, ...]:
        """All belong to covariances."""
        return self.head_options if self.stores_features else ()

    def prepare(self, support: Support) -> None:
        """Compute the constants of L_in."""
        if self.options.alpha_in:
            self._intra_class = IntraClass.from_support(support, self.problem.names, self.problem.shots)

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
        features = ClassFeatures.empty(C, text)
        if self.stores_features:
            features = ClassFeatures.group(self.encode_all(support), support.labels, C)
        self.store(text, features)

    def make_head(self) -> Head:
        """Softmax of τ cos, or of τ / (d + ε) with the chosen distance d."""
        u, tau, options = self.text_features[None], self.encoder.tau, self.options
        if options.test_metric == "cosine":
            return LinearHead.cosine(self.text_features, tau)
        if options.test_metric == "euclidean":
            return PromptHead.from_text(u, tau, "euclidean")
        family = gaussian.dca_gaussian(
            options.gamma1, options.gamma2, self.problem.shots, covariance=options.covariance, floor=options.floor
        )
        with gaussian.name_classes_in_error(self.problem.names):
            return MahalanobisHead.from_text(u, self.class_features, family, tau=tau, center=options.center)

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """One text feature per class; training features if the metric needs them."""
        expected = C, D = len(self.problem.names), self.encoder.feature_dim
        problems = check_shapes(state, {"text_features": expected})
        if self.stores_features:
            return problems + check_class_features(state, C, D)
        stored = sum(state[name].numel() for name in ("train_features", "other_features", "other_counts"))
        stored += int(state["train_counts"].abs().sum())
        return problems + (["train_features: none expected"] if stored else [])


TOWERS = ("visual", "text")


class TowerUpdateMethod(TextFeatureMethod):
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

    def __init__(self, encoder: Encoder, problem: Problem, options: Any) -> None:
        super().__init__(encoder, problem, options)
        order = alphabetical_order(problem.names)
        self.sentences = self.clip.tokenizer(fill_template([problem.names[c] for c in order], problem.template))
        self._class_order = torch.tensor(order, device=encoder.device).argsort()

    @abstractmethod
    def updates(self) -> Mapping[str, Update]:
        """Functions whose values are added to the outputs of layers, by name."""

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
        return F.normalize(self.clip.encode_text(self.sentences, updates=updates)[self._class_order], dim=-1)

    def step(self, batch: Batch) -> Step:
        """Cross-entropy of one batch through both towers."""
        updates = self.training_updates(batch)
        f = F.normalize(self.clip.encode_image(batch.inputs, updates=updates), dim=-1)
        return self.compare(f, self.encode_sentences(updates), batch.labels)

    def compare(self, f: Tensor, t: Tensor, labels: Tensor) -> Step:
        """The step of unit image features f (B, D) and unit class vectors t (C, D)."""
        logits = self.encoder.tau * f @ t.T
        terms = {"cls": F.cross_entropy(logits, labels), **self.dca_terms(f, t, labels)}
        return Step(terms, logits.detach().softmax(dim=-1))
