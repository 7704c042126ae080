"""ProLIP (Fahes et al., 2024): the last layer of the image tower is trained, and kept near CLIP's own.

The projection W (D, E) maps the vector x that the rest of the image tower makes to the shared space. Only W is trained,
starting at CLIP's W₀; texts, and all layers that make x, are frozen:

    f = unit( W x + b ),    p(y | x) = softmax_y( τ f·t_y )
    L = mean CE(p, y) + λ ‖W - W₀‖²,    ‖·‖² the sum over all D · E values

The bias b is that of the layer, not trained: a ViT has none, a ResNet's attention pooling has one.

Without validation images λ falls with the number N of shots: λ = 1/N, or 1/N² (`rule`); the rate is fixed. Each step
sees all training images, each in one of its augmented views, whose x are computed once. The last W is kept. Since W
belongs to no class, a finished model takes other classes by their names.

PAPER: 300 views, of which step s takes the s-th of every image; here a step draws one of `views` of each image. W is
trained in float16 there, in float32 here. With validation images the authors search the rate and λ on a grid; here no
image is selected on.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.dual_encoder import DualEncoder
from dca.backbones.encoder import Ability
from dca.core.options import option
from dca.methods.base import (
    VIEW_CROP_LOW,
    Batch,
    OptimizerName,
    Problem,
    ProtocolOptions,
    ScheduleUnit,
    Step,
    Support,
    TrainedMethod,
    describe_terms,
)
from dca.methods.shared.frozen_features import (
    ClassNameMethod,
    FrozenMethod,
    FrozenOptions,
    draw_view,
    group_by_image,
    unit_mean,
)

Rule = Literal["1/N", "1/N^2"]
CONFIGS = "ProLIP's code: configs/experiments"
BASE_TO_NEW = ProtocolOptions({"learning_rate": 1e-5}, f"{CONFIGS}/base_to_new_VITB16.yaml")
DOMAIN_SHIFT = ProtocolOptions({"learning_rate": 1e-5}, f"{CONFIGS}/DG_VITB16.yaml")


@dataclass(frozen=True, kw_only=True)
class ProLIPOptions(FrozenOptions):
    """Options of ProLIP without validation images; symbols as in the paper."""

    rule: Rule = option("1/N", "λ from the number N of shots", source="paper")
    strength: float | None = option(None, "λ, weight of ‖W - W₀‖²; auto: as `rule` says", low=0)
    views: int = option(
        20, "augmented views per image that steps draw from; 0: the evaluation view", low=0, source="paper: 300"
    )
    crop_low: float = option(
        VIEW_CROP_LOW,
        "smallest share of the image in an augmented view; the largest is 1",
        low=0.001,
        high=1,
        source="ProLIP's code",
    )
    epochs: int | None = option(300, "passes over the training images; each is one step", low=0, source="ProLIP's code")
    batch_size: int | None = option(None, "images per step; auto: all of them", low=1, source="paper")
    optimizer: OptimizerName = option("adam", "optimiser", source="paper")
    learning_rate: float | None = option(1e-4, "initial learning rate", low=0, source="paper")
    adam_eps: float = option(1e-4, "ε of Adam and AdamW", low=0, source="ProLIP's code")
    weight_decay: float = option(0.0, "weight decay of the projection", low=0, source="paper")
    warmup_epochs: int = option(0, "epochs of warm-up", low=0, source="paper")
    schedule: ScheduleUnit = option(
        "step", "whether the cosine schedule advances per epoch or per step", source="paper"
    )


def penalty_strength(rule: Rule, shots: int) -> float:
    """λ for so many shots."""
    N = max(shots, 1)
    return 1 / N if rule == "1/N" else 1 / N**2


class ProLIP(ClassNameMethod, FrozenMethod, TrainedMethod):
    """The image tower's projection, trained near CLIP's own."""

    name = "prolip"
    paper = "Fahes et al., CLIP's Visual Embedding Projector is a Few-shot Cornucopia, arXiv 2024"
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_FEATURES, Ability.PROJECTION})
    trains_on = "features"
    term_titles = describe_terms(near_clip="near CLIP's projection")
    Options = ProLIPOptions
    protocol_options = MappingProxyType({"base-to-new": BASE_TO_NEW, "domain-shift": DOMAIN_SHIFT})
    options: ProLIPOptions

    @classmethod
    def resolve(cls, options: ProLIPOptions, problem: Problem) -> ProLIPOptions:
        """Fill in λ by shots, and steps over all images: shots are a mean, so there are fewer than C · 2 N images."""
        everything = 2 * len(problem.names) * max(problem.shots, 1)
        return options.fill_unset(strength=penalty_strength(options.rule, problem.shots), batch_size=everything)

    def __init__(self, clip: DualEncoder, problem: Problem, options: ProLIPOptions) -> None:
        super().__init__(clip, problem, options)
        self.projection = nn.Parameter(self._initial_projection.clone())

    @property
    def _initial_projection(self) -> Tensor:
        """W₀, (D, E)."""
        return self.clip.visual.projection.weight.detach()

    def unprojected(self, support: Support) -> Tensor:
        """The vectors x of V views of every image, (N, V, E)."""
        views, crop_low = self.options.views, self.options.crop_low
        return group_by_image(support.map(self.clip.encode_unprojected, views=views, crop_low=crop_low), views)

    def training_rows(self, support: Support) -> tuple[Tensor, Tensor]:
        """The vectors x of V views of each image, (N, V, E), and labels (N,)."""
        return self.unprojected(support), support.labels

    def prepare(self, support: Support) -> None:
        """Text features, which steps need, too."""
        self.finish(support)

    def finish(self, support: Support | None = None) -> None:
        """Text features of the sentences, normalised, averaged, normalised again: (C, D)."""
        self.text_features = unit_mean(self.texts())

    def project(self, x: Tensor) -> Tensor:
        """Unit features f = unit(W x + b) of vectors x (B, E): (B, D). In float32, as W is trained."""
        return F.normalize(F.linear(x, self.projection, self.clip.visual.projection.bias), dim=-1)

    def encode(self, pixels: Tensor) -> Tensor:
        """f: unit image features (B, D) by the trained projection."""
        return self.project(self.clip.encode_unprojected(pixels))

    def step(self, batch: Batch) -> Step:
        """Cross-entropy of one view of each image, and the penalty."""
        logits = self.clip.tau * self.project(draw_view(batch)) @ self.text_features.T
        terms = {"cls": F.cross_entropy(logits, batch.labels)}
        if self.options.strength:
            terms["near_clip"] = self.options.strength * (self.projection - self._initial_projection).square().sum()
        return Step(terms, logits.detach().softmax(dim=-1))


METHOD = ProLIP
