"""LAMM: label alignment (Gao et al., AAAI 2024).

The class names themselves are learned. The first ℓ tokens of each name (ℓ: the length of the
shortest one) become vectors A_c, which start as the embeddings A°_c of those tokens; "a photo of
a", the rest of the name and the image tower are not changed:

    t_c = g([SOS] a photo of a A_c [rest of name c] [.] [EOT]),    t°_c = t_c at A° ,    z = τ cos(f, t)
    L = CE(z) + λ ‖A - A°‖² + mean_i (1 - cos(t_{y_i}, t°_{y_i})) + 0.05 T² H(softmax(z/T), softmax(z°/T))

H(p, q) = -Σ p log q, mean over the batch, T = 2; i runs over the batch, and that term is dropped
if all its labels are equal. Paper and published code differ twice, and the published figures
come from the code, which is the default here: λ is 1 in the code and 1/K for K shots in the paper
(`anchor`), and the first argument of H is the student in the code, the teacher in distillation
(`distillation`).

λ acts on raw token embeddings, so its effect depends on their length in the backbone. By default A and A° are
divided by s (`shared/prompts.py`), so that they have the size that they have in OpenAI's CLIP, and A is
multiplied by s where the text tower reads it:

    s = mean ‖row of the embedding table‖ / 0.4 · 100 / τ

`recipe=paper` is s = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.dual_encoder import DualEncoder
from dca.backbones.encoder import Ability
from dca.core.options import option, replace_options
from dca.methods.base import Batch, Problem, Step, describe_terms
from dca.methods.shared.prompts import (
    CLIP_TOKEN_NORM,
    UnitRecipe,
    check_name_lengths,
    clip_scale,
    scale_of_one,
    tokenize_names,
)
from dca.methods.shared.text_feature_methods import TextFeatureMethod, TextFeatureOptions


@dataclass(frozen=True, kw_only=True)
class LAMMOptions(TextFeatureOptions):
    """Options of LAMM."""

    epochs: int = option(50, "passes over the training images", low=0, source="LAMM's code")
    batch_size: int = option(32, "images per step", low=1, source="LAMM's code")
    learning_rate: float | None = option(
        0.002, "learning rate after warm-up; none: from the gradient", low=0, empty="none", source="LAMM's code"
    )
    n_tokens: int | None = option(None, "ℓ, learned tokens per name; auto: as many as the shortest name has", low=1)
    phrase: str = option("a photo of a", "fixed words in front of the name", source="LAMM's code")
    suffix: str = option(".", "text after the class name", source="LAMM's code")
    anchor: Literal["code", "paper"] = option("code", "λ: 1 as in the code, 1/shots as in the paper")
    feature_weight: float = option(
        1.0, "weight of the term that keeps text features near their start", low=0, source="LAMM's code"
    )
    distillation_weight: float = option(0.05, "weight of the distillation term", low=0, source="LAMM's code")
    distillation: Literal["student", "teacher"] = option(
        "student", "first argument of H: the student, as in the code, or the teacher"
    )
    recipe: UnitRecipe = option(
        "scaled", "token embeddings scaled to the size of CLIP's, or as they are, as in the paper"
    )
    temperature: float = option(2.0, "T, temperature of the distillation", low=1e-6, source="LAMM's code")


class LAMM(TextFeatureMethod):
    """Label alignment: learned class names in a fixed sentence."""

    name = "lamm"
    paper = "Gao et al., LAMM: Label Alignment for Multi-Modal Prompt Learning, AAAI 2024"
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_PROMPTS})
    trains_on = "images"
    Options = LAMMOptions
    term_titles = describe_terms(names="drift of names", features="drift of texts", distillation="distillation")
    options: LAMMOptions

    def __init__(self, clip: DualEncoder, problem: Problem, options: LAMMOptions) -> None:
        super().__init__(clip, problem, options)
        ids = tokenize_names(clip, problem.names, options.suffix)
        shortest = min(len(words) for words in tokenize_names(clip, problem.names, "")) - 1
        length = min(options.n_tokens or shortest, shortest)
        self.options = replace_options(options, n_tokens=length)  # kept when some of the classes are selected
        check_name_lengths(clip, problem.names, ids, len(clip.tokenizer.encode(options.phrase)))
        self.rest = [own[length:] for own in ids]
        table = clip.text.embedding.weight
        self._unit = scale_of_one(table)
        if options.recipe == "scaled":
            self._unit = clip_scale(table, CLIP_TOKEN_NORM, clip.logit_scale.detach().exp())
        self._start = torch.stack([clip.text.embed(own[:length]) for own in ids]).detach() / self._unit
        self.labels = nn.Parameter(self._start.clone())

    def class_parameters(self) -> set[str]:
        """The learned names."""
        return {"labels"}

    def with_name(self, index: int, name: str) -> Self:
        """Not possible: the names themselves are learned."""
        raise self.renaming_error()

    def text_contexts(self) -> Sequence[Tensor]:
        """The learned names: one context per class."""
        return [self._unit * self.labels]

    def encode_text(self) -> Tensor:
        """t: unit text features, (C, D)."""
        return self._with_names(self.labels)

    @cached_property
    def teacher(self) -> Tensor:
        """t°: unit text features of the names as written, (C, D)."""
        with torch.no_grad():
            return self._with_names(self._start)

    def _with_names(self, labels: Tensor) -> Tensor:
        """Unit text features (C, D) of names that begin with the vectors s · `labels` (C, ℓ, W)."""
        phrase = self.clip.text.embed(self.clip.tokenizer.encode(self.options.phrase))
        context = torch.cat([phrase.expand(len(labels), -1, -1), self._unit * labels], dim=1)
        return F.normalize(self.clip.encode_prompts([context], self.rest)[0], dim=-1)

    def step(self, batch: Batch) -> Step:
        """Cross-entropy, and the terms that keep names, text features and probabilities near their start."""
        options, y = self.options, batch.labels
        f, t = self.encode(batch.inputs), self.encode_text()
        z, z0 = self.clip.tau * f @ t.mT, self.clip.tau * f @ self.teacher.mT
        anchor = (self.labels - self._start).square().sum()
        drift = (1 - (t[y] * self.teacher[y]).sum(dim=-1)).mean() * (y != y[0]).any()
        terms = {
            "cls": F.cross_entropy(z, y),
            "names": anchor if options.anchor == "code" else anchor / self.problem.shots,
            "features": options.feature_weight * drift,
            "distillation": options.distillation_weight * self._distillation(z, z0),
            **self.dca_terms(f, t, y),
        }
        return Step(terms, z.detach().softmax(dim=-1))

    def _distillation(self, z: Tensor, z0: Tensor) -> Tensor:
        """T² H of student z and teacher z0, both (B, C), in the chosen order."""
        T = self.options.temperature
        p, q = (z, z0) if self.options.distillation == "student" else (z0, z)
        return -(T**2) * ((p / T).softmax(dim=-1) * (q / T).log_softmax(dim=-1)).sum(dim=-1).mean()


METHOD = LAMM
