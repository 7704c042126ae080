"""Methods that update layers of CLIP's towers and classify by one sentence per class.

    p(y | x) = softmax_y( τ cos(f, t_y) ),    L = CE(p, y)

f and t come from the updated towers; the sentences are those of the dataset.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.clip import CLIP
from dca.clip.blocks import Update
from dca.methods.interface import Batch, Problem, Step
from dca.methods.shared.prompts import alphabetical, sentences
from dca.methods.shared.text_head import TextHead

TOWERS = ("visual", "text")


class UpdatedTowers(TextHead):
    """A method with updates of both towers; it adds its parameters and `updates`.

    steps_per_shot: training takes this many steps for each image of a class, whatever the number of classes.
    """

    trains_on = "images"
    steps_per_shot: ClassVar[int]

    @classmethod
    def resolve(cls, chosen: Any, problem: Problem) -> Any:
        """Steps as epochs: the training loop drops a short last batch unless it is the only one."""
        size = chosen.batch_size or 32
        steps = max(len(problem.names) * problem.shots // size, 1)
        epochs = -(-cls.steps_per_shot * problem.shots // steps)
        return super().resolve(chosen.settled(batch_size=size, epochs=epochs), problem)

    def __init__(self, clip: CLIP, problem: Problem, chosen: Any) -> None:
        super().__init__(clip, problem, chosen)
        order = alphabetical(problem.names)
        self.sentences = clip.tokenizer(sentences([problem.names[place] for place in order], problem.template))
        self._places = torch.tensor(order, device=clip.device).argsort()

    @abstractmethod
    def updates(self) -> Mapping[str, Update]:
        """What is added to the outputs of layers, by name."""

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
        return F.normalize(self.clip.encode_text(self.sentences, updates=updates)[self._places], dim=-1)

    def step(self, batch: Batch) -> Step:
        """Cross-entropy of one batch through both towers."""
        updates = self.training_updates(batch)
        f = F.normalize(self.clip.encode_image(batch.inputs, updates=updates), dim=-1)
        return self.compare(f, self.encode_sentences(updates), batch.labels)

    def compare(self, f: Tensor, t: Tensor, labels: Tensor) -> Step:
        """The step of unit image features f (B, D) and unit class vectors t (C, D)."""
        logits = self.clip.tau * f @ t.T
        terms = {"cls": F.cross_entropy(logits, labels), **self.dca_terms(f, t, labels)}
        return Step(terms, logits.detach().softmax(dim=-1))
