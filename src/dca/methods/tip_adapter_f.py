"""Tip-Adapter-F: Tip-Adapter with trained keys (Zhang et al., ECCV 2022).

    logits = τ f T + α exp( -β (1 - f Fᵀ) ) L,    L_cls = CE(logits, y)

starts at Tip-Adapter's keys F (N, D) and trains them alone, at the first α and β of the dataset;
they are not normalised again. Then α and β are searched as in Tip-Adapter.

PAPER: the authors report the best epoch and the better of two results as seen on the test set. Here
the last epoch counts and nothing is ever chosen on test images. They re-run the image encoder each
epoch; here each image has `train_views` augmented views, encoded once, and every epoch draws one.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.clip import CLIP
from dca.core.options import opt
from dca.methods.interface import Batch, Problem, Step, Support
from dca.methods.shared.frozen import image_views, one_view, unit_mean
from dca.methods.tip_adapter import TipAdapter, TipAdapterOptions, cache_keys


@dataclass(frozen=True, kw_only=True)
class TipAdapterFOptions(TipAdapterOptions):
    """Settings of Tip-Adapter-F."""

    train_views: int = opt(
        20, "augmented views an image that the epochs draw from", low=1, source="paper: one an epoch"
    )
    epochs: int | None = opt(None, "passes over the images; auto: 20, on EuroSAT 100", low=0, source="paper")
    optimizer: str = opt("adamw", "how gradients become updates", choices=("sgd", "adam", "adamw"), source="paper")
    batch_size: int | None = opt(256, "images a step", low=1, source="paper")
    learning_rate: float | None = opt(1e-3, "first rate", low=0, source="paper")
    adam_eps: float = opt(1e-4, "of Adam and AdamW", low=0, source="paper")
    weight_decay: float = opt(0.01, "on the keys", low=0, source="paper")
    warmup_epochs: int = opt(0, "first epochs at the warm-up rate", low=0, source="paper")
    schedule: str = opt("step", "cosine falls once an epoch, or every step", choices=("epoch", "step"), source="paper")


class TipAdapterF(TipAdapter):
    """Tip-Adapter whose keys are trained."""

    name = "tip_adapter_f"
    trains_on = "features"
    habit = "full"
    Options = TipAdapterFOptions
    results = types.MappingProxyType({name: kind for name, kind in TipAdapter.results.items() if name != "keys"})
    options: TipAdapterFOptions

    @classmethod
    def resolve(cls, chosen: TipAdapterFOptions, problem: Problem) -> Any:
        """Twenty epochs, on EuroSAT a hundred."""
        return super().resolve(chosen.settled(epochs=100 if problem.dataset == "eurosat" else 20), problem)

    def __init__(self, clip: CLIP, problem: Problem, chosen: TipAdapterFOptions) -> None:
        super().__init__(clip, problem, chosen)
        rows = len(problem.names) * problem.shots
        self.keys = nn.Parameter(torch.zeros(rows, clip.config.embed_dim, device=clip.device))

    def training_rows(self, support: Support) -> tuple[Tensor, Tensor]:
        """Features of the views of each image, (N, V, D), and labels (N,)."""
        return image_views(support, self.clip, self.options.train_views), support.labels

    def prepare(self, support: Support) -> None:
        """The keys at first, as many as there are images, and what they are trained with."""
        self.keys = nn.Parameter(cache_keys(support, self.clip, self.options.views))
        self.text_features, self.key_labels = unit_mean(self.texts()), support.labels
        self.alpha_beta = self.text_features.new_tensor(self.strengths(None))

    def step(self, batch: Batch) -> Step:
        """Cross-entropy of one view of each image."""
        logits = self.logits(one_view(batch))
        return Step({"cls": F.cross_entropy(logits, batch.labels)}, logits.detach().softmax(dim=-1))

    def finish(self, support: Support) -> None:
        """The search for α and β over the trained keys."""
        with torch.no_grad():
            self.alpha_beta = self.keys.new_tensor(self.strengths(support.validation))

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """As many keys as were saved: classes may have had more or fewer images than the shots."""
        keys = state.get("keys")
        if keys is not None and keys.dim() == 2 and keys.shape[1] == self.keys.shape[1]:
            self.keys = nn.Parameter(self.keys.new_zeros(keys.shape))
        super().restore(state)


METHOD = TipAdapterF
