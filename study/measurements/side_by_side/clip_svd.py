"""CLIP-SVD beside its authors' code."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.methods.clip_svd import CLIPSVD
from side_by_side.authors import Recorder, Watched, run_authors_code
from side_by_side.comparing import Observed, finish_and_classify, run_step
from side_by_side.setting import NAMES, Setting

# Our names of the decomposed matrices, and where the authors' model keeps them in a block.
PLACES = {
    "q": "attn.q_proj", "k": "attn.k_proj", "v": "attn.v_proj", "out": "attn.proj", "fc": "mlp.c_fc",
    "proj": "mlp.c_proj",
}  # fmt: skip
ON = dict.fromkeys(("image_encoder", "text_encoder", "mlp", "q", "k", "v", "o_proj"), True)


def as_theirs(stacked: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors "visual_q" (N, R), ... of our singular values under the names of the authors' parameters, (1, R) each."""
    found = {}
    for name, rows in stacked.items():
        tower, part = name.removeprefix("values.").split("_")
        stem = "visual.transformer" if tower == "visual" else "transformer"
        for layer, row in enumerate(rows):
            found[f"{stem}.resblocks.{layer}.{PLACES[part]}.vector_S"] = row[None]
    return found


class Freezing:
    """Their function that decides what is trained; it also gives the model our values and keeps its parameters."""

    def __init__(self, function: Any, values: dict[str, Tensor]) -> None:
        self.function, self.values = function, values
        self.trained: dict[str, Tensor] = {}

    def __call__(self, args: Any, model: Any) -> None:
        """Run theirs, then copy."""
        self.function(args, model)
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        for name, parameter in self.trained.items():
            parameter.data.copy_(self.values[name])


def clip_svd(root: Path, setting: Setting) -> tuple[Observed, Observed]:
    """One iteration of their `run_training` at learning rate 0, from singular values that are not CLIP's own."""
    ours = CLIPSVD.build(setting.clip, setting.problem(), CLIPSVD.parse_options({}))
    with torch.no_grad():
        for name, values in ours.values.items():
            values.mul_(1 + setting.noise(values, 0.1, name))
    args = SimpleNamespace(
        model="CLIP", rank=1.0, eval_only=False, include_train_layers="all", n_iters=1, shots=1, weight_decay=0.01,
        lr=0.0, save_path=None, **{f"train_{part}": value for part, value in ON.items()},
    )  # fmt: skip
    data = SimpleNamespace(classnames=NAMES, template=setting.problem().template)
    with run_authors_code(root):
        train = importlib.import_module("train")
        vars(train.clip)["tokenize"] = setting.tokenize
        clip = setting.authors_clip(importlib.import_module("clip.model").build_model)
        accuracy, loss = Recorder(train.cls_acc), Recorder(F.cross_entropy)
        freezing = Freezing(train.set_clip_trainable_parameters, as_theirs(dict(ours.values.items())))
        vars(train).update(cls_acc=accuracy, F=Watched(F, cross_entropy=loss), set_clip_trainable_parameters=freezing)
        test = setting.test.loader()
        train.run_training(args, clip, 100, data, setting.train.loader(), test, test)
    gradients = {name: p.grad for name, p in freezing.trained.items() if p.grad is not None}
    theirs = Observed(accuracy.calls[-1][0][0], loss.calls[0][1], gradients)
    found, stacked = run_step(ours, setting.batch())
    return theirs, Observed(finish_and_classify(ours, setting.train, setting.test), found, as_theirs(stacked))
