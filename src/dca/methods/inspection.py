"""What a finished method shows of itself: learned contexts, texts that images are compared with, stored features."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


class Inspection:
    """The part of `Method` that can be looked at; every function is optional."""

    def text_contexts(self) -> Sequence[Tensor]:
        """Learned vectors that enter the text tower in the place of words.

        Returns:
            One tensor per prompt, (L, W), or (C, L, W) if every class has its own; empty if no prompt is learned.
        """
        return ()

    def prompt_features(self) -> Tensor | None:
        """The texts that images are compared with.

        Returns:
            Unit text features (M, C, D) of the M prompts, or None if the method has none of its own.
        """
        return None

    def kept_features(self) -> tuple[Tensor, Tensor] | None:
        """Training images as the image tower of this method sees them.

        Returns:
            Features (N, D) and classes (N,), or None if the method stores none.
        """
        return None
