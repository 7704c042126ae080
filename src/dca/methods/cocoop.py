"""CoCoOp: conditional context optimisation (Zhou et al., CVPR 2022).

A small network h turns each image into one vector that shifts all tokens of a learned context:

    π(x) = h(f),    v_m(x) = v_m + π(x),    h = Linear(D → D/16), ReLU, Linear(D/16 → W)
    t_c(x) = g([SOS] v_1(x) .. v_M(x) [name c] [.] [EOT])
    p(y | x) = softmax_y( τ cos(f, t_y(x)) ),    L = CE

Every image has its own text features, so none can be stored after training: B images and C
classes cost B·C passes of the text tower (the part of a prompt that the classes share is computed once
per image). The recipe is the paper's for 16 shots; it has none for fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.dual_encoder import DualEncoder
from dca.backbones.encoder import Ability
from dca.core.options import option
from dca.methods.base import Batch, Head, Problem, Step, TrainedMethod, TrainingOptions
from dca.methods.shared.prompts import check_name_lengths, init_context, init_linear, tokenize_names

# Sentences that pass the text tower at once, over images and classes: bounds memory, not results.
SENTENCES = 4096


@dataclass(frozen=True, kw_only=True)
class CoCoOpOptions(TrainingOptions):
    """Options of CoCoOp."""

    epochs: int = option(10, "passes over the training images", low=0, source="paper, 16 shots")
    batch_size: int = option(1, "images per step", low=1, source="paper")
    learning_rate: float | None = option(
        0.002, "learning rate after warm-up; none: from the gradient", low=0, empty="none", source="paper"
    )
    phrase: str | None = option(
        "a photo of a", "initial words of the context; none: random", empty="none", source="paper"
    )
    n_tokens: int = option(4, "M, learned tokens if there is no phrase", low=1, high=1024, source="paper")
    reduction: int = option(16, "factor by which h narrows the image feature", low=1, source="paper")
    suffix: str = option(".", "text after the class name", source="CoOp's code")


def encode_contexts(clip: DualEncoder, contexts: Tensor, ids: Sequence[Sequence[int]]) -> Tensor:
    """Text features (B, C, D) under the context of each image. contexts: (B, L, W). ids: of the class names."""
    return clip.encode_prompts(contexts, ids)


@dataclass(frozen=True)
class ConditionalHead(Head):
    """Softmax of τ cos of each image with text features of its own.

    context: (L, W). first, second: weight and bias of the two layers of h.
    """

    clip: DualEncoder
    name_ids: Sequence[Sequence[int]]
    context: Tensor
    first: Sequence[Tensor]
    second: Sequence[Tensor]

    def texts(self, f: Tensor) -> Tensor:
        """t(x): unit text features of the classes for each image f (B, D): (B, C, D)."""
        shift = F.linear(F.linear(f, *self.first).relu(), *self.second)
        return F.normalize(encode_contexts(self.clip, self.context + shift[:, None], self.name_ids), dim=-1)

    def logits(self, f: Tensor) -> Tensor:
        """τ cos of each image with its text features: (B, D) -> (B, C)."""
        return self.clip.tau * (self.texts(f) @ f[..., None])[..., 0]

    def __call__(self, f: Tensor) -> Tensor:
        """Image features f (B, D) -> probabilities (B, C)."""
        return self.logits(f).softmax(dim=-1)

    @property
    def max_batch_size(self) -> int:
        """As many as make a bounded number of sentences."""
        return max(SENTENCES // len(self.name_ids), 1)


class CoCoOp(TrainedMethod):
    """CoOp with a context that each image shifts."""

    name = "cocoop"
    paper = "Zhou et al., Conditional Prompt Learning for Vision-Language Models, CVPR 2022"
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_PROMPTS})
    trains_on = "images"
    Options = CoCoOpOptions
    options: CoCoOpOptions

    def __init__(self, clip: DualEncoder, problem: Problem, options: CoCoOpOptions) -> None:
        super().__init__(clip, problem, options)
        D, W = clip.feature_dim, clip.text.width
        hidden, stream = max(D // options.reduction, 1), self.generator("meta")
        self.context = nn.Parameter(init_context(clip, options.phrase or options.n_tokens, self.generator("context")))
        self.meta = nn.Sequential(init_linear(clip, D, hidden, stream), nn.ReLU(), init_linear(clip, hidden, W, stream))
        self.name_ids = tokenize_names(clip, problem.names, options.suffix)
        check_name_lengths(clip, problem.names, self.name_ids, len(self.context))

    def retarget(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """The same context and network for other names."""
        return self.copy_for(problem, sources).build_head()

    def text_contexts(self) -> Sequence[Tensor]:
        """The context, before an image shifts it."""
        return [self.context]

    def _head(self, context: Tensor, *layers: Tensor) -> ConditionalHead:
        """The head over these parameters: the context, then weight and bias of each layer."""
        return ConditionalHead(self.clip, self.name_ids, context, layers[:2], layers[2:])

    def logits(self, f: Tensor) -> Tensor:
        """τ cos of image features f (B, D), differentiable in the parameters: (B, C)."""
        return self._head(*self.parameters()).logits(f)

    def step(self, batch: Batch) -> Step:
        """Cross-entropy of τ cos."""
        logits = self.logits(self.encode(batch.inputs))
        return Step({"cls": F.cross_entropy(logits, batch.labels)}, logits.detach().softmax(dim=-1))

    def make_head(self) -> Head:
        """Softmax of τ cos, with the text features of each image."""
        return self._head(*(parameter.detach().clone() for parameter in self.parameters()))


METHOD = CoCoOp
