"""Learned text and visual tokens, shared by the prompt methods."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dca.clip import CLIP, ExtraTokens
from dca.core.errors import UserError
from dca.methods.interface import Problem

RANDOM_STD = 0.02


def ladder(problem: Problem) -> int:
    """Epochs of CoOp's recipe by shots, which VPT and DAPT share; ImageNet takes 50 at any."""
    if problem.shots <= 1 or problem.dataset == "imagenet":
        return 50
    return 100 if problem.shots <= 4 else 200


def dropout(x: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    """A random share of x zeroed and the rest scaled up; x itself where there is no generator."""
    if generator is None or share == 0:
        return x
    kept = torch.rand(x.shape, generator=generator, device=x.device) >= share
    return x * kept / (1 - share)


def alphabetical(classes: Sequence[str]) -> list[int]:
    """Places of the classes in the order of their names: what is drawn over them heeds no numbering."""
    return sorted(range(len(classes)), key=lambda place: classes[place])


def sentences(classes: Sequence[str], template: str) -> list[str]:
    """The template with each class name in place of {}."""
    return [template.replace("{}", name.replace("_", " ")) for name in classes]


def name_ids(clip: CLIP, classes: Sequence[str], suffix: str, before: str = "") -> list[list[int]]:
    """Ids of each class's own tokens: name, suffix, EOT; `before`: words that stand in front of the name."""
    written = sentences(classes, f"{before}{{}}{suffix}")
    return [[*clip.tokenizer.words(sentence), clip.tokenizer.eot_id] for sentence in written]


def require_room(clip: CLIP, classes: Sequence[str], names: Sequence[Sequence[int]], context: int) -> None:
    """Raise for class names that do not fit behind SOS and a context of the given length."""
    room = clip.config.text.context_length - 1 - context
    long = [f"{c}: {len(ids)} tokens" for c, ids in zip(classes, names, strict=True) if len(ids) > room]
    if long:
        raise UserError(
            f"class names longer than the {room} tokens that fit behind {context} learned ones",
            details=long,
            hint="give these classes shorter names, e.g. in classnames.json",
        )


class TextPrompts(nn.Module):
    """M learned contexts in front of the class names.

    contexts: M tensors, (L_m, W) shared by the classes or (C, L_m, W) of each class.
    """

    def __init__(
        self,
        clip: CLIP,
        classes: Sequence[str],
        phrases: Sequence[str | int],
        *,
        per_class: bool,
        suffix: str,
        generator: torch.Generator,
    ) -> None:
        """phrases: words to start from, or the length of a context to draw from normal(0, 0.02)."""
        super().__init__()
        self.names = name_ids(clip, classes, suffix)
        starts = [start_context(clip, phrase, generator) for phrase in phrases]
        if per_class:
            starts = [start.expand(len(classes), -1, -1).clone() for start in starts]
        self.contexts = nn.ParameterList(starts)
        require_room(clip, classes, self.names, max(start.shape[-2] for start in starts))

    def encode(self, clip: CLIP) -> Tensor:
        """Features of every class under every context, not normalised: (M, C, D)."""
        return clip.encode_prompts(list(self.contexts), self.names)


def random_tokens(clip: CLIP, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Tokens drawn from normal(0, 0.02)."""
    return (RANDOM_STD * torch.randn(*shape, generator=generator)).to(clip.device)


def start_context(clip: CLIP, phrase: str | int, generator: torch.Generator) -> Tensor:
    """First value of a context (L, W): the words' embeddings, or that many random tokens."""
    if isinstance(phrase, int):
        return random_tokens(clip, (phrase, clip.config.text.width), generator)
    ids = clip.tokenizer.words(phrase)
    if not ids:
        raise UserError(f"the phrase '{phrase}' holds no token to start a context from")
    return clip.text.embed(ids).detach().clone()


def linear(clip: CLIP, inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """A linear layer with torch's law for weight and bias, U(±1/sqrt(inputs)), from a private stream."""
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device=clip.device)
    with torch.no_grad():
        for parameter in layer.parameters():
            drawn = 2 * torch.rand(parameter.shape, generator=generator) - 1
            parameter.copy_(drawn * inputs**-0.5)
    return layer


def visual_start(clip: CLIP, count: int, generator: torch.Generator) -> Tensor:
    """First values (count, W) of visual tokens: uniform, in VPT's range."""
    config = clip.config.vision
    reach = math.sqrt(6 / (3 * config.patch_size**2 + config.width))
    start = (2 * torch.rand(count, config.width, generator=generator) - 1) * reach
    return start.to(clip.device)


class VisualTokens(nn.Module):
    """V learned tokens between CLS and the patches, entering after ln_pre, at the first block only."""

    def __init__(self, clip: CLIP, count: int, generator: torch.Generator) -> None:
        super().__init__()
        self.tokens = nn.Parameter(visual_start(clip, count, generator))

    def extra(self) -> ExtraTokens:
        """The tokens as the image tower takes them."""
        return ExtraTokens({0: self.tokens}) if len(self.tokens) else ExtraTokens()
