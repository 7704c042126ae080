"""Cross-Modal adaptation, its linear form (Lin et al., CVPR 2023): sentences are training samples too.

One linear layer without bias classifies unit image features and unit text features alike; half of
each batch are images, half are sentences:

    p(y | x) = softmax_y( τ w_y · x ),    x = f of an image or t of a sentence
    L = mean over both halves of CE(p, y)

w_c starts at the normalised mean text feature of its class and is not normalised afterwards. An
image has two views, the centre crop and its mirror image. The state that is best on the few-shot
validation images is kept; without them the last one is. With `wise` = w the finished head is
(1 - w) W + w W_0, W_0 the text features (WiSE-FT; the paper's w is 0.5).

PAPER: rate, weight decay and batch are swept on the few-shot validation images (1e-3, 1e-4 × 0,
0.01, 1e-4 × 8, 32); the defaults here are one point of that grid. The 50 warm-up iterations are
one epoch here; an epoch has about a hundred iterations, after which the authors validate, too.
Only the linear form is here, not partial fine-tuning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.clip import CLIP
from dca.methods.base import Batch, Step, Support, Task
from dca.methods.frozen import FrozenMethod, FrozenOptions, accuracy, shape_problems
from dca.methods.heads import Head
from dca.options import opt

ITERATIONS, BETWEEN_VALIDATIONS = 12800, 100


@dataclass(frozen=True, kw_only=True)
class CrossModalOptions(FrozenOptions):
    """Settings of Cross-Modal adaptation."""

    init: str = opt("zeroshot", "first weights: text features, or random", choices=("zeroshot", "random"))
    keep: str = opt("best", "state on validation images, or the last", choices=("best", "last"), source="paper")
    wise: float = opt(0.0, "share of the text features in the finished head", low=0, high=1, source="paper")
    epochs: int | None = opt(None, "auto: what makes 12,800 iterations", low=0, source="paper")
    optimizer: str = opt("adamw", "how gradients become updates", choices=("sgd", "adam", "adamw"), source="paper")
    batch_size: int | None = opt(16, "images a step, and as many sentences", low=1, source="paper's grid")
    learning_rate: float | None = opt(1e-4, "rate after warm-up", low=0, source="paper's grid")
    weight_decay: float = opt(0.01, "on the weights", low=0, source="paper's grid")
    schedule: str = opt("step", "cosine falls once an epoch, or every step", choices=("epoch", "step"), source="paper")


def repeats(rows: int, batch: int) -> int:
    """How often the rows stand in an epoch, so that it has a hundred iterations."""
    return max(1, math.ceil(BETWEEN_VALIDATIONS * batch / rows))


class CrossModal(FrozenMethod):
    """A linear layer trained on images and sentences alike."""

    name = "cross_modal"
    paper = "Lin et al., Multimodality Helps Unimodality: Cross-Modal Few-Shot Learning, CVPR 2023"
    trains_on = "features"
    habit = "few"
    Options = CrossModalOptions
    # What the finished model multiplies with, and its accuracy on the validation images (-1: unknown).
    results = MappingProxyType({"head": torch.float32, "validated": torch.float32})
    options: CrossModalOptions
    head: Tensor
    validated: Tensor

    @classmethod
    def resolve(cls, chosen: CrossModalOptions, task: Task) -> CrossModalOptions:
        """As many epochs as make the paper's 12,800 iterations."""
        batch, rows = chosen.batch_size or 16, 2 * len(task.classes) * task.shots
        epochs = round(ITERATIONS * batch / (rows * repeats(rows, batch)))
        return chosen.settled(batch_size=batch, epochs=max(epochs, 1))

    def __init__(self, clip: CLIP, task: Task, chosen: CrossModalOptions) -> None:
        super().__init__(clip, task, chosen)
        self.weight = nn.Parameter(torch.zeros(len(task.classes), clip.config.embed_dim, device=clip.device))

    def training_rows(self, support: Support) -> tuple[Tensor, Tensor]:
        """Unit features of the images and of their mirror images, repeated to fill an epoch."""
        mirrored = support.map(lambda pixels: self.encode(pixels.flip(-1)))
        rows = torch.cat([support.map(self.encode), mirrored])
        times = repeats(len(rows), self.options.batch_size or 1)
        return rows.repeat(times, 1), support.labels.repeat(2 * times)

    def prepare(self, support: Support) -> None:
        """First weights, the sentences as samples, and the validation images."""
        texts = self.texts()
        self._text = first = F.normalize(texts.mean(dim=0), dim=-1)
        self._sentences = F.normalize(texts.flatten(0, 1), dim=-1)
        self._sentence_labels = torch.arange(texts.shape[1], device=texts.device).repeat(len(texts))
        if self.options.init == "random":
            bound = 1 / math.sqrt(texts.shape[2])
            drawn = torch.empty(texts.shape[1:]).uniform_(-bound, bound, generator=self.generator("weight"))
            first = drawn.to(texts.device)
        self._unseen = None
        if self.options.keep == "best" and (validation := support.validation) is not None:
            self._unseen = (validation.map(self.encode), validation.labels)
        with torch.no_grad():
            self.weight.copy_(first)
        self.head, self.validated = first.clone(), first.new_tensor(-1.0)

    def step(self, batch: Batch) -> Step:
        """Cross-entropy of the images and of as many sentences."""
        drawn = torch.randperm(len(self._sentences), generator=batch.generator)[: len(batch.labels)]
        drawn = drawn.to(self._sentences.device)
        x = torch.cat([batch.inputs, self._sentences[drawn]])
        labels = torch.cat([batch.labels, self._sentence_labels[drawn]])
        logits = self.clip.tau * x @ self.weight.T
        shown = logits[: len(batch.labels)].detach().softmax(dim=-1)
        return Step({"cls": F.cross_entropy(logits, labels)}, shown)

    def epoch_done(self, epoch: int, epochs: int) -> None:
        """Keep the weights if they are the best so far on the validation images."""
        if self._unseen is None:
            return
        features, labels = self._unseen
        found = accuracy(features @ self.weight.detach().T, labels)
        if found > float(self.validated):
            self.head, self.validated = self.weight.detach().clone(), self.weight.new_tensor(found)

    def finish(self, support: Support) -> None:
        """The last weights where none were kept; then WiSE-FT."""
        best = self.weight.detach() if float(self.validated) < 0 else self.head
        self.head = (1 - self.options.wise) * best + self.options.wise * self._text

    def classify(self, features: Tensor) -> Tensor:
        """Softmax of τ W f: (B, C)."""
        return Head(self.head[None], self.clip.tau).probabilities(features)

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """One weight vector a class, and one accuracy."""
        C, D = len(self.task.classes), self.clip.config.embed_dim
        return shape_problems({"head": (state["head"], (C, D)), "validated": (state["validated"], ())})


METHOD = CrossModal
