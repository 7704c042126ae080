"""2SFS: two stages, layer norms and then a classifier (Farina et al., CVPR 2025).

Stage 1 trains gain g and bias b of every layer norm of both towers, with one sentence per class, that of the dataset:

    norm(x) = g ⊙ (x - mean x) / sd x + b,    p(y | x) = softmax_y( τ cos(f, t_y) ),    L = CE(p, y)

Stage 2 keeps the towers and trains one vector per class, which starts at the adapted text feature:

    p(y | x) = softmax_y( τ cos(f, w_y) ),    w_y = t_y at first

All steps together are 300 per shot, whatever the number of classes, 60 % of them in stage 1. Each stage has its own
AdamW and its own cosine schedule. A class that is added to the finished model has the text feature of stage 1.

All norms are trained, as the help of the authors' code says. The code itself freezes those outside the blocks again
(ln_pre, ln_post and ln_final: 4,096 of 65,536 values on ViT-B/16); `norms=blocks` is what it trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.blocks import NORMS, Update
from dca.backbones.dual_encoder import DualEncoder
from dca.backbones.encoder import Ability
from dca.core.options import option
from dca.methods.base import Batch, OptimizerName, Problem, ScheduleUnit, Step, Support
from dca.methods.shared.text_feature_methods import TOWERS, TextFeatureOptions, TowerUpdateMethod


@dataclass(frozen=True, kw_only=True)
class TwoSFSOptions(TextFeatureOptions):
    """Options of 2SFS."""

    epochs: int | None = option(
        None, "passes over the training images in both stages; auto: 300 steps per shot", low=0, source="paper"
    )
    batch_size: int | None = option(32, "images per step", low=1, source="2SFS's code")
    learning_rate: float | None = option(
        2e-4, "learning rate at the start of each stage; auto: from the gradient", low=0, source="2SFS's code"
    )
    optimizer: OptimizerName = option("adamw", "optimiser", source="2SFS's code")
    weight_decay: float = option(0.01, "weight decay of every trained tensor", low=0, source="2SFS's code")
    warmup_epochs: int = option(0, "epochs of warm-up, in each stage", low=0, source="2SFS's code")
    schedule: ScheduleUnit = option(
        "step", "whether the cosine schedule advances per epoch or per step", source="2SFS's code"
    )
    final_rate: float = option(
        1e-6, "learning rate at the end of the cosine schedule of each stage", low=0, source="2SFS's code"
    )
    first_share: float = option(0.6, "share of the epochs in stage 1", low=0, high=1, source="paper")
    norms: Literal["all", "blocks"] = option(
        "all",
        "layer norms that are trained; blocks: only those inside the blocks, as in 2SFS's code",
        source="help of 2SFS's code",
    )


def layer_norm_names(clip: DualEncoder, tower: str, outside: bool) -> list[str]:
    """Names of a tower's layer norms, as updates have them."""
    owner = clip.visual if tower == "visual" else clip.text
    inside = [f"{tower}.{layer}.{norm}" for layer in range(owner.layers) for norm in NORMS]
    return inside + [f"{tower}.{norm}" for norm in owner.outside_norms if outside]


def get_layer_norm(clip: DualEncoder, name: str) -> nn.LayerNorm:
    """The layer norm that an update with this name belongs to."""
    tower, _, path = name.partition(".")
    norm = clip.get_submodule(tower).get_submodule(f"blocks.{path}" if path[0].isdecimal() else path)
    assert isinstance(norm, nn.LayerNorm)
    return norm


def norm_change(gain: Tensor, bias: Tensor, eps: float, x: Tensor) -> Tensor:
    """What another gain and bias add to a norm of x (..., T, W), from their differences (W,)."""
    return F.layer_norm(x, gain.shape, gain, bias, eps)


class TwoSFS(TowerUpdateMethod):
    """Layer norms of both towers, then one vector per class that starts at the adapted text."""

    name = "two_sfs"
    paper = "Farina et al., Rethinking Few-Shot Adaptation of Vision-Language Models in Two Stages, CVPR 2025"
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_FEATURES, Ability.IMAGE_LAYERS, Ability.TEXT_LAYERS})
    steps_per_shot = 300
    Options = TwoSFSOptions
    options: TwoSFSOptions
    _stage = 0

    def __init__(self, clip: DualEncoder, problem: Problem, options: TwoSFSOptions) -> None:
        super().__init__(clip, problem, options)
        self._names, self._start, self.norms = {}, {}, nn.ParameterDict()
        for tower in TOWERS:
            self._names[tower] = layer_norm_names(clip, tower, options.norms == "all")
            norms = [get_layer_norm(clip, name) for name in self._names[tower]]
            # g and b of the tower's N norms, (N, 2, W).
            self._start[tower] = torch.stack([torch.stack([n.weight, n.bias]) for n in norms]).detach()
            self.norms[tower] = nn.Parameter(self._start[tower].clone())
        C, D = len(problem.names), clip.feature_dim
        self.classifier = nn.Parameter(torch.zeros(C, D, device=clip.device))

    def updates(self) -> dict[str, Update]:
        """What the trained gains and biases add to every norm, by name."""
        updates: dict[str, Update] = {}
        for tower, names in self._names.items():
            changes = self.norms[tower] - self._start[tower]
            eps = get_layer_norm(self.clip, names[0]).eps
            updates |= {
                name: partial(norm_change, pair[0], pair[1], eps) for name, pair in zip(names, changes, strict=True)
            }
        return updates

    def encode_text(self) -> Tensor:
        """w: unit vectors of the classes, (C, D)."""
        return F.normalize(self.classifier, dim=-1)

    def stages(self, epochs: int) -> tuple[int, ...]:
        """Epochs of both stages."""
        first = round(self.options.first_share * epochs)
        return first, epochs - first

    def begin_stage(self, stage: int) -> None:
        """Choose what is trained: norms, then the classifier."""
        self._stage = stage
        self.norms.requires_grad_(stage == 0)
        self.classifier.requires_grad_(stage == 1)

    def prepare(self, support: Support) -> None:
        """Start the classifier at the text features, for a fit without stage 1."""
        super().prepare(support)
        self._start_classifier()

    def on_epoch_end(self, epoch: int, epochs: int) -> None:
        """Start the classifier at the adapted text features when stage 1 ends."""
        if epoch == self.stages(epochs)[0]:
            self._start_classifier()

    @torch.no_grad()
    def _start_classifier(self) -> None:
        self.classifier.copy_(self.encode_sentences(self.updates()))

    def step(self, batch: Batch) -> Step:
        """Cross-entropy of one batch: through both towers in stage 1, of the classifier in stage 2."""
        if self._stage == 0:
            return super().step(batch)
        with torch.no_grad():
            f = self.encode(batch.inputs)
        return self.compare(f, self.encode_text(), batch.labels)

    @torch.no_grad()
    def copy_for(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """Trained vectors of known classes, text features of stage 1 for new ones."""
        other = type(self)(self.clip, problem, self.options)
        for tower, values in self.norms.items():
            other.norms[tower].copy_(values)
        other._start_classifier()
        for c, source in enumerate(sources):
            if source is not None:
                other.classifier[c] = self.classifier[source]
        other.temperature = self.temperature
        return other


METHOD = TwoSFS
