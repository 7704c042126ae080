"""Independent named random streams from one seed.

A random draw that is added in one place does not change the draws in another, and the stream of an
epoch can be recreated without running the epochs before it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive_seed(seed: int, *names: str | int) -> int:
    """Seed of the stream called `names`, in [0, 2**63).

    >>> derive_seed(1, "epoch", 3) == derive_seed(1, "epoch", 3) != derive_seed(1, "epoch", 4)
    True
    """
    digest = hashlib.sha256("/".join(map(str, (seed, *names))).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, *names: str | int) -> torch.Generator:
    """CPU generator at the start of the stream called `names`."""
    import torch

    return torch.Generator().manual_seed(derive_seed(seed, *names))


def spawn_generator(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """A generator on `device` seeded by one draw of `generator`, so that its numbers need no transfer."""
    import torch

    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.Generator(device).manual_seed(seed)
