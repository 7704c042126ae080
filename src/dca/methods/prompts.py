"""Learned text and visual tokens, shared by the prompt methods."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dca.clip import CLIP, ExtraTokens
from dca.errors import UserError

RANDOM_STD = 0.02


def name_ids(clip: CLIP, classes: Sequence[str], suffix: str) -> list[list[int]]:
    """Ids of each class's own tokens: name, suffix, EOT."""
    names = (name.replace("_", " ") for name in classes)
    return [[*clip.tokenizer.words(f"{name}{suffix}"), clip.tokenizer.eot_id] for name in names]


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
        starts = [_start(clip, phrase, generator) for phrase in phrases]
        if per_class:
            starts = [start.expand(len(classes), -1, -1).clone() for start in starts]
        self.contexts = nn.ParameterList(starts)
        require_room(clip, classes, self.names, max(start.shape[-2] for start in starts))

    def encode(self, clip: CLIP) -> Tensor:
        """Features of every class under every context, not normalised: (M, C, D)."""
        return clip.encode_prompts(list(self.contexts), self.names)


def _start(clip: CLIP, phrase: str | int, generator: torch.Generator) -> Tensor:
    """First value of a context (L, W)."""
    if isinstance(phrase, int):
        noise = torch.randn(phrase, clip.config.text.width, generator=generator)
        return (RANDOM_STD * noise).to(clip.device)
    ids = clip.tokenizer.words(phrase)
    if not ids:
        raise UserError(f"the phrase '{phrase}' holds no token to start a context from")
    return clip.text.embed([ids])[0].detach().clone()


class VisualTokens(nn.Module):
    """V learned tokens between CLS and the patches, entering after ln_pre, at the first block only."""

    def __init__(self, clip: CLIP, count: int, generator: torch.Generator) -> None:
        super().__init__()
        config = clip.config.vision
        reach = (6 / (3 * config.patch_size**2 + config.width)) ** 0.5
        start = (2 * torch.rand(count, config.width, generator=generator) - 1) * reach
        self.tokens = nn.Parameter(start.to(clip.device))

    def extra(self) -> ExtraTokens:
        """The tokens as the image tower takes them."""
        return ExtraTokens({0: self.tokens}) if len(self.tokens) else ExtraTokens()
