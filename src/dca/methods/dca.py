"""DCA: diversity and covariance-aware prompt learning (Dong et al., ICCV 2025).

M text contexts of different lengths and V visual tokens are learned. Training measures the
squared Euclidean distance d_e, each prompt on its own:

    p_m(y | x) = softmax_y( τ / (d_e(f, u_{m,y}) + ε) )
    L = Σ_m CE(p_m, y) + α L_in + β L_ts
    L_in = Σ_i (f_i - c_{y_i})ᵀ Σ̂_{y_i}⁻¹ (f_i - c_{y_i})
    L_ts = - Σ_{i≠j} ‖u_i - u_j‖²

Testing replaces d_e by the Mahalanobis distance d_m, whose covariances come from the training
images through the final visual tokens, and averages the M probabilities.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.clip import CLIP
from dca.core.errors import UserError
from dca.core.options import opt
from dca.methods.interface import Batch, Method, Problem, Step, Support
from dca.methods.recipe import Recipe
from dca.methods.shared import losses
from dca.methods.shared.gaussian import COVARIANCES, Gaussian, gammas, naming_classes
from dca.methods.shared.gaussian import dca as dca_gaussian
from dca.methods.shared.heads import Head
from dca.methods.shared.intra_class import Within
from dca.methods.shared.metric import METRICS, SCORES
from dca.methods.shared.prompts import TextPrompts, VisualTokens
from dca.methods.shared.shots import Shots, shots_problems

PHRASES = ("a photo of", "a drawing of a", "this is a photo of", "this is a photo of a")
# Dataset -> (α, β, learning rate), the paper's parameter table.
PAPER_TABLE = {
    "dtd": (5.0, 0.5, 20.0),
    "fgvc_aircraft": (5.0, 0.01, 2.0),
    "sun397": (100.0, 0.01, 20.0),
    "caltech101": (10.0, 0.01, 0.2),
    "oxford_pets": (1.0, 0.1, 0.02),
    "food101": (1.0, 0.5, 20.0),
    "oxford_flowers": (10.0, 0.5, 0.002),
    "ucf101": (5.0, 0.1, 20.0),
    "stanford_cars": (10.0, 0.5, 0.2),
    "imagenet": (10.0, 0.1, 2.0),
    "eurosat": (100.0, 2.0, 20.0),
}
LARGE_SETS = {"imagenet", "sun397"}
# The medians of that table: what a set that is not in it starts from.
OWN_ALPHA, OWN_BETA = 10.0, 0.1


@dataclass(frozen=True, kw_only=True)
class DCAOptions(Recipe):
    """Settings of DCA; symbols as in the paper."""

    recipe: str = opt("own", "own: works without tuning; paper: its table, by dataset", choices=("own", "paper"))
    n_prompts: int = opt(4, "M, text contexts learned", low=1, high=1024, source="paper")
    phrases: tuple[str, ...] = opt(PHRASES, "words the contexts start from; further ones are random", source="paper")
    random_length: int = opt(4, "tokens of a context that starts from no phrase", low=1, high=1024)
    contexts: str = opt("unified", "shared by the classes, or one set a class", choices=("unified", "class"))
    suffix: str = opt(".", "text behind the class name", source="CoOp")
    visual_tokens: int = opt(16, "V, learned tokens in the image tower", low=0, high=4096, source="paper")
    tau: float | None = opt(None, "τ, scale of the softmax; auto: the checkpoint's", low=0)
    eps: float = opt(1e-6, "ε, guard of the inverse distance", low=0)
    score: str = opt("inverse", "softmax of τ/(d+ε) or of -τd/2", choices=SCORES, source="paper, eq. 8")
    train_metric: str = opt("euclidean", "distance while training", choices=METRICS, source="paper")
    test_metric: str = opt("mahalanobis", "distance of the finished model", choices=METRICS, source="paper")
    alpha: float | None = opt(None, "α, weight of L_in; auto: by recipe", low=0)
    beta: float | None = opt(None, "β, weight of L_ts; auto: by recipe", low=0)
    intra: str = opt("mahalanobis", "form of L_in", choices=losses.INTRA, source="paper")
    intra_features: str = opt(
        "clip", "centres of L_in without or with the first visual tokens", choices=("clip", "prompted")
    )
    intra_reduction: str = opt("element", "of L_in over images and dimensions", choices=losses.INTRA_REDUCTIONS)
    separation_reduction: str = opt("mean", "of L_ts over pairs", choices=losses.SEPARATION_REDUCTIONS)
    separation_pairs: int = opt(0, "random pairs of L_ts a step; 0: all", low=0)
    covariance: str = opt("class", "of the head: a class's own, shrunk by γ, or one for all", choices=COVARIANCES)
    center: str = opt("text", "what a class's covariance is centred on", choices=("text", "visual"))
    gamma1: float | None = opt(None, "γ1, shrinkage toward the identity; auto: by shots", low=0)
    gamma2: float | None = opt(None, "γ2, shrinkage of the off-diagonal; auto: by shots", low=0)
    normalize: bool = opt(True, "turn covariances into correlations", source="paper")
    head_views: int = opt(0, "augmented views a training image in the head; 0: the evaluation view", low=0)
    epochs: int | None = opt(
        None,
        "passes over the images; auto: 80 for one shot, 100 up to four, 200 beyond; never over 100 for own images",
        low=0,
        source="paper",
    )
    batch_size: int | None = opt(None, "images a step; auto: 32, 64 for ImageNet and SUN397", low=1, source="paper")
    learning_rate: float | None = opt(
        None, "rate after warm-up; auto: from the gradient (recipe own), by dataset (recipe paper)", low=0
    )
    warmup_epochs: int = opt(5, "first epochs at the warm-up rate", low=0, source="paper")


def epochs(shots: int) -> int:
    """The paper's epochs for a number of shots."""
    return 80 if shots <= 1 else 100 if shots <= 4 else 200


def own_epochs(shots: int) -> int:
    """For sets of one's own: at most 100, which cost a third of a point where 200 were measured (docs/methods.md)."""
    return min(epochs(shots), 100)


class DCA(Method):
    """Diversity and covariance-aware prompt learning."""

    name = "dca"
    paper = "Dong et al., Diversity Covariance-Aware Prompt Learning for Vision-Language Models, ICCV 2025"
    trains_on = "images"
    Options = DCAOptions
    results = MappingProxyType(
        {"text_features": torch.float32, "shot_features": torch.float32, "shot_counts": torch.int64}
    )
    options: DCAOptions
    text_features: Tensor
    shot_features: Tensor
    shot_counts: Tensor

    @classmethod
    def resolve(cls, chosen: DCAOptions, problem: Problem) -> DCAOptions:
        """Settle what depends on shots and dataset. The learning rate of `own` is the loop's to find."""
        alpha, beta, rate = OWN_ALPHA, OWN_BETA, None
        if chosen.recipe == "paper":
            if problem.dataset not in PAPER_TABLE:
                raise UserError(
                    f"recipe=paper has no values for the dataset '{problem.dataset}'",
                    hint=f"it knows {', '.join(PAPER_TABLE)}; use recipe=own for any other",
                )
            alpha, beta, rate = PAPER_TABLE[problem.dataset]
        gamma1, gamma2 = gammas(problem.shots)
        auto: dict[str, Any] = {
            "alpha": alpha,
            "beta": beta,
            "learning_rate": rate,
            "epochs": epochs(problem.shots) if problem.dataset in PAPER_TABLE else own_epochs(problem.shots),
            "batch_size": 64 if problem.dataset in LARGE_SETS else 32,
            "gamma1": gamma1,
            "gamma2": gamma2,
        }
        return chosen.settled(**auto)

    def __init__(self, clip: CLIP, problem: Problem, chosen: DCAOptions) -> None:
        super().__init__(clip, problem, chosen)
        missing = max(chosen.n_prompts - len(chosen.phrases), 0)
        self.text = TextPrompts(
            clip,
            problem.names,
            [*chosen.phrases[: chosen.n_prompts], *[chosen.random_length] * missing],
            per_class=chosen.contexts == "class",
            suffix=chosen.suffix,
            generator=self.generator("text"),
        )
        self.visual = VisualTokens(clip, chosen.visual_tokens, self.generator("visual"))

    @property
    def tau(self) -> float:
        """τ: the option's, or the checkpoint's."""
        return self.clip.tau if self.options.tau is None else self.options.tau

    def encode(self, pixels: Tensor) -> Tensor:
        """f: unit image features through the visual tokens, (B, D)."""
        return F.normalize(self.clip.encode_image(pixels, self.visual.extra()), dim=-1)

    def encode_text(self) -> Tensor:
        """u: unit text features, (M, C, D)."""
        return F.normalize(self.text.encode(self.clip), dim=-1)

    def prepare(self, support: Support) -> None:
        """Centres and covariances of L_in: constants of the whole training."""
        if self.options.intra_features == "prompted":
            features = self.encode_all(support)
            self._within = Within.of(features, support.labels, self.problem.names, self._gaussian("class"))
        else:
            self._within = Within.of_backbone(support, self.clip, self.problem.names, self._gaussian("class"))

    def _gaussian(self, covariance: str) -> Gaussian:
        chosen = self.options
        return dca_gaussian(
            chosen.gamma1, chosen.gamma2, self.problem.shots, covariance=covariance, normalize=chosen.normalize
        )

    def step(self, batch: Batch) -> Step:
        """L_cls, α L_in and β L_ts of one batch."""
        chosen = self.options
        f, u = self.encode(batch.inputs), self.encode_text()
        logits = self._train_head(u).logits(f)
        terms = {"cls": losses.classification(logits, batch.labels)}
        if chosen.alpha:
            terms["in"] = chosen.alpha * self._within(f, batch.labels, chosen.intra, chosen.intra_reduction)
        if chosen.beta:
            flat = u.flatten(0, 1)
            pairs = None
            if chosen.separation_pairs and len(flat) > 1:
                pairs = losses.random_pairs(len(flat), chosen.separation_pairs, batch.generator)
            terms["ts"] = chosen.beta * losses.text_separation(flat, reduction=chosen.separation_reduction, pairs=pairs)
        return Step(terms, logits.detach().softmax(dim=-1).mean(dim=0))

    def finish(self, support: Support) -> None:
        """Text features, and the training images through the final visual tokens."""
        views = self.options.head_views
        features = self.encode_all(support, views=views)
        shots = Shots.group(features, support.labels.repeat(max(views, 1)), len(self.problem.names))
        self.text_features = self.encode_text().detach()
        self.shot_features, self.shot_counts = shots.features, shots.counts
        with naming_classes(self.problem.names):
            self.head().probabilities(features[:1])

    def class_parameters(self) -> set[str]:
        """The contexts, where each class has its own."""
        own = self.options.contexts == "class"
        return {f"text.contexts.{m}" for m in range(len(self.text.contexts))} if own else set()

    def retarget(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """Prompts on the new names; covariances by class, or Euclidean distances where one is missing."""
        other = self.moved(problem, sources)
        other.text_features = other.encode_text().detach()
        shots = Shots(self.shot_features, self.shot_counts).carried(sources)
        if shots is None:
            if self.options.test_metric == "mahalanobis":
                other.options = dataclasses.replace(self.options, test_metric="euclidean")
            shots = Shots(self.shot_features[:0], self.shot_counts[:0])
        other.shot_features, other.shot_counts = shots.features, shots.counts
        return other

    def head(self, metric: str | None = None) -> Head:
        """The finished model's head, or another metric over the same statistics."""
        return Head(
            text=self.text_features,
            tau=self.tau,
            metric=metric or self.options.test_metric,
            score=self.options.score,
            eps=self.options.eps,
            center=self.options.center,
            shots=Shots(self.shot_features, self.shot_counts),
            gaussian=self._gaussian(self.options.covariance),
        )

    def _train_head(self, u: Tensor) -> Head:
        """The head of a training step over text features u (M, C, D)."""
        return Head(
            text=u,
            tau=self.tau,
            metric=self.options.train_metric,
            score=self.options.score,
            eps=self.options.eps,
            fixed=self._within.covariances,
        )

    def classify(self, features: Tensor) -> Tensor:
        """Probabilities (B, C) under the test metric, averaged over the prompts."""
        return self.head().probabilities(features)

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """Shapes of text features and shots must agree with classes, prompts and joint size."""
        M, C, D = self.options.n_prompts, len(self.problem.names), self.clip.config.embed_dim
        problems = shots_problems(state, C, D)
        if state["text_features"].shape != (M, C, D):
            problems.append(f"text_features: shape {tuple(state['text_features'].shape)}, expected {(M, C, D)}")
        return problems


METHOD = DCA
