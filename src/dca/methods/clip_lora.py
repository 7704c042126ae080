"""CLIP-LoRA: low-rank updates in both towers (Zanella and Ben Ayed, CVPR Workshops 2024).

The query, key and value matrices W of every block of both towers get a product of rank r:

    W' x = W x + (α / √r) B A drop(x),    A: (r, W) Kaiming-uniform, B: (W, r) zero at first
    p(y | x) = softmax_y( τ cos(f, t_y) ),    L = CE(p, y)

with one sentence per class, that of the dataset. At the start B A = 0: zero-shot CLIP. Training
takes 500 steps per shot, whatever the number of classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.clip import CLIP
from dca.clip.blocks import Update
from dca.core.options import opt
from dca.methods.interface import Batch, Problem, Step
from dca.methods.recipe import OptimizerName, ScheduleUnit
from dca.methods.shared.prompts import alphabetical, dropout, sentences
from dca.methods.shared.text_head import TextHead, TextHeadOptions

PARTS = ("q", "k", "v")
STEPS_PER_SHOT = 500


@dataclass(frozen=True, kw_only=True)
class CLIPLoRAOptions(TextHeadOptions):
    """Settings of CLIP-LoRA; symbols as in the paper."""

    epochs: int | None = opt(None, "passes over the training images; auto: 500 steps per shot", low=0, source="paper")
    batch_size: int | None = opt(32, "images per step", low=1, source="paper")
    learning_rate: float | None = opt(2e-4, "initial learning rate; auto: from the gradient", low=0, source="paper")
    optimizer: OptimizerName = opt("adamw", "optimiser", source="paper")
    weight_decay: float = opt(0.01, "weight decay of every trained tensor", low=0, source="paper")
    warmup_epochs: int = opt(0, "epochs of warm-up", low=0, source="paper")
    schedule: ScheduleUnit = opt("step", "whether the cosine schedule advances per epoch or per step", source="paper")
    final_rate: float = opt(1e-6, "learning rate at the end of the cosine schedule", low=0, source="paper")
    rank: int = opt(2, "r, rank of each update", low=1, high=1024, source="paper")
    alpha: float = opt(1.0, "α; the product is scaled by α / √r", low=0, source="paper")
    dropout: float = opt(
        0.25, "share of the inputs of the product zeroed in training", low=0, high=0.99, source="paper"
    )
    towers: Literal["both", "visual", "text"] = opt("both", "which towers are updated", source="paper")


class CLIPLoRA(TextHead):
    """Low-rank updates of queries, keys and values in both towers."""

    name = "clip_lora"
    paper = "Zanella and Ben Ayed, Low-Rank Few-Shot Adaptation of Vision-Language Models, CVPR Workshops 2024"
    trains_on = "images"
    Options = CLIPLoRAOptions
    options: CLIPLoRAOptions

    @classmethod
    def resolve(cls, chosen: CLIPLoRAOptions, problem: Problem) -> Any:
        """Steps as epochs: the training loop drops a short last batch unless it is the only one."""
        size = chosen.batch_size or 32
        steps = max(len(problem.names) * problem.shots // size, 1)
        return super().resolve(
            chosen.settled(batch_size=size, epochs=-(-STEPS_PER_SHOT * problem.shots // steps)), problem
        )

    def __init__(self, clip: CLIP, problem: Problem, chosen: CLIPLoRAOptions) -> None:
        super().__init__(clip, problem, chosen)
        self.down, self.up = nn.ParameterDict(), nn.ParameterDict()
        for tower, config in (("visual", clip.config.vision), ("text", clip.config.text)):
            if chosen.towers in ("both", tower):
                shape = (config.layers, len(PARTS), chosen.rank, config.width)
                start = (2 * torch.rand(shape, generator=self.generator(tower)) - 1) * config.width**-0.5
                self.down[tower] = nn.Parameter(start.to(clip.device))
                self.up[tower] = nn.Parameter(torch.zeros_like(self.down[tower].mT))
        order = alphabetical(problem.names)
        self.sentences = clip.tokenizer(sentences([problem.names[place] for place in order], problem.template))
        self._places = torch.tensor(order, device=clip.device).argsort()

    def updates(self, generator: torch.Generator | None = None) -> dict[str, Update]:
        """Functions whose values are added to each projection, by name; with dropout if there is a generator."""
        scale = self.options.alpha / self.options.rank**0.5
        return {
            f"{tower}.{layer}.{part}": partial(self._product, A, scale * B, generator)
            for tower in self.down
            for layer, (As, Bs) in enumerate(zip(self.down[tower], self.up[tower], strict=True))
            for part, A, B in zip(PARTS, As, Bs, strict=True)
        }

    def _product(self, A: Tensor, B: Tensor, generator: torch.Generator | None, x: Tensor) -> Tensor:
        """B A drop(x). x: (..., T, W)."""
        return dropout(x, self.options.dropout, generator) @ A.T @ B.T

    def encode(self, pixels: Tensor) -> Tensor:
        """f: unit image features through the updated tower, (B, D)."""
        return F.normalize(self.clip.encode_image(pixels, updates=self.updates()), dim=-1)

    def encode_text(self) -> Tensor:
        """t: unit features of the sentences through the updated tower, (C, D)."""
        return F.normalize(self._text(self.updates()), dim=-1)

    def _text(self, updates: Mapping[str, Update]) -> Tensor:
        """Text features (C, D) in the order of the classes, not normalised."""
        return self.clip.encode_text(self.sentences, updates=updates)[self._places]

    def step(self, batch: Batch) -> Step:
        """Cross-entropy of one batch; dropout in both towers."""
        updates = self.updates(batch.noise)
        f = F.normalize(self.clip.encode_image(batch.inputs, updates=updates), dim=-1)
        t = F.normalize(self._text(updates), dim=-1)
        logits = self.clip.tau * f @ t.T
        terms = {"cls": F.cross_entropy(logits, batch.labels), **self.dca_terms(f, t, batch.labels)}
        return Step(terms, logits.detach().softmax(dim=-1))


METHOD = CLIPLoRA
