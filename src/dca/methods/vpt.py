"""VPT: visual prompt tuning (Jia et al., ECCV 2022) on CLIP.

n learned tokens P join CLS x and the patches E of the image tower; the text features
t_y of one fixed sentence per class are the classifier:

    [x_1, Z_1, E_1] = block_1([x_0, P_0, E_0])
    [x_i, Z_i, E_i] = block_i([x_{i-1}, P_{i-1}, E_{i-1}])    2 <= i <= depth: fresh tokens
    [x_i, Z_i, E_i] = block_i([x_{i-1}, Z_{i-1}, E_{i-1}])    i > depth
    p(y | x) = softmax_y( τ cos(f, t_y) ),    L = CE(p, y)

Depth 1 is VPT-shallow. Three placements are published. The tokens have no positions and attention
is not causal, so their place does not matter; their initial values do, and whether ln_pre
acts on P_0:

    original  after CLS, before ln_pre; uniform start; dropout
    maple     after the patches, before ln_pre; normal start
    dapt      after CLS, after ln_pre; uniform start
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.dual_encoder import DualEncoder, ExtraTokens
from dca.backbones.encoder import Ability
from dca.core.errors import UserError
from dca.core.options import option
from dca.methods.base import Batch, Problem, Step, Support
from dca.methods.shared.prompts import coop_epochs, dropout, fill_template, init_visual_tokens, random_tokens
from dca.methods.shared.text_feature_methods import TextFeatureMethod, TextFeatureOptions

Placement = Literal["original", "maple", "dapt"]
# Tokens and depth as published.
SIZES: dict[Placement, tuple[int, int]] = {"original": (5, 12), "maple": (8, 12), "dapt": (16, 1)}


@dataclass(frozen=True, kw_only=True)
class VPTOptions(TextFeatureOptions):
    """Options of VPT. Placement maple has a published recipe; the others take CoOp's, except its learning rate."""

    placement: Placement = option(
        "original", "initial values, place and ln_pre of the tokens, by paper", source="paper"
    )
    tokens: int | None = option(None, "n, learned tokens per block; auto: by placement", low=0, high=4096)
    depth: int | None = option(
        None, "blocks with tokens of their own; auto: by placement, at most all", low=1, high=1024
    )
    dropout: float = option(0.0, "share of token entries zeroed in training", low=0, high=0.99, source="paper")
    template: str | None = option("a photo of a {}.", "sentence around the name; auto: the dataset's", source="MaPLe")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.template is not None and "{}" not in self.template:
            raise UserError(f"template={self.template}: {{}} for the class name is missing")


class VPT(TextFeatureMethod):
    """Learned tokens in the image tower, fixed sentences for the classes."""

    name = "vpt"
    paper = "Jia et al., Visual Prompt Tuning, ECCV 2022"
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_FEATURES, Ability.IMAGE_TOKENS})
    trains_on = "images"
    Options = VPTOptions
    learns_text = False
    options: VPTOptions

    @classmethod
    def resolve(cls, options: VPTOptions, problem: Problem) -> Any:
        """Fill in sizes and recipe of the placement. The training loop finds a learning rate that is not published."""
        tokens, depth = SIZES[options.placement]
        auto: dict[str, Any] = {"epochs": coop_epochs(problem), "batch_size": 32, "learning_rate": None}
        if options.placement == "maple":
            auto = {"epochs": 5, "batch_size": 4, "learning_rate": 0.0025}
        return super().resolve(options.fill_unset(tokens=tokens, depth=depth, **auto), problem)

    def __init__(self, clip: DualEncoder, problem: Problem, options: VPTOptions) -> None:
        super().__init__(clip, problem, options)
        assert options.tokens is not None
        assert options.depth is not None
        shape = (min(options.depth, clip.visual.layers), options.tokens, clip.visual.width)
        if options.placement == "maple":
            start = random_tokens(clip, shape, self.generator("tokens"))
        else:
            start = init_visual_tokens(clip, shape[0] * shape[1], self.generator("tokens")).view(shape)
        self.tokens = nn.Parameter(start)

    def extra(self, generator: torch.Generator | None = None) -> ExtraTokens:
        """The tokens of each block; with dropout if there is a generator."""
        tokens = dropout(self.tokens, self.options.dropout, generator)
        return ExtraTokens(
            dict(enumerate(tokens)),
            position="end" if self.options.placement == "maple" else "after_cls",
            before_norm=self.options.placement != "dapt",
        )

    def encode(self, pixels: Tensor) -> Tensor:
        """f: unit image features (B, D)."""
        return F.normalize(self.clip.encode_image(pixels, tokens=self.extra()), dim=-1)

    def encode_text(self) -> Tensor:
        """t: unit text features (C, D), not trained."""
        texts = fill_template(self.problem.names, self.options.template or self.problem.template)
        return F.normalize(self.clip.encode_text(texts), dim=-1)

    def prepare(self, support: Support) -> None:
        """The text features, once."""
        super().prepare(support)
        self._text = self.encode_text()

    def step(self, batch: Batch) -> Step:
        """Cross-entropy of one batch."""
        noise = batch.noise if self.options.dropout else None
        f = F.normalize(self.clip.encode_image(batch.inputs, tokens=self.extra(noise)), dim=-1)
        logits = self.clip.tau * f @ self._text.T
        terms = {"cls": F.cross_entropy(logits, batch.labels), **self.dca_terms(f, self._text, batch.labels)}
        return Step(terms, logits.detach().softmax(dim=-1))


METHOD = VPT
