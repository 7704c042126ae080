"""TCP: textual-based class-aware prompt tuning (Yao et al., CVPR 2024).

A shared context V enters the text tower; before one of its later blocks (8 of 0..11) the
context's rows are replaced by tokens Q_c that a small network makes of what CLIP knows of the class:

    t°_c = text feature of the dataset's sentence about c,    Q_c = h(t°_c) as M tokens
    h = Linear(D → D/4), QuickGELU, Linear(D/4 → M·W)
    t_c = g([SOS] V [name c] [words of the dataset] [EOT];  rows 1..M = Q_c at block 8)
    L = CE(τ cos(f, t)) + λ (1 - mean_c cos(t_c, t°_c)),    λ = 8

V acts through blocks 0 to 7 only. Student and teacher are worded differently, as published.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.clip import CLIP
from dca.clip.blocks import QuickGELU
from dca.core.errors import UserError
from dca.core.options import opt
from dca.methods.interface import Batch, Problem, Step, in_words
from dca.methods.shared.prompts import linear, name_ids, random_tokens, require_room, sentences
from dca.methods.shared.text_head import TextHead, TextHeadOptions

# What stands behind V; other datasets: the name and a full stop.
STUDENTS = {
    "oxford_pets": "{}, a type of pet.",
    "oxford_flowers": "{}, a type of flower.",
    "fgvc_aircraft": "{}, a type of aircraft.",
    "dtd": "{} texture.",
    "stanford_cars": "{}, a type of car",
    "food101": "{}, a type of food.",
    "ucf101": "person doing {}.",
}
# Where the teacher's sentence is not the one that zero-shot CLIP is asked with.
TEACHERS = {
    "dtd": "a photo of a {}, a type of texture.",
    "fgvc_aircraft": "a photo of an aircraft {}.",
    "food101": "a photo of a {}, a type of food.",
}
SHORTER = {"imagenet", "sun397"}


@dataclass(frozen=True, kw_only=True)
class TCPOptions(TextHeadOptions):
    """Settings of TCP."""

    epochs: int | None = opt(
        None, "passes over the images; auto: 25 for ImageNet and SUN397, else 50", low=0, source="TCP's code"
    )
    batch_size: int = opt(32, "images a step", low=1, source="TCP's code")
    learning_rate: float | None = opt(0.002, "rate after warm-up; none: from the gradient", low=0, source="TCP's code")
    optimizer: str = opt("adam", "how gradients become updates", choices=("sgd", "adam", "adamw"), source="TCP's code")
    adam_eps: float = opt(1e-3, "of Adam and AdamW", low=0, source="TCP's code")
    n_tokens: int = opt(4, "M, tokens of the context", low=1, high=1024, source="paper")
    block: int = opt(8, "block before which Q_c enters; at most the last one", low=0, source="paper")
    reduction: int = opt(4, "h narrows the text feature by this factor", low=1, source="TCP's code")
    weight: float = opt(8.0, "λ, of the term that holds text features", low=0, source="paper")
    sentence: str | None = opt(None, "what stands behind V, {} for the name; auto: by dataset", source="TCP's code")
    teacher_sentence: str | None = opt(None, "the teacher's; auto: by dataset", source="TCP's code")

    def __post_init__(self) -> None:
        super().__post_init__()
        if wrong := [s for s in (self.sentence, self.teacher_sentence) if s is not None and s.count("{}") != 1]:
            raise UserError("sentences need {} once, for the class name", details=wrong)


class TCP(TextHead):
    """Prompts that carry what CLIP's text tower knows of each class."""

    name = "tcp"
    paper = "Yao et al., TCP: Textual-based Class-aware Prompt tuning for Visual-Language Model, CVPR 2024"
    trains_on = "images"
    Options = TCPOptions
    term_words = in_words(text="drift of texts")
    options: TCPOptions

    @classmethod
    def resolve(cls, chosen: TCPOptions, problem: Problem) -> Any:
        """Settle the epochs, which go by dataset. So do the sentences, but a model takes those of where it goes."""
        return super().resolve(chosen.settled(epochs=25 if problem.dataset in SHORTER else 50), problem)

    def __init__(self, clip: CLIP, problem: Problem, chosen: TCPOptions) -> None:
        super().__init__(clip, problem, chosen)
        D, W, M = clip.config.embed_dim, clip.config.text.width, chosen.n_tokens
        hidden, stream = max(D // chosen.reduction, 1), self.generator("meta")
        self.context = nn.Parameter(random_tokens(clip, (M, W), self.generator("context")))
        self.meta = nn.Sequential(linear(clip, D, hidden, stream), QuickGELU(), linear(clip, hidden, M * W, stream))
        sentence = chosen.sentence or STUDENTS.get(problem.dataset, "{}.")
        before, after = sentence.split("{}")
        self.names = name_ids(clip, problem.names, after, before)
        require_room(clip, problem.names, self.names, M)

    @cached_property
    def teacher(self) -> Tensor:
        """t°: unit text features of the teacher's sentences, (C, D)."""
        sentence = self.options.teacher_sentence or TEACHERS.get(self.problem.dataset, self.problem.template)
        with torch.no_grad():
            written = sentences(self.problem.names, sentence)
            return F.normalize(self.clip.encode_text(written), dim=-1)

    def class_tokens(self) -> Tensor:
        """Q: (C, M, W)."""
        tokens: Tensor = self.meta(self.teacher)
        return tokens.view(-1, *self.context.shape)

    def encode_text(self) -> Tensor:
        """t: unit text features, (C, D)."""
        block = min(self.options.block, self.clip.config.text.layers - 1)
        features = self.clip.encode_prompts([self.context], self.names, [{block: self.class_tokens()}])
        return F.normalize(features[0], dim=-1)

    def step(self, batch: Batch) -> Step:
        """Cross-entropy, and how far the text features have left the teacher's."""
        f, t = self.encode(batch.inputs), self.encode_text()
        logits = self.clip.tau * f @ t.mT
        drift = 1 - (t * self.teacher).sum(dim=-1).mean()
        terms = {"cls": F.cross_entropy(logits, batch.labels), "text": self.options.weight * drift}
        terms |= self.dca_terms(f, t, batch.labels)
        return Step(terms, logits.detach().softmax(dim=-1))


METHOD = TCP
