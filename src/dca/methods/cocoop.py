"""CoCoOp: conditional context optimisation (Zhou et al., CVPR 2022).

A small network h turns each image into one vector that shifts all tokens of a learned context:

    π(x) = h(f),    v_m(x) = v_m + π(x),    h = Linear(D → D/16), ReLU, Linear(D/16 → W)
    t_c(x) = g([SOS] v_1(x) .. v_M(x) [name c] [.] [EOT])
    p(y | x) = softmax_y( τ cos(f, t_y(x)) ),    L = CE

Every image has text features of its own, so nothing can be kept after training: B images and C
classes cost B·C passes of the text tower (what the classes share of a prompt is computed once
an image). The recipe is the paper's for 16 shots; it has none for fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.clip import CLIP
from dca.core.options import opt
from dca.methods.interface import Batch, Method, Problem, Step
from dca.methods.recipe import Recipe
from dca.methods.shared.prompts import linear, name_ids, require_room, start_context

# Sentences that pass the text tower at once, over images and classes: bounds memory, not results.
SENTENCES = 4096


@dataclass(frozen=True, kw_only=True)
class CoCoOpOptions(Recipe):
    """Settings of CoCoOp."""

    epochs: int = opt(10, "passes over the few-shot images", low=0, source="paper, 16 shots")
    batch_size: int = opt(1, "images a step", low=1, source="paper")
    learning_rate: float | None = opt(0.002, "rate after warm-up; none: from the gradient", low=0, source="paper")
    phrase: str | None = opt("a photo of a", "words the context starts from; none: random", source="paper")
    n_tokens: int = opt(4, "M, learned tokens where no phrase is given", low=1, high=1024, source="paper")
    reduction: int = opt(16, "h narrows the image feature by this factor", low=1, source="paper")
    suffix: str = opt(".", "text behind the class name", source="CoOp's code")


class CoCoOp(Method):
    """CoOp with a context that each image shifts."""

    name = "cocoop"
    paper = "Zhou et al., Conditional Prompt Learning for Vision-Language Models, CVPR 2022"
    trains_on = "images"
    Options = CoCoOpOptions
    options: CoCoOpOptions

    def __init__(self, clip: CLIP, problem: Problem, chosen: CoCoOpOptions) -> None:
        super().__init__(clip, problem, chosen)
        D, W = clip.config.embed_dim, clip.config.text.width
        hidden, stream = max(D // chosen.reduction, 1), self.generator("meta")
        self.context = nn.Parameter(start_context(clip, chosen.phrase or chosen.n_tokens, self.generator("context")))
        self.meta = nn.Sequential(linear(clip, D, hidden, stream), nn.ReLU(), linear(clip, hidden, W, stream))
        self.names = name_ids(clip, problem.names, chosen.suffix)
        require_room(clip, problem.names, self.names, len(self.context))

    def retarget(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """The same context and network for other names."""
        return self.moved(problem, sources)

    def encode_text(self, f: Tensor) -> Tensor:
        """t(x): unit text features of each image f (B, D): (B, C, D)."""
        contexts = self.context + self.meta(f)[:, None]
        return F.normalize(self.clip.encode_prompts(list(contexts), self.names), dim=-1)

    def logits(self, f: Tensor) -> Tensor:
        """τ cos of each image with the classes as it words them: (B, D) -> (B, C)."""
        return self.clip.tau * (self.encode_text(f) @ f[..., None])[..., 0]

    def step(self, batch: Batch) -> Step:
        """Cross-entropy of τ cos."""
        logits = self.logits(self.encode(batch.inputs))
        return Step({"cls": F.cross_entropy(logits, batch.labels)}, logits.detach().softmax(dim=-1))

    def classify(self, features: Tensor) -> Tensor:
        """Softmax of τ cos: (B, C)."""
        at_once = max(SENTENCES // len(self.names), 1)
        return torch.cat([self.logits(part).softmax(dim=-1) for part in torch.split(features, at_once)])


METHOD = CoCoOp
