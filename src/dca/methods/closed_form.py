"""The closed form: the default. Nothing is trained, and everything is selected by exact leave-one-out.

Three experts score an image, and their scales make the probabilities:

    z_c(x) = a (xᵀ P m_c - ½ m_cᵀ P m_c)  +  b τ x·t_c  +  s κ(x, ·) A_c,      p = softmax(z)

1. A Gaussian head: one covariance for all classes, class means in which the text counts as k images
   (`shared/experts.py` has the equations).
2. Zero-shot CLIP.
3. Kernel ridge over the training images (`shared/experts.py`).

k, the ridges and the scales a, b, s have the least log-loss on training images that are left out one
at a time, with their copies; the held-out predictions have a closed form, so no model is fitted twice. They also
give an honest accuracy without test images, calibrated probabilities, labels that look wrong, and p-values for
"none of these". Where names mean nothing to CLIP, b becomes 0 and k small. With one image per class there is
nothing to leave out; then zero-shot CLIP's log-loss on the images decides what text is worth
(`shared/product_of_experts.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.encoder import Ability, Encoder
from dca.backbones.pool import Pool
from dca.core.errors import UserError
from dca.core.options import option
from dca.core.text import pluralize
from dca.methods.base import CurvePoint, Head, HeldOutPredictions, Support
from dca.methods.shared.conformal import ConformalPredictor
from dca.methods.shared.experts import TextGaussian
from dca.methods.shared.familiarity import Familiarity, find_occasions
from dca.methods.shared.frozen_features import FrozenMethod, FrozenOptions, check_shapes, unit_mean
from dca.methods.shared.product_of_experts import (
    MAX_REFITTED,
    ExpertPool,
    Experts,
    FixedHyperparameters,
    Hyperparameters,
    LabelReader,
    Refits,
    learning_curve,
    refit_in_folds,
    split_features,
    text_gain,
)
from dca.stats.conformal import ClassRanks
from dca.stats.folds import fold_shortage

# Share of the uncertainty that names must remove to be of use; random names remove less by chance.
NO_TEXT = 0.02
# Share of the images that must be of series before the fit says so; of images drawn at random it is nearly none.
SERIES = 0.1


@dataclass(frozen=True, kw_only=True)
class ClosedFormOptions(FrozenOptions):
    """Options of the closed form. The training options are not used."""

    text_shots: float | None = option(None, "k, number of images that the text of a class counts as", low=0)
    ridge: float | None = option(None, "g, ridge of the covariance in units of its mean variance", low=1e-6)
    gaussian_scale: float | None = option(None, "a, scale of the Gaussian head", low=0)
    text_scale: float | None = option(None, "b, scale of zero-shot CLIP", low=0)
    kernel_scale: float | None = option(None, "s, scale of kernel ridge; 0 leaves it out", low=0)
    kernel_ridge: float | None = option(None, "ridge of the kernel in units of its mean eigenvalue", low=1e-9)
    kernel_width: float = option(2.0, "w of exp(-w (1 - x·x') / mean(1 - x·x'))", low=1e-6)
    kernel_images: int = option(
        3000, "most training images that kernel ridge keeps; of more, half as many landmarks; 0 leaves it out", low=0
    )

    def fixed(self) -> FixedHyperparameters:
        """The hyperparameters that are set, which are not selected."""
        scales = (self.gaussian_scale, self.text_scale, self.kernel_scale)
        return FixedHyperparameters(self.text_shots, self.ridge, self.kernel_ridge, scales)


class ClosedForm(FrozenMethod):
    """Gaussian head, zero-shot text and kernel ridge, weighed by exact leave-one-out."""

    name = "closed_form"
    paper = "this library, 2026: docs/closed-form.md"
    trains_on = "nothing"
    has_cheap_held_out = True
    calibrated = True
    learns_other = True
    Options = ClosedFormOptions
    kept_defaults = MappingProxyType({
        "text_shots": "4 was chosen, with class names that say what is to be seen; those of own classes may say "
        "nothing, and then leave-one-out takes a small k",
    })  # fmt: skip
    results = MappingProxyType(
        {
            "image_features": torch.float32,
            "image_labels": torch.int64,
            "image_groups": torch.int64,
            "other_features": torch.float32,
            "text_features": torch.float32,
            "label_text": torch.float32,
            "hyperparameters": torch.float64,
        }
    )
    options: ClosedFormOptions
    image_features: Tensor
    image_labels: Tensor
    image_groups: Tensor
    other_features: Tensor
    text_features: Tensor
    label_text: Tensor
    hyperparameters: Tensor

    def finish(self, support: Support) -> None:
        """Store the features, and select the hyperparameters."""
        self.image_features, self.image_labels = self.encode_all(support), support.labels
        self.image_groups, self.other_features = support.groups, self.image_features[:0]
        self.text_features = unit_mean(self.texts())
        self.label_text = self._encode_labels()
        selected = [astuple(own) for own in self.experts.select()]
        self.hyperparameters = torch.tensor(selected, dtype=torch.float64, device=self.encoder.device)

    def predict_held_out(self, support: Support) -> HeldOutPredictions:
        """By models that are fitted again where there are few images, else by `leave_one_out`; series leave together.

        The numbers of the model are chosen with copies as all that leaves together: that is another question.
        """
        if not self.can_be_refitted:
            pool = self.experts.with_groups(self.occasions)
            logits = pool.held_out_logits(self.selected, fixed_shares=True)
            return HeldOutPredictions(logits.softmax(dim=-1).numpy(), "leave-one-out", occasions=self.occasions.numpy())
        labels, occasions, left_out = self.experts.labels.numpy(), self.occasions.numpy(), self._refits.left_out
        return HeldOutPredictions(
            self._refits.probabilities.numpy(),
            f"{self._refits.folds}-fold cross-validation",
            fold_shortage(labels, occasions, left_out),
            occasions,
        )

    def leave_one_out(self) -> HeldOutPredictions:
        """Exact leave-one-out, with the hyperparameters held fixed."""
        logits = self.experts.held_out_logits(self.selected)
        return HeldOutPredictions(logits.softmax(dim=-1).numpy(), "leave-one-out")

    @property
    def can_be_refitted(self) -> bool:
        """Whether there are so few images that the model can be fitted again in folds; else leave-one-out is close."""
        return self.experts.held_out_scores <= MAX_REFITTED

    @cached_property
    def _refits(self) -> Refits:
        return refit_in_folds(self.experts, self.occasions)

    @cached_property
    def occasions(self) -> Tensor:
        """Number (N,) that images share which are of one occasion, such as a series of one object, or copies."""
        features, labels, groups = (part.cpu() for part in (self.image_features, self.image_labels, self.image_groups))
        return find_occasions(features.double(), labels, groups)

    @property
    def can_hold_out(self) -> bool:
        """Whether enough images can be left out to select anything by them."""
        return self.experts.source.can_hold_out

    @property
    def selected(self) -> tuple[Hyperparameters, ...]:
        """The hyperparameters of the head, for each encoder."""
        return tuple(Hyperparameters(*own) for own in self.hyperparameters.tolist())

    @cached_property
    def experts(self) -> ExpertPool:
        """The experts on the training images, for each encoder."""
        # On the CPU: the selection takes thousands of small steps, each of which would wait for a GPU.
        y, sizes = self.image_labels.cpu(), [member.feature_dim for member in self.encoder.members]
        # Numbered anew: removed classes leave gaps, and a file from elsewhere may hold any numbers.
        _, groups = torch.unique(self.image_groups.cpu(), return_inverse=True)
        images, texts = (
            split_features(self.image_features.cpu(), sizes),
            split_features(self.text_features.cpu(), sizes),
        )
        parts = []
        for member, x, text in zip(self.encoder.members, images, texts, strict=True):
            gaussian, options = TextGaussian.from_features(x, y, text, groups), self.options
            width, most = options.kernel_width, options.kernel_images
            reader = self._label_reader(member, texts)
            parts.append(Experts.build(gaussian, member.tau, options.fixed(), width=width, most=most, reader=reader))
        return ExpertPool(tuple(parts))

    def _encode_labels(self) -> Tensor:
        """Unit text features (L, T) of the labels that members of the pool know, one after the other, by its reader."""
        pool = self.encoder
        if not isinstance(pool, Pool) or pool.reader is None:
            return self.text_features[:0, :0]
        names = [name for member in pool.members for name in member.label_names]
        if not names:
            return self.text_features[:0, :0]
        with torch.no_grad():
            return F.normalize(
                pool.reader.encode_text([self.problem.template.replace("{}", name) for name in names]), dim=-1
            )

    def _label_reader(self, member: Encoder, texts: Sequence[Tensor]) -> LabelReader | None:
        """What reads names through the labels of a member; texts: of the classes, for each member."""
        pool = self.encoder
        if not isinstance(pool, Pool) or pool.reader is None or not member.label_names or not len(self.label_text):
            return None
        first = sum(len(other.label_names) for other in pool.members[: pool.members.index(member)])
        weight, bias = member.label_classifier()
        own = self.label_text[first : first + len(bias)]
        text = texts[pool.members.index(pool.reader)]
        return LabelReader(weight.cpu(), bias.cpu(), own.cpu(), text, pool.reader.tau)

    @cached_property
    def _conformal(self) -> ConformalPredictor:
        return ConformalPredictor(self.experts, self.selected)

    @cached_property
    def familiarity(self) -> Familiarity:
        """What is familiar by the training images and the other images."""
        parts = (self.image_features, self.image_labels, self.image_groups)
        features, labels, groups = (part.cpu() for part in parts)
        return Familiarity.from_features(features, labels, groups, len(self.problem.names), self.other_features.cpu())

    def p_values(self, features: Tensor) -> Tensor | None:
        """By how familiar images are, compared with held-out training images."""
        return self.familiarity.p_values(features.cpu()) if self.can_hold_out else None

    def smallest_p_value(self) -> float | None:
        """1 / (n + 1), where the training images that can be left out are worth n."""
        return self.familiarity.smallest_p_value if self.can_hold_out else None

    def learn_other(self, support: Support) -> None:
        """Keep images of none of the classes, which the p-values take into account."""
        self._set_other(self.encode_all(support))

    def stored_other_features(self) -> Tensor:
        """Unit features of the other images."""
        return self.other_features

    def keep_other(self, kept: Sequence[bool]) -> None:
        """Keep some of the other images."""
        self._set_other(self.other_features[torch.tensor(kept, dtype=torch.bool, device=self.other_features.device)])

    def _set_other(self, features: Tensor) -> None:
        """Replace the other images, and forget what was computed with those before."""
        self.other_features = features
        self.__dict__.pop("familiarity", None)

    def class_ranks(self, features: Tensor) -> ClassRanks | None:
        """By jackknife+ with the hyperparameters held fixed."""
        return self._conformal.ranks(features.cpu()) if self.can_hold_out else None

    def learning_curve(self, accuracy: float) -> list[CurvePoint]:
        """By models of halves of the training images."""
        return learning_curve(self.experts, self.selected, self.occasions, accuracy)

    def notes(self) -> list[str]:
        """Copies, series, and class names that do not help."""
        notes = list[str]()
        different = torch.unique(torch.stack([self.image_labels, self.image_groups]), dim=1)
        if copies := len(self.image_groups) - different.shape[1]:
            images = pluralize(copies, "photo", "are", of=len(self.image_groups))
            notes.append(f"{images} copies or near-copies of others of their class, which count as one photo.")
        if self.can_hold_out and (alike := self.familiarity.in_series) > SERIES * len(self.familiarity.x):
            images = pluralize(alike, "photo", "are", of=len(self.familiarity.x))
            notes.append(
                f"{images} much like another one of their class, as in a series: a series counts as one photo in the "
                "estimate. Take photos on different occasions."
            )
        if Ability.TEXT_FEATURES in self.encoder.abilities and not self._names_help():
            notes.append("The class names tell CLIP nothing about these images, so that only the images count.")
        return notes

    def _names_help(self) -> bool:
        pool = self.experts
        return max(text_gain(part.zero_shot, pool.labels)[0] for part in pool.parts) >= NO_TEXT

    def make_head(self) -> Head:
        """Softmax of the three experts."""
        return self.experts.make_head(self.selected).to(self.encoder.device)

    def with_class(self, name: str, images: Support) -> Self:
        """Exactly the fit of all classes with the same hyperparameters; no other image is read again."""
        if not len(images.labels):
            raise UserError("a closed_form model needs images of a new class", hint="give at least one image of it")
        other = self._copy_for_names([*self.problem.names, name])
        groups = images.groups + self.image_groups.max() + 1
        other.image_features = torch.cat([self.image_features, self.encode_all(images)])
        other.image_labels = torch.cat([self.image_labels, images.labels])
        other.image_groups = torch.cat([self.image_groups, groups])
        return other.build_head()

    def without_class(self, index: int) -> Self:
        """Exactly the fit of the other classes with the same hyperparameters."""
        kept = self.image_labels != index
        other = self._copy_for_names([self.problem.names[c] for c in self.other_classes(index)])
        labels = self.image_labels[kept]
        other.image_features, other.image_groups = self.image_features[kept], self.image_groups[kept]
        other.image_labels = labels - (labels > index).long()
        return other.build_head()

    def with_name(self, index: int, name: str) -> Self:
        """Exactly the fit with another name and the same hyperparameters."""
        return self._copy_for_names(self.names_with(index, name)).build_head()

    def _copy_for_names(self, names: Sequence[str]) -> Self:
        """A copy with the same images and hyperparameters and the texts of these names, without a head."""
        other = type(self)(self.encoder, dataclasses.replace(self.problem, names=tuple(names)), self.options)
        for result in self.results:
            setattr(other, result, getattr(self, result))
        other.text_features = unit_mean(other.texts())
        return other

    def _label_text_shape(self) -> tuple[int, int]:
        pool = self.encoder
        labels = sum(len(member.label_names) for member in pool.members)
        return (labels, pool.reader.feature_dim) if isinstance(pool, Pool) and pool.reader and labels else (0, 0)

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """Feature, label and group of each image, features of other images and of class texts, hyperparameters."""
        C, D, N = len(self.problem.names), self.encoder.feature_dim, len(state["image_features"])
        shapes = {
            "image_features": (N, D),
            "image_labels": (N,),
            "image_groups": (N,),
            "other_features": (len(state["other_features"]), D),
            "text_features": (C, D),
            "label_text": self._label_text_shape(),
            "hyperparameters": (len(self.encoder.members), len(dataclasses.fields(Hyperparameters))),
        }
        problems = check_shapes(state, shapes)
        labels = state["image_labels"]
        if not problems and (not N or labels.min() < 0 or labels.max() >= C):
            problems.append(f"image_labels: numbers from 0 to {C - 1} expected")
        return problems


METHOD = ClosedForm
