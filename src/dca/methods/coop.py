"""CoOp: context optimisation (Zhou et al., IJCV 2022).

M vectors v_1 .. v_M take the place of "a photo of a"; nothing else is learned:

    t_c = g([SOS] v_1 .. v_M [name c] [.] [EOT])
    p(y | x) = softmax_y( τ cos(f, t_y) ),    L = CE

There is one context for all classes or one per class (CSC). The name is at the end, in the middle
(after the first ⌊M/2⌋ vectors) or in front. Two versions are in use: 16 random vectors
(the few-shot curves, the default here) and the 4 words "a photo of a" (`phrase`, as in the
CoCoOp paper). With a phrase, class-specific contexts start from it too; the authors' code
falls back to a shared context in that case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.dual_encoder import DualEncoder
from dca.backbones.encoder import Ability
from dca.core.options import option
from dca.methods.base import Batch, Problem, Step
from dca.methods.shared.prompts import check_name_lengths, coop_epochs, init_context, tokenize_names
from dca.methods.shared.text_feature_methods import TextFeatureMethod, TextFeatureOptions


@dataclass(frozen=True, kw_only=True)
class CoOpOptions(TextFeatureOptions):
    """Options of CoOp."""

    epochs: int | None = option(
        None,
        "passes over the training images; auto: 50 for 1 shot or ImageNet, 100 up to 4 shots, else 200",
        low=0,
        source="paper",
    )
    batch_size: int = option(32, "images per step", low=1, source="paper")
    learning_rate: float | None = option(
        0.002, "learning rate after warm-up; none: from the gradient", low=0, empty="none", source="paper"
    )
    n_tokens: int = option(16, "M, learned tokens; ignored with a phrase", low=1, high=1024, source="paper")
    phrase: str | None = option(None, "initial words of the context; none: random", empty="none", source="paper")
    contexts: Literal["unified", "class"] = option(
        "unified", "one context for all classes, or one per class", source="paper"
    )
    position: Literal["end", "middle", "front"] = option("end", "position of the class name", source="paper")
    suffix: str = option(".", "text after the class name", source="CoOp's code")


class CoOp(TextFeatureMethod):
    """Context optimisation: learned words around the class name."""

    name = "coop"
    paper = "Zhou et al., Learning to Prompt for Vision-Language Models, IJCV 2022"
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_PROMPTS})
    trains_on = "images"
    Options = CoOpOptions
    options: CoOpOptions

    @classmethod
    def resolve(cls, options: CoOpOptions, problem: Problem) -> Any:
        """Fill in epochs by shots and dataset."""
        return super().resolve(options.fill_unset(epochs=coop_epochs(problem)), problem)

    def __init__(self, clip: DualEncoder, problem: Problem, options: CoOpOptions) -> None:
        super().__init__(clip, problem, options)
        streams = ["context"]
        if options.contexts == "class":
            streams = [f"context/{name}" for name in problem.names]
        starts = [init_context(clip, options.phrase or options.n_tokens, self.generator(s)) for s in streams]
        self.context = nn.Parameter(torch.stack(starts) if options.contexts == "class" else starts[0])
        self.name_ids = tokenize_names(clip, problem.names, options.suffix)
        check_name_lengths(clip, problem.names, self.name_ids, self.context.shape[-2])

    def class_parameters(self) -> set[str]:
        """The context, if there is one per class."""
        return {"context"} if self.options.contexts == "class" else set()

    def text_contexts(self) -> Sequence[Tensor]:
        """The context."""
        return [self.context]

    def encode_text(self) -> Tensor:
        """t: unit text features, (C, D)."""
        if self.options.position == "end":
            return F.normalize(self.clip.encode_prompts([self.context], self.name_ids)[0], dim=-1)
        return F.normalize(self.clip.encode_embedded_text(self._sequences()), dim=-1)

    def _sequences(self) -> list[Tensor]:
        """Embedded sequences with the name in front or in the middle: (T_c, W) for each class."""
        before = self.context.shape[-2] // 2 if self.options.position == "middle" else 0
        start = self.clip.text.embed(self.clip.tokenizer.start_ids)
        contexts = self.context.expand(len(self.name_ids), *self.context.shape[-2:])
        sequences = []
        for name, ids, context in zip(self.problem.names, self.name_ids, contexts, strict=True):
            own = self.clip.text.embed(ids)
            length = len(self.clip.tokenizer.encode(name.replace("_", " "), continued=True))
            parts = [start, context[:before], own[:length], context[before:], own[length:]]
            sequences.append(torch.cat(parts))
        return sequences

    def step(self, batch: Batch) -> Step:
        """Cross-entropy of τ cos."""
        f, t = self.encode(batch.inputs), self.encode_text()
        logits = self.clip.tau * f @ t.mT
        terms = {"cls": F.cross_entropy(logits, batch.labels), **self.dca_terms(f, t, batch.labels)}
        return Step(terms, logits.detach().softmax(dim=-1))


METHOD = CoOp
