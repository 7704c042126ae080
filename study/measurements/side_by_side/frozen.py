"""Tip-Adapter, Tip-Adapter-F and GDA beside their authors' code: methods over frozen features."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from dca.methods.gda import GDA, GDAOptions
from dca.methods.tip_adapter import TipAdapter, TipAdapterOptions
from dca.methods.tip_adapter_f import TipAdapterF, TipAdapterFOptions
from side_by_side.authors import Recorder, Watched, run_authors_code
from side_by_side.comparing import Observed, finish_and_classify, run_step
from side_by_side.setting import NAMES, SHOTS, VIEWS, Setting

# The authors' configuration file, with the ranges and starting values that our rules `strict` has.
TIP_CONFIG: dict[str, Any] = {
    "load_cache": False, "load_pre_feat": False, "search_hp": True, "search_scale": [12, 10], "search_step": [200, 20],
    "init_alpha": 2, "init_beta": 1, "shots": SHOTS, "augment_epoch": VIEWS, "train_epoch": 1,
}  # fmt: skip


class Script:
    """The script of a repository (`main.py`, ...) with CLIP, text features, and the features of all images."""

    def __init__(self, name: str, setting: Setting) -> None:
        self.module = importlib.import_module(name)
        clip = importlib.import_module("clip")
        vars(clip)["tokenize"] = setting.tokenize
        self.clip = setting.authors_clip(importlib.import_module("clip.model").build_model)
        templates = importlib.import_module("datasets.imagenet").imagenet_templates
        self.text = self.module.clip_classifier(NAMES, templates, self.clip)
        # The logits of every evaluation, the last ones those of the test images.
        self.accuracy = vars(self.module)["cls_acc"] = Recorder(self.module.cls_acc)

    @property
    def last_logits(self) -> torch.Tensor:
        """The logits whose accuracy was computed last."""
        logits: torch.Tensor = self.accuracy.calls[-1][0][0]
        return logits


def _tip_inputs(script: Script, setting: Setting, config: dict[str, Any]) -> tuple[Any, ...]:
    """Keys, values, and features and labels of validation and test images, as the authors' `main` makes them."""
    keys, values = script.module.build_cache_model(config, script.clip, setting.train.loader(VIEWS))
    assert setting.train.validation is not None
    validation = script.module.pre_load_features(config, "val", script.clip, setting.train.validation.loader())
    test = script.module.pre_load_features(config, "test", script.clip, setting.test.loader())
    return (keys, values, *validation, *test)


def tip_adapter(root: Path, setting: Setting) -> tuple[Observed, Observed]:
    """Cache, search of α and β, and test logits."""
    with run_authors_code(root), tempfile.TemporaryDirectory() as folder:
        script, config = Script("main", setting), {**TIP_CONFIG, "cache_dir": folder}
        script.module.run_tip_adapter(config, *_tip_inputs(script, setting, config), script.text)
    ours = TipAdapter.build(setting.clip, setting.problem("imagenet"), TipAdapterOptions(views=VIEWS))
    return Observed(script.last_logits), Observed(finish_and_classify(ours, setting.train, setting.test))


def tip_adapter_f(root: Path, setting: Setting) -> tuple[Observed, Observed]:
    """One training step of the keys at learning rate 0, then the search and test logits."""
    with run_authors_code(root), tempfile.TemporaryDirectory() as folder:
        script, config = Script("main", setting), {**TIP_CONFIG, "cache_dir": folder, "lr": 0.0}
        loss, keys = Recorder(F.cross_entropy), Recorder(nn.Parameter)
        vars(script.module).update(F=Watched(F, cross_entropy=loss), nn=Watched(nn, Parameter=keys))
        inputs = _tip_inputs(script, setting, config)
        script.module.run_tip_adapter_F(config, *inputs, script.text, script.clip, setting.train.loader(1))
    (_, first), *_ = loss.calls
    theirs = Observed(script.last_logits, first, {"keys": keys.calls[0][1].grad})

    chosen = TipAdapterFOptions(views=VIEWS, train_views=1)
    ours = TipAdapterF.build(setting.clip, setting.problem("imagenet"), chosen)
    ours.prepare(setting.train)
    found, gradients = run_step(ours, setting.batch(*ours.training_rows(setting.train)))
    return theirs, Observed(finish_and_classify(ours, setting.train, setting.test), found, gradients)


def gda(root: Path, setting: Setting) -> tuple[Observed, Observed]:
    """Means, inverse covariance, search of α, and test logits."""
    validation = setting.train.validation
    assert validation is not None
    with run_authors_code(root):
        script = Script("main_few_shots", setting)
        features = [
            script.module.pre_load_features({}, "", script.clip, x.loader()) for x in (validation, setting.test)
        ]
        (val_features, val_labels), (test_features, test_labels) = features
        vars(script.module).update(
            val_features=val_features, val_labels=val_labels, test_features=test_features, test_labels=test_labels
        )
        script.module.run({"augment_epoch": VIEWS}, setting.train.loader(VIEWS), script.text, script.clip)
    # In float64: the inverse covariance makes weights of several hundreds, and float32 would round at 1e-4.
    exact = setting.exact
    ours = GDA.build(exact.clip, setting.problem("imagenet"), GDAOptions(views=VIEWS))
    return Observed(script.last_logits), Observed(finish_and_classify(ours, exact.train, exact.test))
