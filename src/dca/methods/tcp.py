"""TCP: textual-based class-aware prompt tuning (Yao et al., CVPR 2024).

A shared context V enters the text tower; before one of its later blocks (8 of 0..11) its
rows are replaced by tokens Q_c that a small network makes of CLIP's text feature of the class:

    t°_c = text feature of the dataset's sentence about c,    Q_c = h(t°_c) as M tokens
    h = Linear(D → D/4), QuickGELU, Linear(D/4 → M·W)
    t_c = g([SOS] V [name c] [words of the dataset] [EOT];  rows 1..M = Q_c at block 8)
    L = CE(τ cos(f, t)) + λ (1 - mean_c cos(t_c, t°_c)),    λ = 8

V acts in blocks 0 to 7 only. Student and teacher have different sentences, as published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.blocks import Activation
from dca.backbones.dual_encoder import DualEncoder
from dca.backbones.encoder import Ability
from dca.core.errors import UserError
from dca.core.options import option
from dca.methods.base import Batch, OptimizerName, Problem, Step, describe_terms
from dca.methods.shared.prompts import check_name_lengths, fill_template, init_linear, random_tokens, tokenize_names
from dca.methods.shared.text_feature_methods import TextFeatureMethod, TextFeatureOptions

# Sentence after V; for other datasets the name and a full stop.
STUDENTS = {
    "oxford_pets": "{}, a type of pet.",
    "oxford_flowers": "{}, a type of flower.",
    "fgvc_aircraft": "{}, a type of aircraft.",
    "dtd": "{} texture.",
    "stanford_cars": "{}, a type of car",
    "food101": "{}, a type of food.",
    "ucf101": "person doing {}.",
}
# Datasets for which the sentence of the teacher is not that of zero-shot CLIP.
TEACHERS = {
    "dtd": "a photo of a {}, a type of texture.",
    "fgvc_aircraft": "a photo of an aircraft {}.",
    "food101": "a photo of a {}, a type of food.",
}
SHORTER = {"imagenet", "sun397"}


@dataclass(frozen=True, kw_only=True)
class TCPOptions(TextFeatureOptions):
    """Options of TCP."""

    epochs: int | None = option(
        None, "passes over the training images; auto: 25 for ImageNet and SUN397, else 50", low=0, source="TCP's code"
    )
    batch_size: int = option(32, "images per step", low=1, source="TCP's code")
    learning_rate: float | None = option(
        0.002, "learning rate after warm-up; none: from the gradient", low=0, empty="none", source="TCP's code"
    )
    optimizer: OptimizerName = option("adam", "optimiser", source="TCP's code")
    adam_eps: float = option(1e-3, "ε of Adam and AdamW", low=0, source="TCP's code")
    n_tokens: int = option(4, "M, tokens of the context", low=1, high=1024, source="paper")
    block: int = option(8, "block before which Q_c is inserted; at most the last one", low=0, source="paper")
    reduction: int = option(4, "factor by which h narrows the text feature", low=1, source="TCP's code")
    weight: float = option(
        8.0, "λ, weight of the term that keeps text features near the teacher's", low=0, source="paper"
    )
    sentence: str | None = option(None, "sentence after V, {} for the name; auto: by dataset", source="TCP's code")
    teacher_sentence: str | None = option(
        None, "sentence of the teacher, {} for the name; auto: by dataset", source="TCP's code"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if wrong := [s for s in (self.sentence, self.teacher_sentence) if s is not None and s.count("{}") != 1]:
            raise UserError("sentences need {} once, for the class name", details=wrong)


class TCP(TextFeatureMethod):
    """Prompts made from CLIP's text feature of each class."""

    name = "tcp"
    paper = "Yao et al., TCP: Textual-based Class-aware Prompt tuning for Visual-Language Model, CVPR 2024"
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_PROMPTS})
    trains_on = "images"
    Options = TCPOptions
    term_titles = describe_terms(text="drift of texts")
    options: TCPOptions

    @classmethod
    def resolve(cls, options: TCPOptions, problem: Problem) -> Any:
        """Fill in epochs by dataset. Sentences depend on it, too, but a retargeted model takes those of its own."""
        return super().resolve(options.fill_unset(epochs=25 if problem.dataset in SHORTER else 50), problem)

    def __init__(self, clip: DualEncoder, problem: Problem, options: TCPOptions) -> None:
        super().__init__(clip, problem, options)
        D, W, M = clip.feature_dim, clip.text.width, options.n_tokens
        hidden, stream = max(D // options.reduction, 1), self.generator("meta")
        self.context = nn.Parameter(random_tokens(clip, (M, W), self.generator("context")))
        self.meta = nn.Sequential(
            init_linear(clip, D, hidden, stream), Activation(), init_linear(clip, hidden, M * W, stream)
        )
        sentence = options.sentence or STUDENTS.get(problem.dataset, "{}.")
        before, after = sentence.split("{}")
        self.name_ids = tokenize_names(clip, problem.names, after, before)
        check_name_lengths(clip, problem.names, self.name_ids, M)

    @cached_property
    def teacher(self) -> Tensor:
        """t°: unit text features of the teacher's sentences, (C, D)."""
        sentence = self.options.teacher_sentence or TEACHERS.get(self.problem.dataset, self.problem.template)
        with torch.no_grad():
            written = fill_template(self.problem.names, sentence)
            return F.normalize(self.clip.encode_text(written), dim=-1)

    def class_tokens(self) -> Tensor:
        """Q: (C, M, W)."""
        tokens: Tensor = self.meta(self.teacher)
        return tokens.view(-1, *self.context.shape)

    def text_contexts(self) -> Sequence[Tensor]:
        """The shared context, before class tokens replace it."""
        return [self.context]

    def encode_text(self) -> Tensor:
        """t: unit text features, (C, D)."""
        block = min(self.options.block, self.clip.text.layers - 1)
        features = self.clip.encode_prompts([self.context], self.name_ids, [{block: self.class_tokens()}])
        return F.normalize(features[0], dim=-1)

    def step(self, batch: Batch) -> Step:
        """Cross-entropy, and the distance of the text features from the teacher's."""
        f, t = self.encode(batch.inputs), self.encode_text()
        logits = self.clip.tau * f @ t.mT
        drift = 1 - (t * self.teacher).sum(dim=-1).mean()
        terms = {"cls": F.cross_entropy(logits, batch.labels), "text": self.options.weight * drift}
        terms |= self.dca_terms(f, t, batch.labels)
        return Step(terms, logits.detach().softmax(dim=-1))


METHOD = TCP
