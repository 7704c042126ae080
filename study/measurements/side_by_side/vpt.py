"""VPT beside the three repositories whose placements of visual tokens our `vpt` offers."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass, field
from functools import reduce
from operator import mul
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.utils import _pair

from dca.backbones.blocks import Residual
from dca.backbones.clip import CLIP
from dca.methods.vpt import VPT
from side_by_side.authors import extract, run_authors_code
from side_by_side.comparing import Observed, finish_and_classify, run_step
from side_by_side.setting import BLOCKS, NAMES, PATCH, SIZE, Setting

TOKENS = 4


def prepare_method(setting: Setting, placement: str, depth: int) -> VPT:
    """Our method before training. Its random tokens are copied to the authors' model."""
    chosen = VPT.parse_options({"placement": placement, "tokens": TOKENS, "depth": depth})
    method = VPT.build(setting.clip, setting.problem(), chosen)
    method.prepare(setting.train)
    return method


def observe_method(method: VPT, setting: Setting) -> Observed:
    """One training step and the finished model."""
    loss, gradients = run_step(method, setting.batch())
    return Observed(finish_and_classify(method, setting.train, setting.test), loss, gradients)


@dataclass(frozen=True)
class Layer:
    """A block that also returns weights of attention, of which there are none."""

    block: nn.Module
    before: nn.Module = field(default_factory=nn.Identity)

    def __call__(self, x: Tensor) -> tuple[Tensor, None]:
        """Rows (B, T, W) through the block."""
        return self.block(Residual(self.before(x))).total(), None


class ClipTransformer(nn.Module):
    """CLIP's image tower in the shape of the ViT that the original VPT is written for.

    That ViT has no ln_pre. CLIP's is the first part of the first block, so that it acts on whatever enters it.
    """

    def __init__(self, tower: Any, img_size: int, vis: bool) -> None:
        super().__init__()
        self.embeddings = tower.clip.visual.embed
        first, *others = tower.clip.visual.blocks
        layers = [Layer(first, tower.clip.visual.ln_pre), *map(Layer, others)]
        self.encoder = SimpleNamespace(layer=layers, encoder_norm=tower.clip.visual.ln_post, vis=vis)


def shape_of(clip: CLIP) -> SimpleNamespace:
    """The configuration of the original VPT's ViT."""
    sizes = {"patches": {"size": PATCH}, "hidden_size": clip.config.vision.width}
    return SimpleNamespace(**sizes, transformer={"num_layers": BLOCKS}, clip=clip)


def original(root: Path, setting: Setting) -> tuple[Observed, Observed]:
    """Tokens of the first repository, in all blocks, on CLIP's tower."""
    ours, clip = prepare_method(setting, "original", BLOCKS), setting.exact.clip
    path = root / "src" / "models" / "vit_prompt" / "vit.py"
    names = {"math": math, "torch": torch, "nn": nn, "reduce": reduce, "mul": mul, "_pair": _pair}
    names |= {"Dropout": nn.Dropout, "Transformer": ClipTransformer, "__name__": "vit_prompt"}
    config = SimpleNamespace(
        LOCATION="prepend", INITIATION="random", NUM_DEEP_LAYERS=None, DEEP_SHARED=False, NUM_TOKENS=TOKENS,
        DROPOUT=0.0, PROJECT=-1, DEEP=True,
    )  # fmt: skip
    tower = extract(path, "PromptedTransformer", names)(config, shape_of(clip), SIZE, False).double()
    with torch.no_grad():
        tower.prompt_embeddings.copy_(ours.tokens[:1])
        tower.deep_prompt_embeddings.copy_(ours.tokens[1:])
        text = F.normalize(clip.encode_text([f"a photo of a {name}." for name in NAMES]).double(), dim=-1)

    def logits(pixels: Tensor) -> Tensor:
        rows, _ = tower(pixels)
        return clip.tau * F.normalize(clip.visual.projection(rows[:, 0]), dim=-1) @ text.T

    loss = F.cross_entropy(logits(setting.exact.train.pixels), setting.train.labels)
    gradient = torch.cat(torch.autograd.grad(loss, [tower.prompt_embeddings, tower.deep_prompt_embeddings]))
    theirs = Observed(logits(setting.exact.test.pixels), loss, {"tokens": gradient})
    return theirs, observe_method(ours, setting)


def maple(root: Path, setting: Setting) -> tuple[Observed, Observed]:
    """Tokens of MaPLe's repository, in all blocks but the last."""
    depth = BLOCKS - 1
    ours = prepare_method(setting, "maple", depth)
    design = {"trainer": "VPT", "vision_depth": depth, "vision_ctx": TOKENS, "language_depth": 0, "language_ctx": 0}
    config = SimpleNamespace(
        TRAINER=SimpleNamespace(VPT=SimpleNamespace(N_CTX_VISION=TOKENS)), INPUT=SimpleNamespace(SIZE=(SIZE, SIZE))
    )
    with run_authors_code(root):
        trainer = importlib.import_module("trainers.vpt")
        vars(trainer.clip)["tokenize"] = setting.tokenize
        clip = setting.authors_clip(importlib.import_module("clip.model").build_model, design)
        model = trainer.CustomCLIP(config, NAMES, clip)
        tokens = [clip.visual.VPT, *(block.VPT_shallow for block in clip.visual.transformer.resblocks[1:depth])]
        for theirs, start in zip(tokens, ours.tokens, strict=True):
            theirs.data.copy_(start)
            theirs.requires_grad_(True)
        loss = model(setting.exact.train.pixels, setting.train.labels, training=True)
        gradient = torch.stack(torch.autograd.grad(loss, tokens))
        found = Observed(model(setting.exact.test.pixels), loss, {"tokens": gradient})
    return found, observe_method(ours, setting)


def dapt(root: Path, setting: Setting) -> tuple[Observed, Observed]:
    """Tokens of DAPT's repository, in front of the first block; its text context holds "a photo of a"."""
    ours = prepare_method(setting, "dapt", 1)
    words = setting.clip.tokenizer.encode("a photo of a")
    sizes = SimpleNamespace(VIS_NUM_TOKENS=TOKENS, TXT_NUM_TOKENS=len(words), VIS_DROPOUT=0.0)
    config = SimpleNamespace(
        TRAINER=SimpleNamespace(DAPT=sizes), INPUT=SimpleNamespace(SIZE=(SIZE, SIZE)), USE_CUDA=False
    )
    with run_authors_code(root):
        trainer = importlib.import_module("trainers.dapt")
        vars(trainer.clip)["tokenize"] = setting.tokenize
        vars(trainer)["_tokenizer"] = SimpleNamespace(encode=setting.clip.tokenizer.encode)
        clip = setting.authors_clip(importlib.import_module("clip.model").build_model)
        model = trainer.CustomCLIP(config, NAMES, clip)
        learner = model.prompt_learner
        learner.vis_ctx.data.copy_(ours.tokens)
        learner.txt_ctx.data.copy_(clip.token_embedding(torch.tensor(words)))
        loss = F.cross_entropy(model(setting.exact.train.pixels)[0], setting.train.labels)
        (gradient,) = torch.autograd.grad(loss, [learner.vis_ctx])
        found = Observed(model(setting.exact.test.pixels)[0], loss, {"tokens": gradient})
    return found, observe_method(ours, setting)
