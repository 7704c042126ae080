"""CLIP-LoRA: low-rank updates in both towers (Zanella and Ben Ayed, CVPR Workshops 2024).

The query, key and value matrices W of every block of both towers get a product of rank r:

    W' x = W x + (α / √r) B A drop(x),    A: (r, W) Kaiming-uniform, B: (W, r) zero at first
    p(y | x) = softmax_y( τ cos(f, t_y) ),    L = CE(p, y)

with one sentence per class, that of the dataset. At the start B A = 0: zero-shot CLIP. Training
takes 500 steps per shot, whatever the number of classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from dca.backbones.blocks import Update
from dca.backbones.dual_encoder import DualEncoder, ImageTower, TextTower
from dca.backbones.encoder import Ability
from dca.core.options import option
from dca.methods.base import Batch, OptimizerName, Problem, ScheduleUnit
from dca.methods.shared.prompts import dropout
from dca.methods.shared.text_feature_methods import TextFeatureOptions, TowerUpdateMethod

PARTS = ("q", "k", "v")


@dataclass(frozen=True, kw_only=True)
class CLIPLoRAOptions(TextFeatureOptions):
    """Options of CLIP-LoRA; symbols as in the paper."""

    epochs: int | None = option(
        None, "passes over the training images; auto: 500 steps per shot", low=0, source="paper"
    )
    batch_size: int | None = option(32, "images per step", low=1, source="paper")
    learning_rate: float | None = option(2e-4, "initial learning rate; auto: from the gradient", low=0, source="paper")
    optimizer: OptimizerName = option("adamw", "optimiser", source="paper")
    weight_decay: float = option(0.01, "weight decay of every trained tensor", low=0, source="paper")
    warmup_epochs: int = option(0, "epochs of warm-up", low=0, source="paper")
    schedule: ScheduleUnit = option(
        "step", "whether the cosine schedule advances per epoch or per step", source="paper"
    )
    final_rate: float = option(1e-6, "learning rate at the end of the cosine schedule", low=0, source="paper")
    rank: int = option(2, "r, rank of each update", low=1, high=1024, source="paper")
    alpha: float = option(1.0, "α; the product is scaled by α / √r", low=0, source="paper")
    dropout: float = option(
        0.25, "share of the inputs of the product zeroed in training", low=0, high=0.99, source="paper"
    )
    towers: Literal["both", "visual", "text"] = option("both", "which towers are updated", source="paper")


class CLIPLoRA(TowerUpdateMethod):
    """Low-rank updates of queries, keys and values in both towers."""

    name = "clip_lora"
    paper = "Zanella and Ben Ayed, Low-Rank Few-Shot Adaptation of Vision-Language Models, CVPR Workshops 2024"
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_FEATURES, Ability.TEXT_LAYERS})
    steps_per_shot = 500
    Options = CLIPLoRAOptions
    options: CLIPLoRAOptions

    @classmethod
    def needs_with(cls, options: CLIPLoRAOptions) -> frozenset[Ability]:
        """Layers of the image tower, too, unless only those of the text tower are updated."""
        return cls.needs | ({Ability.IMAGE_LAYERS} if options.towers != "text" else set())

    def __init__(self, clip: DualEncoder, problem: Problem, options: CLIPLoRAOptions) -> None:
        super().__init__(clip, problem, options)
        self.down, self.up = nn.ParameterDict(), nn.ParameterDict()
        towers: tuple[tuple[str, ImageTower | TextTower], ...] = (("visual", clip.visual), ("text", clip.text))
        for name, tower in towers:
            if options.towers in ("both", name):
                shape = (tower.layers, len(PARTS), options.rank, tower.width)
                start = (2 * torch.rand(shape, generator=self.generator(name)) - 1) * tower.width**-0.5
                self.down[name] = nn.Parameter(start.to(clip.device))
                self.up[name] = nn.Parameter(torch.zeros_like(self.down[name].mT))

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

    def training_updates(self, batch: Batch) -> dict[str, Update]:
        """With dropout in both towers."""
        return self.updates(batch.noise)


METHOD = CLIPLoRA
