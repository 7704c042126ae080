"""Zero-shot CLIP (Radford et al., 2021): p(y | x) = softmax_y( τ cos(f, t_y) ).

t_y is the text feature of the class name in one sentence, or the normalised mean of the unit
features of several sentences. Nothing is trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import torch

from dca.backbones.encoder import Ability, Encoder
from dca.core.errors import UserError
from dca.core.options import option
from dca.methods.base import HeldOutPredictions, Problem, Support, TrainingOptions
from dca.methods.shared.frozen_features import SEVEN_TEMPLATES, ClassNameMethod, encode_class_texts, unit_mean


@dataclass(frozen=True, kw_only=True)
class ZeroShotOptions(TrainingOptions):
    """Options of zero-shot CLIP."""

    templates: tuple[str, ...] = option((), "sentences with {} for the name; none: by ensemble")
    ensemble: Literal["none", "seven"] = option(
        "none",
        "the sentence of the dataset, or the seven of CLIP's authors",
        source="CLIP",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if wrong := [t for t in self.templates if "{}" not in t]:
            raise UserError("templates without {} for the class name", details=wrong)


class ZeroShot(ClassNameMethod):
    """CLIP without training: one sentence per class."""

    name = "zero_shot"
    paper = "Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021"
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_FEATURES})
    trains_on = "nothing"
    Options = ZeroShotOptions
    has_cheap_held_out = True
    options: ZeroShotOptions

    @classmethod
    def for_problem(cls, encoder: Encoder, problem: Problem) -> Self:
        """Zero-shot CLIP for a problem, with its head: what other methods are compared with."""
        method = cls.build(encoder, problem, ZeroShotOptions())
        method.finish()
        return method.build_head()

    def finish(self, support: Support | None = None) -> None:
        """Text features of the sentences, normalised, averaged, normalised again: (C, D)."""
        ensemble = SEVEN_TEMPLATES if self.options.ensemble == "seven" else (self.problem.template,)
        self.text_features = unit_mean(
            encode_class_texts(self.encoder, self.problem, self.options.templates or ensemble)
        )

    @torch.no_grad()
    def predict_held_out(self, support: Support) -> HeldOutPredictions:
        """The predictions themselves: no image was used to make the head."""
        p = self.make_head()(self.encode_all(support)).double()
        return HeldOutPredictions((p / p.sum(dim=1, keepdim=True)).cpu().numpy(), "zero-shot predictions")


METHOD = ZeroShot
