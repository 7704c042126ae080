"""CLIP-SVD: the singular values of the towers' matrices (Koleilat et al., 2025).

The matrices W of queries, keys, values, attention output and both MLP layers of every block of both towers are
decomposed once, and only their singular values are trained:

    W = U diag(s⁰) Vᵀ,    W' x = U diag(s) Vᵀ x = W x + U diag(s - s⁰) Vᵀ x,    s = s⁰ at first
    p(y | x) = softmax_y( τ cos(f, t_y) ),    L = CE(p, y)

with one sentence per class, that of the dataset. U, V and the biases stay, as do all other weights. At the start
it is zero-shot CLIP. Training takes 200 steps per shot, whatever the number of classes. Weight decay acts on s, as in
the authors' code. q, k and v are three matrices, each with its own decomposition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.blocks import LINEARS, QKV, Block, Update
from dca.backbones.dual_encoder import DualEncoder, ImageTower, TextTower
from dca.backbones.encoder import Ability
from dca.core.options import option
from dca.methods.base import OptimizerName, Problem, ScheduleUnit
from dca.methods.shared.text_feature_methods import TOWERS, TextFeatureOptions, TowerUpdateMethod

# U (N, O, R), s⁰ (N, R) and Vᵀ (N, R, I) of one part ("q", ...) in the N blocks of a tower.
Decomposition = tuple[Tensor, Tensor, Tensor]
# Decompositions of a tower, kept as long as the backbone: those of ViT-B/16 take minutes on two CPU cores.
_CACHE: WeakKeyDictionary[nn.Module, dict[str, Decomposition]] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class CLIPSVDOptions(TextFeatureOptions):
    """Options of CLIP-SVD."""

    epochs: int | None = option(
        None, "passes over the training images; auto: 200 steps per shot", low=0, source="CLIP-SVD's code"
    )
    batch_size: int | None = option(32, "images per step", low=1, source="CLIP-SVD's code")
    learning_rate: float | None = option(
        5e-4, "initial learning rate; auto: from the gradient", low=0, source="CLIP-SVD's code"
    )
    optimizer: OptimizerName = option("adamw", "optimiser", source="CLIP-SVD's code")
    weight_decay: float = option(0.01, "weight decay of every trained tensor", low=0, source="CLIP-SVD's code")
    warmup_epochs: int = option(0, "epochs of warm-up", low=0, source="CLIP-SVD's code")
    schedule: ScheduleUnit = option(
        "step", "whether the cosine schedule advances per epoch or per step", source="CLIP-SVD's code"
    )
    final_rate: float = option(1e-6, "learning rate at the end of the cosine schedule", low=0, source="CLIP-SVD's code")
    towers: Literal["both", "visual", "text"] = option("both", "which towers are updated", source="paper")


def block_matrices(block: Block) -> Iterator[tuple[str, Tensor]]:
    """The decomposed matrices (O, I) of a block, by part; those of q, k and v apart."""
    yield from zip(QKV, block.attn.qkv.weight.chunk(3), strict=True)
    fc, _, proj = block.mlp
    for part, layer in (("out", block.attn.out), ("fc", fc), ("proj", proj)):
        yield part, layer.get_parameter("weight")


def decompose(tower: ImageTower | TextTower) -> dict[str, Decomposition]:
    """Decompose the matrices of a tower, by part.

    In float64 and on the CPU: a saved model holds s alone, and its U and V must come out the same on any device.
    """
    if tower not in _CACHE:
        blocks = [dict(block_matrices(block)) for block in tower.blocks]
        _CACHE[tower] = {part: _svd(torch.stack([block[part] for block in blocks])) for part in LINEARS}
    return _CACHE[tower]


def _svd(weights: Tensor) -> Decomposition:
    """U, s⁰ and Vᵀ of matrices (N, O, I), where and in the type they are."""
    exact = weights.detach().double()
    factors = torch.linalg.svd(exact if exact.is_meta else exact.cpu(), full_matrices=False)
    U, s, V = (factor.to(weights).contiguous() for factor in factors)  # by rows: faster products
    return U, s, V


def singular_value_change(U: Tensor, ds: Tensor, V: Tensor, x: Tensor) -> Tensor:
    """U diag(s - s⁰) Vᵀ x. U: (O, R), ds: (R,), V: Vᵀ (R, I), x: (..., T, I)."""
    return F.linear(F.linear(x, V) * ds, U)


class CLIPSVD(TowerUpdateMethod):
    """The singular values of every matrix in the blocks of both towers."""

    name = "clip_svd"
    paper = "Koleilat et al., Singular Value Few-shot Adaptation of Vision-Language Models, arXiv 2509.03740, 2025"
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_FEATURES, Ability.TEXT_LAYERS})
    steps_per_shot = 200
    Options = CLIPSVDOptions
    options: CLIPSVDOptions

    @classmethod
    def needs_with(cls, options: CLIPSVDOptions) -> frozenset[Ability]:
        """Layers of the image tower, too, unless only those of the text tower are updated."""
        return cls.needs | ({Ability.IMAGE_LAYERS} if options.towers != "text" else set())

    def __init__(self, clip: DualEncoder, problem: Problem, options: CLIPSVDOptions) -> None:
        super().__init__(clip, problem, options)
        towers = {tower: decompose(getattr(clip, tower)) for tower in TOWERS if options.towers in ("both", tower)}
        self._decompositions = {(tower, part): parts[part] for tower, parts in towers.items() for part in LINEARS}
        # s (N, R) of each part in the N blocks of a tower, e.g. "visual_q".
        self.values = nn.ParameterDict(
            {f"{tower}_{part}": nn.Parameter(s.clone()) for (tower, part), (_, s, _) in self._decompositions.items()}
        )

    def updates(self) -> dict[str, Update]:
        """U diag(s - s⁰) Vᵀ of every matrix, by name."""
        updates: dict[str, Update] = {}
        for (tower, part), (U, start, V) in self._decompositions.items():
            changes = zip(U, self.values[f"{tower}_{part}"] - start, V, strict=True)
            updates |= {
                f"{tower}.{layer}.{part}": partial(singular_value_change, *parts) for layer, parts in enumerate(changes)
            }
        return updates


METHOD = CLIPSVD
