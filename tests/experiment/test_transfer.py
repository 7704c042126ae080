from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from conftest import make_clip
from dca.core.errors import UserError
from dca.data import protocols
from dca.data.dataset import Dataset
from dca.experiment.transfer import retargeted, run_task
from dca.methods.dca import DCA
from dca.methods.interface import Problem
from dca.methods.registry import all_methods, get_method
from dca.model.classifier import Classifier

SHORT = {"epochs": 1, "warmup_epochs": 0, "batch_size": 8}
PROMPTS = ["clip_lora", "cocoop", "coop", "dapt", "dca", "maple", "promptsrc", "tcp", "vpt", "zero_shot"]


@pytest.fixture(scope="module")
def halves(sample: Dataset) -> protocols.Task:
    return protocols.base_to_new(sample, 2, 1)


def short(name: str, **options: object) -> Classifier:
    recipe = SHORT if get_method(name).trains_on != "nothing" else {}
    return Classifier(name, seed=1, backbone=make_clip(), **{**recipe, **options})


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_are_attached_to_new_names(name: str, halves: protocols.Task) -> None:
    result = run_task(short(name), halves)
    base, new = result.targets
    assert base.evaluation.classes == halves.targets[0].classes
    assert new.evaluation.classes == halves.targets[1].classes
    assert np.isfinite(new.evaluation.probabilities).all()
    np.testing.assert_allclose(new.evaluation.probabilities.sum(1), 1, atol=1e-5)
    row = result.to_dict()
    assert (row["protocol"], row["mode"], row["targets"][1]["name"]) == ("base-to-new", "strict", "sample new")
    assert row["selection"].startswith("strict")


def test_every_other_method_refuses_new_names_in_words(halves: protocols.Task) -> None:
    for name in sorted(set(all_methods()) - set(PROMPTS)):
        with pytest.raises(UserError, match=name):
            run_task(short(name), halves)


def test_unknown_classes_cost_the_covariances_and_the_result_says_so(halves: protocols.Task) -> None:
    base, new = run_task(short("dca"), halves).targets
    assert (base.metric, new.metric) == ("mahalanobis", "euclidean")


def test_a_model_that_needs_no_covariances_keeps_its_metric(halves: protocols.Task) -> None:
    for name in ("dca", "coop"):
        base, new = run_task(short(name, test_metric="cosine"), halves).targets
        assert (base.metric, new.metric) == ("cosine", "cosine")


def test_covariances_follow_their_classes(sample: Dataset) -> None:
    """A target with some of the classes, in another order: the same numbers as choosing those columns of M heads."""
    model = short("dca").fit(sample)
    method = model.method_
    assert isinstance(method, DCA)
    chosen = [7, 2, 5]
    test = tuple(dataclasses.replace(i, label=chosen.index(i.label)) for i in sample.test if i.label in chosen)
    names = tuple(sample.classes[c] for c in chosen)
    target = protocols.Target("part", sample.name, names, sample.template, test, tuple(chosen))
    other = retargeted(method, target)
    f = F.normalize(torch.randn(4, 16, generator=torch.Generator().manual_seed(0)), dim=-1)
    logits = method.head().logits(f)[..., chosen]
    torch.testing.assert_close(other.classify(f), logits.softmax(-1).mean(0), atol=1e-5, rtol=1e-4)


def test_class_specific_prompts_follow_known_classes_only(sample: Dataset) -> None:
    method = short("coop", contexts="class").fit(sample).method_
    task = Problem(names=(sample.classes[3], sample.classes[0]), shots=4)
    moved = method.retarget(task, (3, 0))
    torch.testing.assert_close(moved.encode_text(), method.encode_text()[[3, 0]], atol=1e-6, rtol=0)
    with pytest.raises(UserError, match="belongs to the classes"):
        method.retarget(dataclasses.replace(task, names=("x", "y")), (3, None))


def test_some_of_the_classes_are_asked_with_the_names_that_were_learned(sample: Dataset) -> None:
    """Also where all of them are longer than the shortest name of the training."""
    names = ("cat", "polar bear", "hot air balloon", *sample.classes[3:])
    method = short("lamm").fit(dataclasses.replace(sample, classes=names)).method_
    task = Problem(names=names[1:3], shots=4)
    moved = method.retarget(task, (1, 2))
    torch.testing.assert_close(moved.encode_text(), method.encode_text()[1:3], atol=1e-6, rtol=0)


@pytest.mark.parametrize("mode", ["strict", "paper"])
def test_half_of_a_dataset_is_learned_with_its_recipe(sample: Dataset, mode: protocols.Mode) -> None:
    flowers = dataclasses.replace(sample, name="oxford_flowers")
    task = protocols.base_to_new(flowers, 2, 1, mode=mode, habit="none")
    assert [target.name for target in task.targets] == ["oxford_flowers base", "oxford_flowers new"]
    told = short("tip_adapter", views=0).fit_drawn(task.source, mode=mode).method_
    assert told.alpha_beta.tolist() == ([10.0, 1.0] if mode == "paper" else [2.0, 1.0])
    assert short("dapt").fit_drawn(task.source).method_.options.learning_rate == 0.002
    new = retargeted(short("coop").fit_drawn(task.source).method_, task.targets[1])
    assert new.problem.dataset == "oxford_flowers"


def test_few_shot_protocol_equals_a_plain_fit(sample: Dataset) -> None:
    task = protocols.few_shot(sample, 2, 1)
    assert task.source.test == ()
    result = run_task(short("dca"), task)
    plain = Classifier("dca", shots=2, seed=1, backbone=make_clip(), **SHORT).fit(sample)
    np.testing.assert_allclose(
        result.targets[0].evaluation.probabilities,
        plain.predict_proba([item.picture for item in sample.test]),
        atol=1e-6,
    )
