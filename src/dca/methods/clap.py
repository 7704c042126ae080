"""CLAP: class-adaptive linear probing (Silva-Rodríguez et al., CVPR 2024).

One prototype w_c per class starts at its text feature t_c, not normalised. A penalty keeps it near t_c,
the more the better zero-shot CLIP already knows the class:

    p(y | x) = softmax_y( τ cos(f, w_y) )
    L = CE(p, y) + 1/C Σ_c λ_c ‖w_c - t_c‖²
    λ_c = mean over the augmented images of class c of zero-shot CLIP's probability of c

PAPER: the text derives λ as multipliers of an augmented Lagrangian with outer steps; the authors'
experiments keep these initial values, as is done here. λ = 0 is their ZS-LP. Nothing is
chosen on any validation or test image.

The penalty acts on raw text vectors, so its effect depends on their length in the backbone. By default
w_c and t_c are divided by s (`shared/prompts.py`), so that they have the size that they have in OpenAI's
CLIP; cosines do not see it:

    s = mean_c ‖t_c‖ / 10 · 100 / τ

As published: `recipe=paper`, `names=raw` and `sampling=views`. The authors' code reads class names with the underscores
of the split files, and a step takes 256 of the 20 N views of all images, shuffled together; an epoch has as many steps
as N images make batches.

`recipe=paper` is s = 1. `strength` multiplies the penalty. The paper's is 1; the scaled recipe has 0.03, chosen on
validation images (docs/methods-research.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.encoder import Ability, Encoder
from dca.core.options import option
from dca.methods.base import Batch, Head, Problem, Step, Support, TrainedMethod, describe_terms
from dca.methods.shared.frozen_features import (
    SEVEN_TEMPLATES,
    FrozenMethod,
    FrozenOptions,
    draw_unit_view,
    encode_class_texts,
    encode_views,
)
from dca.methods.shared.heads import LinearHead
from dca.methods.shared.prompts import CLIP_TEXT_NORM, UnitRecipe, clip_scale

# Public datasets whose split files have underscores in class names, which CLAP's code reads; all else here reads words.
UNDERSCORED = {"caltech101", "food101", "oxford_pets", "sun397", "ucf101"}
# In SUN397 a space stands only behind these; longer ones first.
PLACES = (
    *("indoor_procenium", "barrel_storage", "bottle_storage", "establishment", "indoor_seats", "broadleaf"),
    *("coral_reef", "cultivated", "needleleaf", "south_asia", "vegetation", "east_asia", "frontseat", "backseat"),
    *("baseball", "exterior", "football", "interior", "platform", "natural", "outdoor", "vehicle", "indoor", "office"),
    *("plunge", "public", "block", "urban", "water", "door", "home", "sand", "shop", "wild", "fan"),
)
# Names that begin with such a word and have an underscore behind it.
COMPOUNDS = {"baseball field", "home office", "office building", "water tower"}


def raw_name(name: str, dataset: str) -> str:
    """A class name as the split file of a public dataset has it, from its words; other names as they are.

    >>> raw_name("outdoor apartment building", "sun397"), raw_name("apple pie", "food101")
    ('outdoor apartment_building', 'apple_pie')
    """
    if dataset not in UNDERSCORED:
        return name
    raw = name.replace(" ", "_")
    if dataset == "sun397" and name not in COMPOUNDS:
        for place in PLACES:
            if raw.startswith(f"{place}_"):
                return f"{place} {raw[len(place) + 1 :]}"
    return raw


# Factor of the penalty; that of the scaled units was chosen on validation images (docs/methods-research.md).
STRENGTH: dict[UnitRecipe, float] = {"scaled": 0.03, "paper": 1.0}
Multipliers = Literal["class", "mean", "corrected", "one", "none"]


@dataclass(frozen=True, kw_only=True)
class CLAPOptions(FrozenOptions):
    """Options of CLAP; symbols as in the paper."""

    views: int = option(20, "augmented views per image, encoded once; every epoch draws one", low=1, source="paper")
    sampling: Literal["images", "views"] = option(
        "images",
        "images: a step takes one view of each of its images; views: it draws from all views, as CLAP's code does",
    )
    names: Literal["plain", "raw"] = option(
        "plain", "class names as words, or with the underscores of public split files; CLAP's code: raw"
    )
    multipliers: Multipliers = option(
        "class",
        "λ: one per class; their mean; one per class, scaled to mean 1; all 1; none (ZS-LP)",
        source="paper",
    )
    strength: float | None = option(None, "factor of the penalty; auto: 0.03, and 1 with recipe=paper", low=0)
    recipe: UnitRecipe = option("scaled", "text vectors scaled to the size of CLIP's, or as they are, as in the paper")
    epochs: int | None = option(300, "passes over the training images", low=0, source="paper")
    batch_size: int | None = option(256, "images per step", low=1, source="paper")
    learning_rate: float | None = option(0.1, "learning rate after warm-up", low=0, source="paper")
    weight_decay: float = option(0.0, "weight decay of the prototypes", low=0, source="paper")


def class_multipliers(features: Tensor, labels: Tensor, text: Tensor, tau: float, form: str) -> Tensor:
    """λ (C,) from unit features (R, D), labels (R,) and unit text features (C, D)."""
    C = len(text)
    right = (tau * features @ text.T).softmax(dim=-1)[torch.arange(len(labels), device=labels.device), labels]
    sums = right.new_zeros(C).index_add(0, labels, right)
    mean = sums / torch.bincount(labels, minlength=C).clamp_min(1)
    if form == "class":
        return mean
    if form == "corrected":
        return mean / mean.mean().clamp_min(1e-12)
    return {"mean": mean.mean(), "one": torch.ones_like(mean[0]), "none": torch.zeros_like(mean[0])}[form].repeat(C)


def penalty(W: Tensor, text: Tensor, lam: Tensor) -> Tensor:
    """1/C Σ_c λ_c ‖w_c - t_c‖². W, text: (C, D), lam: (C,)."""
    return (lam * (W - text).square().sum(dim=-1)).mean()


class CLAP(FrozenMethod, TrainedMethod):
    """Linear probing that starts at the text features and is kept near them class by class."""

    name = "clap"
    paper = "Silva-Rodríguez et al., A Closer Look at the Few-Shot Adaptation of Large VLMs, CVPR 2024"
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_FEATURES})
    trains_on = "features"
    imagenet_templates = (*SEVEN_TEMPLATES, "a photo of a {}.")
    term_titles = describe_terms(near_text="near the text")
    Options = CLAPOptions
    class_rows = frozenset({"weight"})
    options: CLAPOptions

    @classmethod
    def resolve(cls, options: CLAPOptions, problem: Problem) -> CLAPOptions:
        """Fill in the strength by recipe."""
        return options.fill_unset(strength=STRENGTH[options.recipe])

    def __init__(self, encoder: Encoder, problem: Problem, options: CLAPOptions) -> None:
        super().__init__(encoder, problem, options)
        self.weight = nn.Parameter(torch.zeros(len(problem.names), encoder.feature_dim, device=encoder.device))

    def training_rows(self, support: Support) -> tuple[Tensor, Tensor]:
        """Features of the views of each image, (N, V, D), and labels (N,); each view alone if they are shuffled."""
        self._views = encode_views(support, self.options.views, self.options.crop_low)
        if self.options.sampling == "images":
            return self._views, support.labels
        return self._views.flatten(0, 1)[:, None], support.labels.repeat_interleave(self._views.shape[1])

    def steps_per_epoch(self, images: int, batch_size: int) -> int | None:
        """As many as the images make batches, also where the views would make more."""
        return max(images // batch_size, 1) if self.options.sampling == "views" else None

    def texts(self) -> Tensor:
        """Text features of the sentences, not normalised: (T, C, D)."""
        names = None
        if self.options.names == "raw":
            names = [raw_name(name, self.problem.dataset) for name in self.problem.names]
        return encode_class_texts(self.encoder, self.problem, self.options.templates, self.imagenet_templates, names)

    def prepare(self, support: Support) -> None:
        """Initial prototypes, and λ."""
        self._text = self.texts().mean(dim=0)
        if self.options.recipe == "scaled":
            self._text = self._text / clip_scale(self._text, CLIP_TEXT_NORM, self.encoder.tau)
        with torch.no_grad():
            self.weight.copy_(self._text)
        views = F.normalize(self._views, dim=-1)
        labels = support.labels.repeat_interleave(views.shape[1])
        unit = F.normalize(self._text, dim=-1)
        self._lambda = class_multipliers(views.flatten(0, 1), labels, unit, self.encoder.tau, self.options.multipliers)

    def step(self, batch: Batch) -> Step:
        """Cross-entropy of one view of each image, and the penalty."""
        logits = self.encoder.tau * draw_unit_view(batch) @ F.normalize(self.weight, dim=-1).T
        terms = {"cls": F.cross_entropy(logits, batch.labels)}
        if self.options.multipliers != "none":
            assert self.options.strength is not None
            terms["near_text"] = self.options.strength * penalty(self.weight, self._text, self._lambda)
        return Step(terms, logits.detach().softmax(dim=-1))

    def make_head(self) -> Head:
        """Softmax of τ cos(f, w)."""
        return LinearHead.cosine(F.normalize(self.weight, dim=-1), self.encoder.tau)


METHOD = CLAP
