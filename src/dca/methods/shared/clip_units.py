"""Units in which vectors of any backbone have the size of those of OpenAI's CLIP.

A published recipe (learning rate, weight decay, weight of a penalty ‖w - w°‖²) belongs to the size of the vectors
that it was chosen for. It is carried over to another backbone by training v instead of w = s v:

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

from typing import Literal

import torch
from torch import Tensor

UnitRecipe = Literal["scaled", "paper"]
# logit_scale of all models of OpenAI: training clips it at log 100 (Radford et al., ICML 2021, section 2.5).
CLIP_TAU = 100.0
# Mean length of ViT-B/32's text vectors of "a NAME": 9.8 for the 1,203 names of LVIS, 10.2 for the 80 of COCO
# (the vectors that the authors of Detic published).
CLIP_TEXT_NORM = 10.0
# Length to which textual inversion of Stable Diffusion 1 keeps tokens of ViT-L/14 (cloneofsimo/lora).
CLIP_TOKEN_NORM = 0.4


def clip_unit(vectors: Tensor, reference: float, tau: float | Tensor) -> Tensor:
    """s, a tensor (), of vectors (..., D) whose mean length in CLIP is `reference`. tau: of the backbone."""
    length: Tensor = torch.linalg.vector_norm(vectors.detach(), dim=-1).mean()
    return length / reference * (CLIP_TAU / tau)


def no_unit(like: Tensor) -> Tensor:
    """The unit 1, which changes no bit: for the published recipe as it is."""
    return torch.ones((), dtype=like.dtype, device=like.device)
