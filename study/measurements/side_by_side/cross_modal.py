"""Cross-Modal adaptation beside its authors' code: the linear and the partial form."""

from __future__ import annotations

import copy
import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from dca.backbones.clip.weights import openai_source
from dca.methods.cross_modal import CrossModal
from side_by_side.authors import Recorder, run_authors_code
from side_by_side.comparing import Observed, finish_and_classify, run_step
from side_by_side.setting import BLOCKS, NAMES, Setting

WISE = 0.5


class Authors:
    """Their encoders, text data and head. layers: blocks of the image tower that are trained."""

    def __init__(self, setting: Setting, layers: int, logit: float) -> None:
        self.train = importlib.import_module("train")
        features, partial = importlib.import_module("features"), importlib.import_module("engine.clip.partial_model")
        datasets = importlib.import_module("engine.datasets.utils")
        vars(features.clip)["tokenize"] = setting.tokenize
        clip = setting.authors_clip(importlib.import_module("engine.clip.model").build_model)
        text = partial.get_text_encoder(0, clip)
        found = features.extract_text_features("imagenet", "hand_crafted", text, dict(enumerate(NAMES)))
        self.texts = datasets.TextTensorDataset(found["features"], found["labels"], found["eot_indices"])
        self.image, self.text, self.logit = (
            partial.get_image_encoder("ViT-B/16", layers, clip),
            text.partial_model,
            logit,
        )
        self.image.partial_model.requires_grad_(True)
        made = self.train.make_classifier_head("linear", "ViT-B/16", "zeroshot", self.texts, self.text)
        self.head, self.classes, self.width = made

    def rows(self, pixels: Tensor) -> Tensor:
        """What the training reads of images: the output of the frozen part of the image tower."""
        with torch.no_grad():
            rows: Tensor = self.image.feature_extractor(pixels)
        return rows

    def step(self, images: list[Any], validation: list[Any]) -> Tensor:
        """The loss of one iteration of their training at learning rate 0; gradients stay in the parameters."""
        head = self.train.LogitHead(self.head, logit_scale=self.logit)
        loss = Recorder(nn.CrossEntropyLoss())
        optimizer = torch.optim.SGD([*head.parameters(), *self.image.partial_model.parameters()], lr=0.0)
        texts = [(self.texts.input_tensor, self.texts.label_tensor, self.texts.eot_indices)]
        self.train.train(
            head, self.image.partial_model, self.text, images, validation, texts,
            optimizer, SimpleNamespace(step=lambda: None), loss, 1, device="cpu",
        )  # fmt: skip
        result: Tensor = loss.calls[0][1]
        return result

    def test_logits(self, pixels: Tensor) -> Tensor:
        """Of the trained head, then of its mean with the text features (WiSE-FT): (2 B, C)."""
        weights = self.train.get_zero_shot_weights(self.texts, self.classes, self.width, self.text)
        heads = self.train.get_eval_heads(copy.deepcopy(self.head), weights, logit=self.logit, ratio_list=[WISE])
        with torch.no_grad():
            features = self.image.partial_model(self.rows(pixels))
            return torch.cat([heads[name](features) for name in ("head", f"head_wiseft_{WISE}")])

    def gradients(self) -> dict[str, Tensor]:
        """By parameter, those of the image tower with "end." before their names."""
        end = self.image.partial_model.named_parameters()
        return {"weight": self.head.weight.grad, **{f"end.{name}": p.grad for name, p in end}}


def as_theirs(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our gradients under the names, and in the layout, of the authors' parameters."""
    found = {}
    for name, gradient in gradients.items():
        if not name.startswith("end."):
            found[name] = gradient
            continue
        ours = name.removeprefix("end.").replace("block.", f"blocks.{BLOCKS - 1}.")
        for theirs, tensor in openai_source(f"visual.{ours}").write(gradient).items():
            place = theirs.removeprefix("visual.").replace("transformer.resblocks.", "transformer_encoder.")
            found[f"end.{place}"] = tensor
    return found


def prepare_method(setting: Setting, form: str, wise: float, noise: Tensor) -> CrossModal:
    """Our method before training, with the noise added to its initial weights."""
    chosen = CrossModal.parse_options({"form": form, "wise": wise, "keep": "last"})
    method = CrossModal.build(setting.clip, setting.problem("imagenet"), chosen)
    method.prepare(setting.train)
    with torch.no_grad():
        method.weight.add_(noise)
    return method


def compare(root: Path, setting: Setting, form: str, layers: int, logit: float) -> tuple[Observed, Observed]:
    """One training step on all images, their mirror images and all sentences, and the heads after it."""
    labels = setting.train.labels.repeat(2)
    with run_authors_code(root):
        authors = Authors(setting, layers, logit)
        noise = setting.noise(authors.head.weight, 0.02, "head")
        authors.head.weight.data.add_(noise)
        train, test = setting.exact.train, setting.exact.test
        rows = torch.cat([authors.rows(train.pixels), authors.rows(train.pixels.flip(-1))])
        loss = authors.step([(rows, labels)], [(authors.rows(test.pixels), test.labels)])
        theirs = Observed(authors.test_logits(test.pixels), loss, authors.gradients())

    method = prepare_method(setting, form, 0.0, noise)
    inputs, targets = method.training_rows(setting.train)  # repeated to fill an epoch
    loss, gradients = run_step(method, setting.batch(inputs[: len(labels)], targets[: len(labels)]))
    methods = (method, prepare_method(setting, form, WISE, noise))
    logits = torch.cat([finish_and_classify(one, setting.train, setting.test) for one in methods])
    return theirs, Observed(logits, loss, as_theirs(gradients))


def linear(root: Path, setting: Setting) -> tuple[Observed, Observed]:
    """The linear layer alone."""
    return compare(root, setting, "linear", 0, 4.60517)


def partial(root: Path, setting: Setting) -> tuple[Observed, Observed]:
    """With the last block, final norm and projection of the image tower."""
    return compare(root, setting, "partial", 1, 4.0)
