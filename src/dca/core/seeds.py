"""Independent named random streams from one seed.

A new random draw in one place never moves a draw in another, and the stream of
an epoch can be made again without having run the epochs before it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive(seed: int, *names: str | int) -> int:
    """Seed of the stream called `names`, in [0, 2**63).

    >>> derive(1, "epoch", 3) == derive(1, "epoch", 3) != derive(1, "epoch", 4)
    True
    """
    digest = hashlib.sha256("/".join(map(str, (seed, *names))).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, *names: str | int) -> torch.Generator:
    """CPU generator at the start of the stream called `names`."""
    import torch

    return torch.Generator().manual_seed(derive(seed, *names))


def branch(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """A stream on `device` that starts from one draw of `generator`: many numbers without a transfer."""
    import torch

    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.Generator(device).manual_seed(seed)
