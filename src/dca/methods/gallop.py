"""GalLoP: global and local prompts (Lafon et al., ECCV 2024).

G global prompts are compared with the image, J local prompts with its P patches. x_1 .. x_P are the patches that enter
the last block of the image tower. Each passes it on its own, because the attention of this block would mix them:

    v_i = x_i + out(value(ln_1 x_i)),    l_i = unit( proj A ln_post(v_i + mlp(ln_2 v_i)) )

A (W × W) is trained and starts as the identity; proj is CLIP's projection. t_g,c are the text features of the global
prompts, s_j,c those of the local ones. Local prompt j reads the k_j patches that are most similar to it:

    z_g,c = τ cos(f, t_g,c),    z'_j,c = 1/k_j Σ τ l_i · s_j,c over the k_j patches with the largest l_i · s_j,c
    L = CE(z_g), g drawn for each image, + 1/J Σ_j CE(z'_j)
    p(y | x) = softmax_y( ½ mean_g z_g,y + ½ mean_j z'_j,y )

Prompt dropout d keeps G - ⌊dG⌋ global prompts per image, at least one, and trains the mean of their logits. With G = 4
and d = 0.75 one is kept. If several are, they differ here, while the authors' code may draw the same prompt twice.
All prompts start from "a photo of a"; dropout and the different k_j make them differ. As in the authors' code there is
no full stop after the class name and no warm-up, and k_j is the number of patches where a backbone has fewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dca.backbones.dual_encoder import DualEncoder
from dca.backbones.encoder import Ability
from dca.core.errors import UserError
from dca.core.options import option
from dca.methods.base import Batch, Head, Problem, Step, Support, TrainedMethod, TrainingOptions, describe_terms
from dca.methods.shared.frozen_features import check_shapes
from dca.methods.shared.prompts import check_name_lengths, init_context, tokenize_names

BATCH = 32
# The authors' batch sizes of single datasets, used with the rules "paper" only.
PAPER_BATCHES = {"eurosat": 10, "sun397": 128, "imagenet": 128}


@dataclass(frozen=True, kw_only=True)
class GalLoPOptions(TrainingOptions):
    """Options of GalLoP."""

    epochs: int | None = option(
        None, "passes over the training images; auto: 200, ImageNet 50", low=0, source="GalLoP's code"
    )
    batch_size: int | None = option(
        None,
        "images per step; auto: 32, with rules paper EuroSAT 10, SUN397 and ImageNet 128",
        low=1,
        source="GalLoP's code",
    )
    learning_rate: float | None = option(
        0.002, "learning rate; none: from the gradient", low=0, empty="none", source="GalLoP's code"
    )
    weight_decay: float = option(0.01, "weight decay of every trained tensor", low=0, source="GalLoP's code")
    warmup_epochs: int = option(0, "epochs of warm-up", low=0, source="GalLoP's code")
    phrase: str = option("a photo of a", "initial words of every prompt", source="GalLoP's code")
    suffix: str = option("", "text after the class name", source="GalLoP's code")
    global_prompts: int = option(4, "G, prompts for the whole image", low=1, high=1024, source="GalLoP's code")
    dropout: float = option(
        0.75, "d, share of the global prompts that an image leaves out", low=0, high=1, source="GalLoP's code"
    )
    top: tuple[int, ...] = option(
        (5, 10, 15, 20), "k_1 .. k_J, patches that each local prompt reads; at most all", low=1, source="GalLoP's code"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.top:
            raise UserError("top needs one number of patches per local prompt, for at least one prompt")


def draw_prompts(images: int, prompts: int, dropout: float, generator: torch.Generator) -> Tensor:
    """Indices of the global prompts that each image keeps, (B, kept)."""
    kept = max(prompts - int(dropout * prompts), 1)
    return torch.rand(images, prompts, generator=generator, device=generator.device).topk(kept).indices


def mean_of_top(z: Tensor, k: int) -> Tensor:
    """Mean over the k largest of P patches, or over all of fewer: (B, P, C) -> (B, C)."""
    return z.topk(min(k, z.shape[1]), dim=1, sorted=False).values.mean(dim=1)


def split_rows(features: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Features (B, (1 + P) D) of `GalLoP.encode` -> those of the image (B, D) and of its patches (B, P, D)."""
    rows = torch.unflatten(features, 1, (-1, size))
    return rows[:, 0], rows[:, 1:]


@dataclass(frozen=True)
class GlobalLocalHead(Head):
    """Softmax of the mean of global and local logits.

    whole: (C, D), mean of the global text features, ½τ included. local: (J, C, D), ½τ/J included. top: k of each local
    prompt. patches: P.
    """

    whole: Tensor
    local: Tensor
    top: tuple[int, ...]
    patches: int

    @classmethod
    def from_text(cls, u: Tensor, tau: float, top: tuple[int, ...], patches: int) -> GlobalLocalHead:
        """From unit text features u (G + J, C, D), the J local ones last."""
        first, last = torch.split(u.double(), [len(u) - len(top), len(top)])
        whole, local = tau / 2 * first.mean(dim=0), tau / (2 * len(top)) * last
        return cls(whole.to(u.dtype), local.to(u.dtype), top, patches)

    def logits(self, features: Tensor) -> Tensor:
        """Features (B, (1 + P) D) -> ½ mean_g z_g + ½ mean_j z'_j, (B, C)."""
        f, patches = split_rows(features, self.whole.shape[-1])
        z = F.linear(f, self.whole)
        for s, k in zip(self.local, self.top, strict=True):
            z = z + mean_of_top(F.linear(patches, s), k)
        return z

    def __call__(self, features: Tensor) -> Tensor:
        """Features (B, (1 + P) D) -> probabilities (B, C)."""
        return self.logits(features).softmax(dim=-1)

    @property
    def values_per_image(self) -> int:
        """One logit per patch and class."""
        return self.patches * len(self.whole)


class GalLoP(TrainedMethod):
    """Prompts for the image and prompts for its patches."""

    name = "gallop"
    paper = "Lafon et al., GalLoP: Learning Global and Local Prompts for Vision-Language Models, ECCV 2024"
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_PROMPTS, Ability.PATCHES})
    trains_on = "images"
    Options = GalLoPOptions
    # Unit text features of the global, then of the local prompts: (G + J, C, D).
    results = MappingProxyType({"text_features": torch.float32})
    term_titles = describe_terms(**{"global": "whole image", "local": "patches"})
    options: GalLoPOptions
    text_features: Tensor

    @classmethod
    def resolve(cls, options: GalLoPOptions, problem: Problem) -> GalLoPOptions:
        """Fill in epochs by dataset, and the authors' batch sizes where these are asked for."""
        batch = PAPER_BATCHES.get(problem.dataset, BATCH) if problem.rules == "paper" else BATCH
        return options.fill_unset(epochs=50 if problem.dataset == "imagenet" else 200, batch_size=batch)

    def __init__(self, clip: DualEncoder, problem: Problem, options: GalLoPOptions) -> None:
        super().__init__(clip, problem, options)
        start = init_context(clip, options.phrase, self.generator("context"))
        self.global_prompts = nn.Parameter(start.repeat(options.global_prompts, 1, 1))
        self.local_prompts = nn.Parameter(start.repeat(len(options.top), 1, 1))
        self.local_layer = nn.Parameter(torch.eye(clip.visual.width, device=clip.device))
        self.name_ids = tokenize_names(clip, problem.names, options.suffix)
        check_name_lengths(clip, problem.names, self.name_ids, len(start))

    def encode(self, pixels: Tensor) -> Tensor:
        """f, l_1 .. l_P: unit features of the image and of its patches, one after the other: (B, (1 + P) D)."""
        image, patches = self.clip.encode_with_patches(pixels)
        # The product of both matrices once is cheaper than A times every patch.
        projection = self.clip.visual.projection
        local = F.linear(patches, projection.weight @ self.local_layer, projection.bias)
        return F.normalize(torch.cat([image[:, None], local], dim=1), dim=-1).flatten(1)

    def text_contexts(self) -> Sequence[Tensor]:
        """The global and the local prompts."""
        return [*self.global_prompts, *self.local_prompts]

    def prompt_features(self) -> Tensor | None:
        """Those of the global and the local prompts."""
        return self.encode_text().detach()

    def encode_text(self) -> Tensor:
        """t, then s: unit text features, (G + J, C, D)."""
        contexts = [*self.global_prompts, *self.local_prompts]
        return F.normalize(self.clip.encode_prompts(contexts, self.name_ids), dim=-1)

    def logits(self, features: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Global logits z (G, B, C) and local ones z' (J, B, C).

        features: (B, (1 + P) D) of `encode`. u: unit text features (G + J, C, D).
        """
        f, patches = split_rows(features, u.shape[-1])
        t, s = torch.split(u, [len(self.global_prompts), len(self.local_prompts)])
        tau, local = self.clip.tau, zip(s, self.options.top, strict=True)
        return tau * f @ t.mT, torch.stack([mean_of_top(tau * patches @ one.mT, k) for one, k in local])

    def step(self, batch: Batch) -> Step:
        """Cross-entropy of a global prompt per image, and of all local prompts."""
        z, local = self.logits(self.encode(batch.inputs), self.encode_text())
        drawn = draw_prompts(len(batch.labels), len(z), self.options.dropout, batch.noise)
        kept = z.gather(0, drawn.T[..., None].expand(-1, -1, z.shape[-1])).mean(dim=0)
        terms = {
            "global": F.cross_entropy(kept, batch.labels),
            "local": F.cross_entropy(local.flatten(0, 1), batch.labels.repeat(len(local))),
        }
        return Step(terms, ((z.mean(dim=0) + local.mean(dim=0)) / 2).detach().softmax(dim=-1))

    @torch.no_grad()
    def finish(self, support: Support) -> None:
        """Text features of the trained prompts."""
        self.text_features = self.encode_text()

    @torch.no_grad()
    def retarget(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """The same prompts on other names."""
        other = self.copy_for(problem, sources)
        other.text_features = other.encode_text()
        return other.build_head()

    def make_head(self) -> Head:
        """Softmax of the mean of global and local logits."""
        patches = self.clip.visual.patches
        return GlobalLocalHead.from_text(self.text_features, self.clip.tau, self.options.top, patches)

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """One text feature per prompt and class."""
        prompts = self.options.global_prompts + len(self.options.top)
        expected = (prompts, len(self.problem.names), self.clip.feature_dim)
        return check_shapes(state, {"text_features": expected})


METHOD = GalLoP
