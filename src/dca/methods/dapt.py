"""DAPT: distribution-aware prompt tuning (Cho et al., ICCV 2023).

A text context of 16 tokens, shared by the classes, and 16 visual tokens after CLS are learned
together. One loss pulls images to the prototype of their class, one pushes the texts of classes apart:

    L = CE(softmax_y( τ cos(f, t_y) ), y) + β_v L_v + β_t L_t
    L_v = mean over images and dimensions of (f_i - p_{y_i})²
    L_t = mean over pairs i < j of exp( -2 ‖t_i - t_j‖² )

The prototype p_c is the mean of the unit features that CLIP without tokens gives the images of
class c; it is not normalised and stays constant during training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.dual_encoder import DualEncoder
from dca.backbones.encoder import Ability
from dca.core.options import option
from dca.methods.base import Batch, Problem, Step, Support, describe_terms
from dca.methods.shared import metric
from dca.methods.shared.class_features import ClassFeatures
from dca.methods.shared.prompts import TextPrompts, VisualTokens, coop_epochs
from dca.methods.shared.text_feature_methods import TextFeatureMethod, TextFeatureOptions

# Dataset -> (learning rate, β_v, β_t), the authors' values at any number of shots.
PAPER_TABLE = {
    "caltech101": (0.2, 10.0, 0.01),
    "dtd": (20.0, 100.0, 0.01),
    "eurosat": (20.0, 100.0, 10.0),
    "fgvc_aircraft": (2.0, 100.0, 0.01),
    "food101": (20.0, 10.0, 0.01),
    "imagenet": (2.0, 0.01, 0.01),
    "oxford_flowers": (0.002, 10.0, 0.01),
    "oxford_pets": (0.02, 10.0, 0.1),
    "stanford_cars": (0.002, 100.0, 0.1),
    "sun397": (20.0, 100.0, 0.01),
    "ucf101": (20.0, 0.1, 0.1),
}
# The medians of that table, for datasets that are not in it.
OWN_VISUAL, OWN_TEXT = 10.0, 0.01
SHARPNESS = 2.0


@dataclass(frozen=True, kw_only=True)
class DAPTOptions(TextFeatureOptions):
    """Options of DAPT."""

    recipe: Literal["paper", "own"] = option(
        "paper",
        "paper: its table, for datasets in it; own: medians, learning rate from the gradient",
        source="paper",
    )
    text_tokens: int = option(16, "length of the text context", low=1, high=1024, source="paper")
    visual_tokens: int = option(16, "learned tokens in the image tower", low=0, high=4096, source="paper")
    beta_visual: float | None = option(None, "β_v, weight of L_v; auto: by recipe", low=0, source="paper")
    beta_text: float | None = option(None, "β_t, weight of L_t; auto: by recipe", low=0, source="paper")
    # The authors' prototypes depend on a random crop.
    prototypes: Literal["evaluation", "augmented"] = option(
        "evaluation", "view of the images in prototypes; augmented: one random crop of each, as in DAPT's code"
    )


class DAPT(TextFeatureMethod):
    """Text and visual prompts, with class prototypes for images and a loss that separates texts."""

    name = "dapt"
    paper = "Cho et al., Distribution-Aware Prompt Tuning for Vision-Language Models, ICCV 2023"
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_PROMPTS, Ability.IMAGE_TOKENS})
    trains_on = "images"
    Options = DAPTOptions
    term_titles = describe_terms(visual="to prototypes", text="between texts")
    options: DAPTOptions

    @classmethod
    def resolve(cls, options: DAPTOptions, problem: Problem) -> Any:
        """Fill in learning rate and weights by dataset, epochs by shots."""
        medians = (None, OWN_VISUAL, OWN_TEXT)
        rate, visual, text = PAPER_TABLE.get(problem.dataset, medians) if options.recipe == "paper" else medians
        filled = options.fill_unset(
            learning_rate=rate, beta_visual=visual, beta_text=text, epochs=coop_epochs(problem), batch_size=32
        )
        return super().resolve(filled, problem)

    def __init__(self, clip: DualEncoder, problem: Problem, options: DAPTOptions) -> None:
        super().__init__(clip, problem, options)
        lengths = [options.text_tokens]
        start = self.generator("text")
        self.text = TextPrompts(clip, problem.names, lengths, per_class=False, suffix=".", generator=start)
        self.visual = VisualTokens(clip, options.visual_tokens, self.generator("visual"))

    def encode(self, pixels: Tensor) -> Tensor:
        """f: unit image features through the visual tokens, (B, D)."""
        return F.normalize(self.clip.encode_image(pixels, tokens=self.visual.as_extra_tokens()), dim=-1)

    def text_contexts(self) -> Sequence[Tensor]:
        """The context."""
        return list(self.text.contexts)

    def encode_text(self) -> Tensor:
        """t: unit text features under the learned context, (C, D)."""
        return F.normalize(self.text.encode(self.clip)[0], dim=-1)

    def prepare(self, support: Support) -> None:
        """The prototypes p: (C, D)."""
        super().prepare(support)
        views = int(self.options.prototypes == "augmented")
        features = F.normalize(support.frozen_features(views=views, crop_low=self.options.crop_low), dim=-1)
        self._prototypes = ClassFeatures.group(features, support.labels, len(self.problem.names)).means()

    def step(self, batch: Batch) -> Step:
        """CE, β_v L_v and β_t L_t of one batch."""
        options = self.options
        f, t = self.encode(batch.inputs), self.encode_text()
        logits = self.clip.tau * f @ t.T
        terms = {"cls": F.cross_entropy(logits, batch.labels)}
        if options.beta_visual:
            terms["visual"] = options.beta_visual * F.mse_loss(f, self._prototypes[batch.labels])
        if options.beta_text and len(t) > 1:
            terms["text"] = options.beta_text * text_potential(t)
        terms |= self.dca_terms(f, t, batch.labels)
        return Step(terms, logits.detach().softmax(dim=-1))


def text_potential(t: Tensor) -> Tensor:
    """L_t: mean Gaussian potential of all pairs of text features t (C, D)."""
    first, second = torch.triu_indices(len(t), len(t), 1, device=t.device)
    return (-SHARPNESS * metric.euclidean(t, t)[first, second]).exp().mean()


METHOD = DAPT
