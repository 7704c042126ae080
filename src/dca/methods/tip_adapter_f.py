"""Tip-Adapter-F: Tip-Adapter with trained keys (Zhang et al., ECCV 2022).

    logits = τ f T + α exp( -β (1 - f Fᵀ) ) L,    L_cls = CE(logits, y)

Only the keys F (N, D) are trained. They start at those of Tip-Adapter and are not normalised again;
α and β keep their initial values in training. Then α and β are searched as in Tip-Adapter.

PAPER: the authors report the best epoch and the better of two results as seen on the test set. Here
the last epoch counts and nothing is chosen on test images. They run the image encoder in every
epoch; here each image has `train_views` augmented views, encoded once, and every epoch draws one. As in
their code an epoch ends with the short last batch, if there is one (`last_batch=drop` leaves it out).
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.encoder import Encoder
from dca.core.options import option
from dca.methods.base import Batch, LastBatch, OptimizerName, Problem, ScheduleUnit, Step, Support, TrainedMethod
from dca.methods.shared.frozen_features import draw_unit_view, encode_views, unit_mean
from dca.methods.tip_adapter import TipAdapter, TipAdapterOptions, cache_keys, cache_logits


@dataclass(frozen=True, kw_only=True)
class TipAdapterFOptions(TipAdapterOptions):
    """Options of Tip-Adapter-F."""

    train_views: int = option(
        20, "augmented views per image that the epochs draw from", low=1, source="paper: one per epoch"
    )
    epochs: int | None = option(
        None, "passes over the training images; auto: 20, for EuroSAT 100", low=0, source="paper"
    )
    optimizer: OptimizerName = option("adamw", "optimiser", source="paper")
    batch_size: int | None = option(256, "images per step", low=1, source="paper")
    learning_rate: float | None = option(1e-3, "initial learning rate", low=0, source="paper")
    adam_eps: float = option(1e-4, "ε of Adam and AdamW", low=0, source="paper")
    weight_decay: float = option(0.01, "weight decay of the keys", low=0, source="paper")
    last_batch: LastBatch = option("keep", "whether an epoch ends with a short batch", source="Tip-Adapter's code")
    warmup_epochs: int = option(0, "epochs of warm-up", low=0, source="paper")
    schedule: ScheduleUnit = option(
        "step", "whether the cosine schedule advances per epoch or per step", source="paper"
    )


class TipAdapterF(TipAdapter, TrainedMethod):
    """Tip-Adapter whose keys are trained."""

    name = "tip_adapter_f"
    trains_on = "features"
    validation = "full"
    Options = TipAdapterFOptions
    results = types.MappingProxyType({name: kind for name, kind in TipAdapter.results.items() if name != "keys"})
    options: TipAdapterFOptions

    @classmethod
    def resolve(cls, options: TipAdapterFOptions, problem: Problem) -> Any:
        """Fill in epochs: 20, for EuroSAT 100."""
        return super().resolve(options.fill_unset(epochs=100 if problem.dataset == "eurosat" else 20), problem)

    def __init__(self, encoder: Encoder, problem: Problem, options: TipAdapterFOptions) -> None:
        super().__init__(encoder, problem, options)
        rows = len(problem.names) * problem.shots
        self.keys = nn.Parameter(torch.zeros(rows, encoder.feature_dim, device=encoder.device))

    def training_rows(self, support: Support) -> tuple[Tensor, Tensor]:
        """Features of the views of each image, (N, V, D), and labels (N,)."""
        return encode_views(support, self.options.train_views, self.options.crop_low), support.labels

    def prepare(self, support: Support) -> None:
        """Initial keys, one per image, and the constants of training."""
        self.keys = nn.Parameter(cache_keys(support, self.options.views, self.options.crop_low))
        self.text_features, self.key_labels = unit_mean(self.texts()), support.labels
        self.alpha_beta = self.text_features.new_tensor(self.select_alpha_beta(None))

    def logits(self, features: Tensor) -> Tensor:
        """τ f T + α exp(-β (1 - f Fᵀ)) L, differentiable in the keys: (B, C)."""
        alpha, beta = self.alpha_beta[0], self.alpha_beta[1]
        cache = cache_logits(features @ self.keys.T, self.key_labels, len(self.text_features), beta)
        return self.encoder.tau * features @ self.text_features.T + alpha * cache

    def step(self, batch: Batch) -> Step:
        """Cross-entropy of one view of each image."""
        logits = self.logits(draw_unit_view(batch))
        return Step({"cls": F.cross_entropy(logits, batch.labels)}, logits.detach().softmax(dim=-1))

    def finish(self, support: Support) -> None:
        """Search α and β for the trained keys."""
        with torch.no_grad():
            self.alpha_beta = self.keys.new_tensor(self.select_alpha_beta(support.validation))

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """As many keys as were saved: the shots of a problem are an average over the classes."""
        keys = state.get("keys")
        if keys is not None and keys.dim() == 2 and keys.shape[1] == self.keys.shape[1]:
            self.keys = nn.Parameter(self.keys.new_zeros(keys.shape))
        super().restore(state)


METHOD = TipAdapterF
