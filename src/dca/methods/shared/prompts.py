"""Learned text and visual tokens, their initial values, and units for backbones other than OpenAI's CLIP.

**Units.** In them vectors of any backbone have the size of those of OpenAI's CLIP. A published recipe (learning rate,
weight decay, weight of a penalty ‖w - w°‖²) belongs to the size of the vectors that it was chosen for. It is carried
over to another backbone by training v instead of w = s v:

    loss(v) = CE(s v) + λ ‖v - w°/s‖²,    v starts at w°/s

SGD, its momentum and weight decay, Adam, warm-up and the penalty then act on v alone. So multiplying all vectors
of a backbone by a constant multiplies s and changes no prediction. In terms of w it is the published recipe with
the learning rates times s², and penalty and weight decay divided by s².

s makes a unit of v change the logits z = τ cos(f, t) as much as it does with CLIP. The cosine depends on w
relative to its own length, so dz ≈ τ / ‖w‖ · dw, and the ratio τ / ‖w‖ is made that of CLIP:

    s = (‖w‖ / ‖w_CLIP‖) · (τ_CLIP / τ)

On a backbone with CLIP's lengths and τ, s = 1: the published recipe itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from dca.backbones.dual_encoder import NO_TOKENS, DualEncoder, ExtraTokens
from dca.core.errors import UserError
from dca.methods.base import Problem

# Standard deviation of randomly drawn tokens.
RANDOM_STD = 0.02
UnitRecipe = Literal["scaled", "paper"]
# logit_scale of all models of OpenAI: training clips it at log 100 (Radford et al., ICML 2021, section 2.5).
CLIP_TAU = 100.0
# Mean length of ViT-B/32's text vectors of "a NAME": 9.8 for the 1,203 names of LVIS, 10.2 for the 80 of COCO
# (the vectors that the authors of Detic published).
CLIP_TEXT_NORM = 10.0
# Length to which textual inversion of Stable Diffusion 1 keeps tokens of ViT-L/14 (cloneofsimo/lora).
CLIP_TOKEN_NORM = 0.4


def coop_epochs(problem: Problem) -> int:
    """Epochs of CoOp's recipe, which VPT and DAPT share: by shots, 50 for ImageNet."""
    if problem.shots <= 1 or problem.dataset == "imagenet":
        return 50
    return 100 if problem.shots <= 4 else 200


def dropout(x: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    """Zero a random share of x and scale the rest up; without a generator return x."""
    if generator is None or share == 0:
        return x
    kept = torch.rand(x.shape, generator=generator, device=x.device) >= share
    return x * kept / (1 - share)


def alphabetical_order(names: Sequence[str]) -> list[int]:
    """Class indices sorted by name, so random draws do not depend on the order of the labels."""
    return sorted(range(len(names)), key=lambda c: names[c])


def fill_template(names: Sequence[str], template: str) -> list[str]:
    """Put each class name in place of {} in the template."""
    return [template.replace("{}", name.replace("_", " ")) for name in names]


def tokenize_names(clip: DualEncoder, names: Sequence[str], suffix: str, before: str = "") -> list[list[int]]:
    """Token ids of each class: words `before`, the name, the suffix, EOT."""
    sentences = fill_template(names, f"{before}{{}}{suffix}")
    return [[*clip.tokenizer.encode(sentence, continued=True), clip.tokenizer.eot_id] for sentence in sentences]


def check_name_lengths(clip: DualEncoder, names: Sequence[str], ids: Sequence[Sequence[int]], context: int) -> None:
    """Raise if the ids of a class name do not fit behind a context of this length."""
    room = clip.tokenizer.context_length - len(clip.tokenizer.start_ids) - context
    long = [f"{name}: {len(own)} tokens" for name, own in zip(names, ids, strict=True) if len(own) > room]
    if long:
        raise UserError(
            f"class names longer than the {room} tokens that fit after {context} learned ones",
            details=long,
            hint="give these classes shorter names, e.g. in classnames.json",
        )


class TextPrompts(nn.Module):
    """M learned contexts in front of the class names.

    contexts: M tensors, (L_m, W) shared by the classes or (C, L_m, W), one per class.
    name_ids: token ids of each class name, its suffix and EOT.
    """

    def __init__(
        self,
        clip: DualEncoder,
        names: Sequence[str],
        phrases: Sequence[str | int],
        *,
        per_class: bool,
        suffix: str,
        generator: torch.Generator,
    ) -> None:
        """phrases: initial words of each context, or the length of a context drawn from normal(0, 0.02)."""
        super().__init__()
        self.name_ids = tokenize_names(clip, names, suffix)
        starts = [init_context(clip, phrase, generator) for phrase in phrases]
        if per_class:
            starts = [start.expand(len(names), -1, -1).clone() for start in starts]
        self.contexts = nn.ParameterList(starts)
        check_name_lengths(clip, names, self.name_ids, max(start.shape[-2] for start in starts))

    def encode(self, clip: DualEncoder, classes: Sequence[int] | None = None) -> Tensor:
        """Encode all classes, or some of them, under every context: (M, C, D), not normalised."""
        if classes is None:
            return clip.encode_prompts(list(self.contexts), self.name_ids)
        contexts = [context if context.dim() == 2 else context[list(classes)] for context in self.contexts]
        return clip.encode_prompts(contexts, [self.name_ids[c] for c in classes])


def random_tokens(clip: DualEncoder, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Draw tokens from normal(0, 0.02)."""
    return (RANDOM_STD * torch.randn(*shape, generator=generator)).to(clip.device)


def init_context(clip: DualEncoder, phrase: str | int, generator: torch.Generator) -> Tensor:
    """Initialise a context (L, W) by the embeddings of words, or by that many random tokens."""
    if isinstance(phrase, int):
        return random_tokens(clip, (phrase, clip.text.width), generator)
    ids = clip.tokenizer.encode(phrase)
    if not ids:
        raise UserError(f"the phrase '{phrase}' has no token to start a context from")
    return clip.text.embed(ids).detach().clone()


def init_linear(clip: DualEncoder, inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Initialise a linear layer as torch does, by U(±1/sqrt(inputs)), from a private stream."""
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device=clip.device)
    with torch.no_grad():
        for parameter in layer.parameters():
            drawn = 2 * torch.rand(parameter.shape, generator=generator) - 1
            parameter.copy_(drawn * inputs**-0.5)
    return layer


def init_visual_tokens(clip: DualEncoder, count: int, generator: torch.Generator) -> Tensor:
    """Initialise visual tokens (count, W): uniform, in VPT's range."""
    tower = clip.visual
    reach = math.sqrt(6 / (3 * tower.patch_size**2 + tower.width))
    start = (2 * torch.rand(count, tower.width, generator=generator) - 1) * reach
    return start.to(clip.device)


class VisualTokens(nn.Module):
    """V learned tokens before the patches, behind CLS if there is one, inserted before the first block only."""

    def __init__(self, clip: DualEncoder, count: int, generator: torch.Generator) -> None:
        super().__init__()
        self.tokens = nn.Parameter(init_visual_tokens(clip, count, generator))

    def as_extra_tokens(self) -> ExtraTokens:
        """The tokens as the image tower takes them."""
        return ExtraTokens({0: self.tokens}) if len(self.tokens) else NO_TOKENS


def clip_scale(vectors: Tensor, reference: float, tau: float | Tensor) -> Tensor:
    """The unit s, a tensor (), of vectors (..., D) whose mean length in CLIP is `reference`. tau: of the backbone."""
    length: Tensor = torch.linalg.vector_norm(vectors.detach(), dim=-1).mean()
    return length / reference * (CLIP_TAU / tau)


def scale_of_one(like: Tensor) -> Tensor:
    """The unit 1, which changes no bit: for the published recipe as it is."""
    return torch.ones((), dtype=like.dtype, device=like.device)
