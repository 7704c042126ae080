"""MaPLe: multi-modal prompt learning (Khattak et al., CVPR 2023).

n text tokens are learned for the input and for each of the next J - 1 blocks; a linear map of
its own turns the tokens of each depth into visual ones, so that the two towers move together:

    text, block i < J:    [SOS, P_i, W_i, EOT]    P_i replaces what block i - 1 made of P_{i-1}
    image, block i < J:   [x_i, E_i, A_i P_i + b_i]    after the patches, at i = 0 before ln_pre
    p(y | x) = softmax_y( τ cos(f, t_y) ),    L = CE(p, y)

P_0 starts from the first n tokens of "a photo of a"; the others stay, fixed, in front of the
class name. Beyond depth J the outputs of the last tokens flow on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.dual_encoder import DualEncoder, ExtraTokens
from dca.backbones.encoder import Ability
from dca.core.options import option
from dca.methods.base import Batch, Problem, ProtocolOptions, Step
from dca.methods.shared.prompts import check_name_lengths, random_tokens, tokenize_names
from dca.methods.shared.text_feature_methods import TextFeatureMethod, TextFeatureOptions

# One model, trained on 16 shots of all classes of ImageNet, for both protocols.
TRANSFER = ProtocolOptions(
    {"depth": 3, "epochs": 2, "learning_rate": 0.0026},
    "MaPLe's code: configs/trainers/MaPLe/vit_b16_c2_ep5_batch4_2ctx_cross_datasets.yaml",
)


@dataclass(frozen=True, kw_only=True)
class MaPLeOptions(TextFeatureOptions):
    """Options of MaPLe. Its few-shot recipe is not published: this is the recipe for 16 shots of base classes."""

    epochs: int | None = option(5, "passes over the training images", low=0, source="paper")
    batch_size: int | None = option(4, "images per step", low=1, source="paper")
    learning_rate: float | None = option(
        0.0035, "learning rate after warm-up; auto: from the gradient", low=0, source="paper"
    )
    tokens: int = option(2, "n, learned tokens per block", low=1, high=1024, source="paper")
    depth: int = option(9, "J, blocks with tokens of their own; at most all", low=1, high=1024, source="paper")
    phrase: str = option("a photo of a", "initial words of P_0; random if they are fewer than n tokens", source="paper")


class MaPLe(TextFeatureMethod):
    """Deep text prompts, and visual prompts made from them by learned maps."""

    name = "maple"
    paper = "Khattak et al., MaPLe: Multi-modal Prompt Learning, CVPR 2023"
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_PROMPTS, Ability.IMAGE_TOKENS})
    trains_on = "images"
    Options = MaPLeOptions
    # The defaults are its recipe for base-to-new.
    protocol_options = MappingProxyType({"cross-dataset": TRANSFER, "domain-shift": TRANSFER})
    options: MaPLeOptions

    def __init__(self, clip: DualEncoder, problem: Problem, options: MaPLeOptions) -> None:
        super().__init__(clip, problem, options)
        n, words = options.tokens, clip.tokenizer.encode(options.phrase)
        fixed = words[n:] if len(words) > n else []
        self.name_ids = [[*fixed, *own] for own in tokenize_names(clip, problem.names, ".")]
        check_name_lengths(clip, problem.names, self.name_ids, n)
        width, J = clip.text.width, min(options.depth, clip.text.layers, clip.visual.layers)
        start = random_tokens(clip, (J, n, width), self.generator("prompts"))
        if len(words) >= n:
            start[0] = clip.text.embed(words[:n]).detach()
        self.prompts = nn.Parameter(start)
        reach = width**-0.5
        draw = self.generator("coupling")
        # Two draws: the maps of all deeper blocks start alike.
        maps = (2 * torch.rand(2, clip.visual.width, width + 1, generator=draw) - 1) * reach
        maps = maps[[min(i, 1) for i in range(J)]].to(clip.device)
        self.weights, self.biases = nn.Parameter(maps[..., :-1].clone()), nn.Parameter(maps[..., -1].clone())

    def text_contexts(self) -> Sequence[Tensor]:
        """The context of the first block."""
        return [self.prompts[0]]

    def visual_tokens(self) -> Tensor:
        """A_i P_i + b_i of every depth: (J, n, W of the image tower)."""
        return self.prompts @ self.weights.mT + self.biases[:, None]

    def encode(self, pixels: Tensor) -> Tensor:
        """f: unit image features (B, D)."""
        extra = ExtraTokens(dict(enumerate(self.visual_tokens())), position="end", before_norm=True)
        return F.normalize(self.clip.encode_image(pixels, tokens=extra), dim=-1)

    def encode_text(self) -> Tensor:
        """t: unit text features (C, D)."""
        first, *deeper = self.prompts
        features = self.clip.encode_prompts([first], self.name_ids, [dict(enumerate(deeper, 1))])
        return F.normalize(features[0], dim=-1)

    def step(self, batch: Batch) -> Step:
        """Cross-entropy of one batch."""
        f, t = self.encode(batch.inputs), self.encode_text()
        logits = self.clip.tau * f @ t.mT
        terms = {"cls": F.cross_entropy(logits, batch.labels), **self.dca_terms(f, t, batch.labels)}
        return Step(terms, logits.detach().softmax(dim=-1))


METHOD = MaPLe
