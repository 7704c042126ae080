"""Tip-Adapter, Tip-Adapter-F, GDA, ProKeR and LP++ beside their authors' code: methods over frozen features."""

from __future__ import annotations

import importlib
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional as F

from dca.methods.gda import GDA, GDAOptions
from dca.methods.lp_plus_plus import LPPlusPlus, LPPlusPlusOptions
from dca.methods.proker import COMMON, ProKeR, ProKeROptions
from dca.methods.shared.frozen_features import unit_mean
from dca.methods.tip_adapter import TipAdapter, TipAdapterOptions
from dca.methods.tip_adapter_f import TipAdapterF, TipAdapterFOptions
from side_by_side.authors import Recorder, Watched, extract, run_authors_code
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


def _unit_views(setting: Setting, views: int) -> torch.Tensor:
    """Unit features of the training images, view after view, (views · N, D) in float64."""
    return F.normalize(setting.exact.train.frozen_features(views=views), dim=-1)


def _unit_texts(setting: Setting, method: Any) -> torch.Tensor:
    """Unit text features (C, D) in float64, of the sentences that a method of ours reads."""
    return unit_mean(method.build(setting.exact.clip, setting.problem("imagenet"), method.Options()).texts()).double()


def proker(root: Path, setting: Setting) -> tuple[Observed, Observed]:
    """Kernel, search of β and λ, and test logits."""
    exact = setting.exact
    validation = exact.train.validation
    assert validation is not None
    (first, last, steps), (low, high, count) = COMMON
    config = {"beta": [first, last, steps], "lmbda": [low, high, count]}
    nothing = nullcontext()
    with run_authors_code(root):
        names: dict[str, Any] = {"torch": torch, "F": F, "tqdm": iter, "open": lambda *_: nothing}
        names["cls_acc"] = extract(root / "utils.py", "cls_acc", {})
        names["save_hps"] = names["print"] = lambda *_: None
        names["yaml"] = SimpleNamespace(load=lambda *_, **__: config, Loader=None)
        extract(root / "trainers" / "proker.py", "RBF_Kernel", names)
        theirs = extract(root / "trainers" / "proker.py", "ProKeR", names)(
            _unit_views(setting, VIEWS),
            setting.train.labels.repeat(VIEWS),
            F.normalize(validation.frozen_features(), dim=-1),
            validation.labels,
            F.normalize(exact.test.frozen_features(), dim=-1),
            _unit_texts(setting, ProKeR).T,
            dataset="caltech101", shots=SHOTS, seed=1, hp_selection="tip-adapter",
        )  # fmt: skip
    ours = ProKeR.build(setting.clip, setting.problem("imagenet"), ProKeROptions(views=VIEWS))
    found = finish_and_classify(ours, setting.train, setting.test)
    theirs = setting.clip.tau * theirs
    # Our head leaves out what all classes share.
    return Observed(theirs - theirs.mean(dim=1, keepdim=True)), Observed(found - found.mean(dim=1, keepdim=True))


def lp_plus_plus(root: Path, setting: Setting) -> tuple[Observed, Observed]:
    """All iterations, and the logits of the test images after the one that counts."""
    exact = setting.exact
    validation = exact.train.validation
    assert validation is not None
    test = F.normalize(exact.test.frozen_features(), dim=-1)
    alphas, logits = list[torch.Tensor](), list[torch.Tensor]()

    class Linear(nn.Linear):
        """Starts with a bias of zero; keeps the logits of the test images, with the text part at that time."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            nn.init.zeros_(self.bias)

        def forward(self, f: torch.Tensor) -> torch.Tensor:
            found = super().forward(f)
            if f is test:
                logits.append((found + alphas[0] * (test @ text)).detach())
            return found

    def variable(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
        alphas.append(tensor.requires_grad_(requires_grad))
        return tensor

    with run_authors_code(root):
        text = _unit_texts(setting, LPPlusPlus).T
        clip = setting.authors_clip(importlib.import_module("clip.model").build_model)
        module = importlib.import_module("methods.linear_probe_p2")
        vars(importlib.import_module("methods.utils"))["torch"] = Watched(torch, float16=torch.float64)
        vars(module).update(eigh=numpy.linalg.eigh, nn=Watched(nn, Linear=Linear), Variable=variable)
        for name in ("compute_centroids", "compute_centroids_alpha"):
            vars(module)[name] = vars(importlib.import_module("methods.utils"))[name]
        settings = {"train_epoch": 300, "shots": SHOTS, "dataset": "", "output_dir": ""}
        module.LinearProbe_P2(settings)(
            setting.train.loader(1), validation.loader(), test, exact.test.labels, text, clip, NAMES
        )
    ours = LPPlusPlus.build(setting.clip, setting.problem("imagenet"), LPPlusPlusOptions(bias=True))
    return Observed(logits[-1]), Observed(finish_and_classify(ours, setting.train, setting.test))
