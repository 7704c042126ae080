"""Fitted once, tested on several targets: the four protocols, each with folder, resume and command."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from conftest import Said, make_clip
from dca.core.choices import Rules
from dca.core.errors import UserError
from dca.core.files import partial_folder
from dca.datasets.dataset import Dataset
from dca.datasets.task import Target, Task
from dca.methods.base import Problem
from dca.methods.dca import DCA
from dca.methods.registry import all_methods, get_method
from dca.model.classifier import Classifier
from dca.runs.evaluate import TargetEvaluation, evaluate, retarget_method
from dca.study import protocols
from dca.study.experiment import Experiment, ExperimentResult
from dca.study.run import run_experiment
from dca.training.session import Session

SHORT = {"epochs": 1, "warmup_epochs": 0, "batch_size": 8}
PROMPTS = ["clip_lora", "clip_svd", "cocoop", "coop", "dapt", "dca", "gallop", "maple", "promptsrc", "tcp", "two_sfs"]
PROMPTS += ["prolip", "vpt", "zero_shot"]


@pytest.fixture(scope="module")
def halves(sample: Dataset) -> Task:
    return protocols.base_to_new(sample, 2, 1)


def short(name: str, **options: object) -> Classifier:
    recipe = SHORT if get_method(name).trains_on != "nothing" else {"epochs": 1} if name == "blend" else {}
    return Classifier(name, seed=1, backbone=make_clip(), device="cpu", **{**recipe, **options})


def learned(name: str, task: Task, **options: object) -> Classifier:
    return short(name, **options)._fit_drawn(task.source, Session(device="cpu"), rules=task.rules)


def measured(name: str, task: Task, **options: object) -> tuple[TargetEvaluation, ...]:
    model = learned(name, task, **options)
    return evaluate(model.method_, task.targets, Session(device="cpu"))


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_are_attached_to_new_names(name: str, halves: Task) -> None:
    base, new = measured(name, halves)
    assert base.adapted.labels == halves.targets[0].labels
    assert new.adapted.labels == halves.targets[1].labels
    assert np.isfinite(new.adapted.probabilities).all()
    np.testing.assert_allclose(new.adapted.probabilities.sum(1), 1, atol=1e-12)
    assert new.result.name == "sample new"
    assert halves.selected_on.startswith("strict")


def test_every_other_method_refuses_new_names_in_words(halves: Task) -> None:
    for name in sorted(set(all_methods()) - set(PROMPTS)):
        with pytest.raises(UserError, match=name):
            measured(name, halves)


def test_unknown_classes_cost_the_covariances_and_the_result_says_so(halves: Task) -> None:
    base, new = measured("dca", halves)
    assert (base.metric, new.metric) == ("mahalanobis", "euclidean")


def test_a_model_that_needs_no_covariances_keeps_its_metric(halves: Task) -> None:
    for name in ("dca", "coop"):
        base, new = measured(name, halves, test_metric="cosine")
        assert (base.metric, new.metric) == ("cosine", "cosine")


def test_covariances_follow_their_classes(sample: Dataset) -> None:
    """A target with some of the classes, in another order: the same numbers as choosing those columns of M heads."""
    method = short("dca").fit(sample).method_
    assert isinstance(method, DCA)
    chosen = [7, 2, 5]
    test = tuple(dataclasses.replace(i, label=chosen.index(i.label)) for i in sample.test if i.label in chosen)
    names = tuple(sample.names[c] for c in chosen)
    target = Target("part", "", names, names, sample.template, test, tuple(chosen))
    other = retarget_method(method, target)
    f = F.normalize(torch.randn(4, 16, generator=torch.Generator().manual_seed(0)), dim=-1)
    logits = method.head.logits(f)[..., chosen]  # type: ignore[attr-defined]
    torch.testing.assert_close(other.classify(f), logits.softmax(-1).mean(1), atol=1e-5, rtol=1e-4)


def test_class_specific_prompts_follow_known_classes_only(sample: Dataset) -> None:
    method: Any = short("coop", contexts="class").fit(sample).method_
    problem = Problem(names=(sample.names[3], sample.names[0]), shots=4)
    moved = method.retarget(problem, (3, 0))
    torch.testing.assert_close(moved.encode_text(), method.encode_text()[[3, 0]], atol=1e-6, rtol=0)
    with pytest.raises(UserError, match="belongs to the classes"):
        method.retarget(dataclasses.replace(problem, names=("x", "y")), (3, None))


def test_some_of_the_classes_are_asked_with_the_names_that_were_learned(sample: Dataset) -> None:
    """Also where all of them are longer than the shortest name of the training."""
    names = ("cat", "polar bear", "hot air balloon", *sample.names[3:])
    method: Any = short("lamm").fit(dataclasses.replace(sample, names=names)).method_
    moved = method.retarget(Problem(names=names[1:3], shots=4), (1, 2))
    torch.testing.assert_close(moved.encode_text(), method.encode_text()[1:3], atol=1e-6, rtol=0)


@pytest.mark.parametrize("rules", ["strict", "paper"])
def test_half_of_a_dataset_is_learned_with_its_recipe(sample: Dataset, rules: Rules) -> None:
    flowers = dataclasses.replace(sample, name="oxford_flowers", public="oxford_flowers")
    task = protocols.base_to_new(flowers, 2, 1, rules=rules, validation="none")
    assert [target.name for target in task.targets] == ["oxford_flowers base", "oxford_flowers new"]
    tip: Any = learned("tip_adapter", task, views=0).method_
    assert tip.alpha_beta.tolist() == ([10.0, 1.0] if rules == "paper" else [2.0, 1.0])
    assert learned("dapt", task).method_.options.learning_rate == 0.002
    new = retarget_method(learned("coop", task).method_, task.targets[1])
    assert new.problem.dataset == "oxford_flowers"


def test_the_few_shot_protocol_equals_a_plain_fit(sample: Dataset) -> None:
    task = protocols.few_shot(sample, 2, 1)
    assert task.source.test == ()
    (target,) = measured("dca", task)
    plain = Classifier("dca", shots=2, seed=1, backbone=make_clip(), device="cpu", **SHORT).fit(sample)
    expected = plain.predict_proba([item.image for item in sample.test])
    np.testing.assert_allclose(target.adapted.probabilities, expected, atol=1e-6)


@pytest.fixture
def other_photos(photos: Path, tmp_path: Path) -> Path:
    """Another dataset: three of the classes, one of them under a name that training does not have."""
    folder = tmp_path / "other"
    for source, name in (("fish", "fish"), ("house", "house"), ("guitar", "violin")):
        shutil.copytree(photos / "test" / source, folder / "test" / name)
        shutil.copytree(photos / "train" / source, folder / "train" / name)
    return folder


def spec_of(photos: Path, tiny_folder: Path, **arguments: Any) -> Experiment:
    options = {"epochs": 2, "warmup_epochs": 0, "batch_size": 8}
    return Experiment(data=str(photos), method="dca", shots=2, backbone=str(tiny_folder), options=options, **arguments)


def test_base_to_new_has_a_folder_and_resumes(photos: Path, tiny_folder: Path, tmp_path: Path) -> None:
    spec, place = spec_of(photos, tiny_folder, protocol="base-to-new"), tmp_path / "m.dca"

    def stop(stage: str, done: int, total: int, note: str) -> None:
        if stage.startswith("testing"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(spec, place, progress=stop)
    assert partial_folder(place).is_dir()
    stages: list[str] = []
    result = run_experiment(spec, place, progress=lambda stage, *_: stages.append(stage)).result
    assert "training" not in stages, "the trained state was kept"
    assert isinstance(result, ExperimentResult)
    base, new = result.targets
    assert (base.classes, new.classes) == (5, 5)
    mean = 2 * base.accuracy * new.accuracy / max(base.accuracy + new.accuracy, 1e-9)
    assert result.harmonic_mean == pytest.approx(mean)
    assert json.loads((place / "result.json").read_text()) == result.to_dict()
    assert run_experiment(spec, place).classifier is None, "finished already"


def test_cross_dataset_tests_on_other_names(
    photos: Path, other_photos: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    spec = spec_of(photos, tiny_folder, protocol="cross-dataset", targets=(str(other_photos),))
    outcome = run_experiment(spec, tmp_path / "m.dca")
    (row,) = outcome.result.targets
    assert (row.name, row.classes, row.test_images, row.metric) == ("other", 3, 9, "euclidean")
    assert outcome.result.accuracy is None, "the source's own test images were not looked at"
    assert str(tmp_path) not in (tmp_path / "m.dca" / "spec.json").read_text()


def test_domain_shift_keeps_covariances_and_refuses_strangers(
    photos: Path, other_photos: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    spec = spec_of(photos, tiny_folder, protocol="domain-shift", targets=(str(other_photos),))
    with pytest.raises(UserError, match="not among the classes of") as caught:
        run_experiment(spec, tmp_path / "m.dca")
    assert any("violin" in line for line in caught.value.details)
    for part in ("train", "test"):
        (other_photos / part / "violin").rename(other_photos / part / "guitar")
    source, shifted = run_experiment(spec, tmp_path / "m.dca").result.targets
    assert (source.classes, shifted.classes) == (10, 3)
    assert {source.metric, shifted.metric} == {"mahalanobis"}


def test_targets_go_with_the_protocols_that_take_them(photos: Path, tiny_folder: Path, tmp_path: Path) -> None:
    for protocol, targets in (("cross-dataset", ()), ("few-shot", (str(photos),)), ("base-to-new", (str(photos),))):
        with pytest.raises(UserError, match="target"):
            run_experiment(spec_of(photos, tiny_folder, protocol=protocol, targets=targets), tmp_path / "m.dca")


def test_the_command_runs_every_protocol(
    photos: Path, other_photos: Path, tiny_folder: Path, tmp_path: Path, dca: Callable[..., Said]
) -> None:
    common = (
        "study",
        "run",
        photos,
        "--shots",
        1,
        "--backbone",
        tiny_folder,
        "--method",
        "dca",
        "--set",
        "epochs=1",
        "--set",
        "warmup_epochs=0",
    )
    told = dca(*common, "--protocol", "base-to-new", "-o", tmp_path / "a.dca")
    assert told.code == 0, told.err
    assert "of photos base" in told.out
    assert "harmonic mean" in told.out
    told = dca(*common, "--protocol", "cross-dataset", "--target", other_photos, "-o", tmp_path / "b.dca", "--json")
    assert json.loads(told.out)["targets"][0]["name"] == "other"


def test_a_method_that_knows_only_its_classes_is_refused_before_training(
    photos: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    spec = Experiment(data=str(photos), method="gda", shots=1, backbone=str(tiny_folder), protocol="base-to-new")
    with pytest.raises(UserError, match="a gda model knows only the classes") as caught:
        run_experiment(spec, tmp_path / "m.dca", progress=lambda *_: pytest.fail("began"))
    assert "coop, " in caught.value.hint
    assert "tip_adapter" not in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_images_are_held_out_only_where_there_is_no_test_part(photos: Path, tiny_folder: Path, tmp_path: Path) -> None:
    common = {"method": "zero_shot", "backbone": str(tiny_folder), "hold_out": 0.25}
    with pytest.raises(UserError, match="has test images, so none can be held out"):
        run_experiment(Experiment(data=str(photos), **common), tmp_path / "m.dca")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="fewer than 4 training images"):
        run_experiment(Experiment(data=str(photos / "train"), shots=4, **common), tmp_path / "m.dca")  # type: ignore[arg-type]


def test_a_draw_file_decides_the_images(photos: Path, tiny_folder: Path, tmp_path: Path) -> None:
    from dca.datasets import load_dataset
    from dca.datasets.draws import draw_few_shot, export_draw

    few = draw_few_shot(load_dataset(photos), 2, 7)
    export_draw(few, 2, 7, tmp_path / "draw.json")
    common = {"data": str(photos), "backbone": str(tiny_folder), "method": "zero_shot"}
    outcome = run_experiment(Experiment(draw=str(tmp_path / "draw.json"), **common), tmp_path / "drawn.dca")  # type: ignore[arg-type]
    assert outcome.classifier is not None
    assert [image.name for image in outcome.classifier.training_images_] == [
        "/".join(i.image.parts[-2:]) for i in few.train
    ]  # type: ignore[union-attr]
    for other in ({"shots": 2}, {"hold_out": 0.2}):
        with pytest.raises(UserError, match=r"cannot be combined: .*x\.json") as caught:
            run_experiment(Experiment(draw="x.json", **other, **common), tmp_path / "both.dca")  # type: ignore[arg-type]
        assert "leave out --" in caught.value.render("cli")
    with pytest.raises(UserError, match=r"x\.json: cannot be read \(No such file or directory\)") as caught:
        run_experiment(Experiment(draw="x.json", **common), tmp_path / "both.dca")  # type: ignore[arg-type]
    assert "dca datasets draw" in caught.value.render("cli")
