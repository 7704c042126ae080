"""Many classes in little memory: the text tower class chunk after class chunk, computed again for the gradient.

The result is the same; a step takes one more pass of the text tower. Only the features of all classes are kept, so
that losses over all of them stay exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dca.clip.config import TextConfig

# Share of a GPU's free memory that activations of the text tower may take, whole or per chunk.
WHOLE, CHUNK = 0.25, 0.15
# Values of the tower's width that a block keeps per row for the gradient: two norms, q, k and v, and the hidden layer.
KEPT = 9


def classes_at_once(names: Sequence[int], prompts: int, config: TextConfig, x: Tensor) -> int:
    """How many classes to encode together.

    Args:
        names: Number of tokens of each class name.
        prompts: Number of prompts M, each of which is encoded with all names.
        config: Sizes of the text tower.
        x: A tensor on the device that is used, in the compute type.

    Returns:
        All classes where their activations fit, on a CPU and where no gradient is asked for.
    """
    if not x.is_cuda or not torch.is_grad_enabled():
        return len(names)
    free = torch.cuda.get_device_properties(x.device).total_memory - torch.cuda.memory_allocated(x.device)
    per_class = prompts * sum(names) / len(names) * config.layers * KEPT * config.width * x.element_size()
    if per_class * len(names) <= WHOLE * free:
        return len(names)
    return max(int(CHUNK * free / per_class), 1)
