"""What the tests of several methods ask of a training step."""

from __future__ import annotations

import torch
from torch import Tensor

from dca.backbones.clip import CLIP
from dca.methods.base import Method, Step, TrainedMethod
from oracles.images import Images


def values(step: Step) -> dict[str, float]:
    """Each loss term as a number."""
    return {name: float(term.detach()) for name, term in step.terms.items()}


def literal_logits(clip: CLIP, f: Tensor, t: Tensor) -> Tensor:
    """τ ⟨f_i, t_c⟩ one by one: (B, D), (C, D) -> (B, C)."""
    scale = float(clip.logit_scale.exp())
    return torch.stack([torch.stack([scale * (a * b).sum() for b in t]) for a in f])


def unit_images(clip: CLIP, pixels: Tensor) -> Tensor:
    """Unit features of the frozen image tower, (B, D)."""
    features = clip.encode_image(pixels)
    return features / features.square().sum(dim=-1, keepdim=True).sqrt()


def require_gradients(method: TrainedMethod, clip: CLIP, images: Images) -> None:
    """A step moves every tensor of the method and none of the backbone."""
    method.prepare(images)
    torch.stack(list(method.step(images.batch()).terms.values())).sum().backward()
    for name, parameter in method.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().sum()) > 0, name
    assert all(parameter.grad is None for parameter in clip.parameters())


def require_own_randomness(build: type[Method], clip: CLIP, problem: object) -> None:
    """Building draws nothing from torch's global stream, and twice the same from its own."""
    before = torch.get_rng_state()
    one, other = (build.build(clip, problem, build.Options()) for _ in range(2))  # type: ignore[arg-type]
    assert torch.equal(before, torch.get_rng_state())
    for first, second in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(first, second)
