"""GalLoP beside its authors' code."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from dca.methods.gallop import GalLoP, draw_prompts
from side_by_side.authors import THIRD_PARTY, Recorder, Watched, run_authors_code
from side_by_side.comparing import Observed, finish_and_classify, run_step
from side_by_side.setting import NAMES, Setting

# Our parameters, and the authors' names of them.
PLACES = {
    "global_prompts": "global_prompt",
    "local_prompts": "local_prompts",
    "local_layer": "local_proj.linear.weight",
}


def build_authors_model(setting: Setting, ours: GalLoP) -> Any:
    """The authors' model with our values."""
    # OpenAI's package, which this repository does not have a copy of.
    clip = importlib.import_module("clip")
    weights = SimpleNamespace(state_dict=lambda: setting.openai_state)
    vars(clip).update(tokenize=setting.tokenize, load=lambda *args, **kwargs: (weights, None))
    model = importlib.import_module("gallop.vlprompt").GalLoP(
        "clip_vit_b16",
        checkpointing_segments=0,
        n_global_prompts=ours.options.global_prompts,
        n_local_prompts=len(ours.options.top),
        topk=list(ours.options.top),
    )
    model.initialize_prompt()
    model.freeze_clip()
    model.load_trainable_state_dict({PLACES[name]: tensor for name, tensor in ours.state_dict().items()})
    return model.train()


def gallop(root: Path, setting: Setting) -> tuple[Observed, Observed]:
    """One training step with the same global prompt for each image, and the prediction."""
    ours = GalLoP.build(setting.clip, setting.problem(), GalLoP.parse_options({}))
    with torch.no_grad():
        for name, tensor in ours.named_parameters():
            tensor.add_(setting.noise(tensor, 0.02, name))
    B, G, batch = len(setting.train.labels), ours.options.global_prompts, setting.batch()
    chosen = draw_prompts(B, G, ours.options.dropout, setting.batch().noise)
    with run_authors_code(root, (*THIRD_PARTY, "clip")):
        model = build_authors_model(setting, ours)
        parts = importlib.import_module("gallop.vlprompt.tools.global_local_loss")
        vars(parts)["torch"] = Watched(torch, randint=lambda *args, **kwargs: chosen[:, None])
        loss_of = parts.GlobalLocalLoss(topk=list(ours.options.top), global_dropout_p=ours.options.dropout)
        found = model(setting.exact.train.pixels, list(NAMES))
        loss = loss_of(*found, setting.train.labels, model.logit_scale.exp())
        loss.backward()
        softmax = Recorder(torch.softmax)
        vars(sys.modules["gallop.vlprompt.gallop"])["torch"] = Watched(torch, softmax=softmax)
        with torch.no_grad():
            model.eval().create_prediction_scores(*model(setting.exact.test.pixels, list(NAMES)))
    trained = dict(model.named_parameters())
    theirs = Observed(softmax.calls[-1][0][0], loss, {name: trained[place].grad for name, place in PLACES.items()})
    loss, gradients = run_step(ours, batch)
    return theirs, Observed(finish_and_classify(ours, setting.train, setting.test), loss, gradients)
