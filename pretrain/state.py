"""The state of a run, from which it continues: weights, their average, moments, step and time."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dca.backbones.clip.model import CLIP
from dca.backbones.clip.weights import initialize_weights
from dca.backbones.preprocess import Preprocess
from dca.core.errors import UserError
from dca.core.seeds import generator
from pretrain.config import PretrainConfig
from pretrain.prepare import tokenizer_of

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
MOMENTS = ("exp_avg", "exp_avg_sq")


class Extras(nn.Module):
    """Parameters used only in training: a scale for the text-to-text term, a head for the views."""

    def __init__(self, embed: int, rng: torch.Generator) -> None:
        super().__init__()
        self.relation_scale = nn.Parameter(torch.tensor(math.log(10.0)))
        self.head = nn.Sequential(nn.Linear(embed, 2 * embed), nn.GELU(), nn.Linear(2 * embed, embed // 2))
        with torch.no_grad():
            for parameter in self.head.parameters():
                scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.0
                parameter.copy_(scale * torch.randn(parameter.shape, generator=rng))


@dataclass
class State:
    """A run at one step."""

    clip: CLIP
    extras: Extras
    optimizer: torch.optim.AdamW
    average: dict[str, Tensor]
    step: int = 0
    seconds: float = 0.0

    def parameters(self) -> dict[str, nn.Parameter]:
        """All trained tensors by name."""
        return dict(self.clip.named_parameters()) | dict(self.extras.named_parameters("extras"))

    @torch.no_grad()
    def update_average(self, decay: float) -> None:
        """Move the running average towards the weights; faster in the first steps."""
        decay = min(decay, (1 + self.step) / (10 + self.step))
        own: list[Tensor] = [p for _, p in self.clip.named_parameters()]
        torch._foreach_lerp_(list(self.average.values()), own, 1 - decay)


def new_state(config: PretrainConfig, device: torch.device) -> State:
    """A run at its beginning."""
    tokenizer = tokenizer_of(config)
    side = config.model.image_size
    transform = Preprocess(size=side, resize=config.model.resize or side, resample=3, mean=MEAN, std=STD)
    clip = CLIP(config.model.clip(tokenizer.eot_id + 1), tokenizer, transform)
    initialize_weights(clip, generator(config.train.seed, "weights"))
    if config.train.start:
        copy_weights(clip, CLIP.from_pretrained(config.train.start))
    extras = Extras(config.model.embed, generator(config.train.seed, "extras")).to(device)
    clip.to(device)
    trained = [*clip.parameters(), *extras.parameters()]
    flat, deep = [p for p in trained if p.dim() < 2], [p for p in trained if p.dim() >= 2]
    optimizer = torch.optim.AdamW(
        [{"params": deep, "weight_decay": config.train.decay}, {"params": flat, "weight_decay": 0.0}],
        lr=config.train.lr,
        betas=(0.9, config.train.beta2),
        fused=device.type == "cuda",
    )
    average = {name: p.detach().clone() for name, p in clip.named_parameters()}
    return State(clip, extras, optimizer, average)


def copy_weights(clip: CLIP, earlier: CLIP) -> None:
    """Start from the weights of another model, which must have the same sizes and tokenizer."""
    differing = [
        what
        for what, same in (
            ("sizes", earlier.config == clip.config),
            ("tokenizer", earlier.tokenizer.digest() == clip.tokenizer.digest()),
        )
        if not same
    ]
    if differing:
        raise UserError(
            f"{earlier.source} cannot be the start: its {' and '.join(differing)} differ from those asked for",
            hint="set [model] and [data] tokenizer as that model has them",
        )
    clip.load_state_dict(earlier.state_dict())


def save_state(state: State, path: Path) -> None:
    """Write the run to one file, atomically."""
    tensors = {f"weights.{n}": p.detach() for n, p in state.parameters().items()}
    tensors |= {f"average.{n}": t for n, t in state.average.items()}
    for name, parameter in state.parameters().items():
        for moment in MOMENTS if parameter in state.optimizer.state else ():
            tensors[f"{moment}.{name}"] = state.optimizer.state[parameter][moment]
    written = {n: t.contiguous().cpu() for n, t in tensors.items()}
    part = path.with_name(path.name + ".part")
    save_file(written, part, metadata={"run": json.dumps({"step": state.step, "seconds": state.seconds})})
    part.replace(path)


@torch.no_grad()
def load_state(state: State, path: Path) -> None:
    """Load the state of a file into a new state, in place."""
    tensors = load_file(path, device=str(state.clip.device))
    parameters = state.parameters()
    if wrong := [n for n, p in parameters.items() if tensors.get(f"weights.{n}", p[None]).shape != p.shape]:
        raise UserError(f"{path}: not a state of this model", details=wrong, hint="give [train] out another folder")
    with safe_open(path, "pt") as file:
        run = json.loads(file.metadata()["run"])
    state.step, state.seconds = run["step"], run["seconds"]
    for name, parameter in parameters.items():
        parameter.copy_(tensors[f"weights.{name}"])
        if f"{MOMENTS[0]}.{name}" in tensors:
            count = torch.tensor(float(state.step), device=parameter.device)
            own = {moment: tensors[f"{moment}.{name}"] for moment in MOMENTS}
            state.optimizer.state[parameter] = own | {"step": count if parameter.is_cuda else count.cpu()}
    state.average = {n: tensors[f"average.{n}"] for n in state.average}
