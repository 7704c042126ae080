"""The text side of a finished method, for showing it: learned contexts, and the texts that images are compared with."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


class Prompted:
    """The part of `Method` that shows its texts; every function is optional."""

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
