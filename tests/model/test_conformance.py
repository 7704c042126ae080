"""`dca.model.conformance`: each check fails for a method that breaks its promise, and says what is wrong."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conftest import make_clip
from dca.core.errors import UserError
from dca.methods.base import Batch, Head, Method, Step, Support
from dca.methods.registry import all_methods
from dca.methods.shared.heads import LinearHead
from dca.model.conformance import CHECKS, Check, Subject, ViolationError, check_method, tiny_backbone

PAGE = Path(__file__).resolve().parents[2] / "docs" / "add-a-method.md"
BY_NAME = {str(check): check for check in CHECKS}


def task_res() -> Any:
    """The method of docs/add-a-method.md."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    module = ModuleType("task_res_of_the_page")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(code, str(PAGE), "exec"), module.__dict__)
    return module.METHOD


TaskRes = task_res()


class Unnormalized(LinearHead):
    """Sums to two."""

    def __call__(self, f: Tensor) -> Tensor:
        return 2 * super().__call__(f)


class OfTheBatch(LinearHead):
    """Answers depend on the other images."""

    def __call__(self, f: Tensor) -> Tensor:
        return super().__call__(f - f.mean(dim=0))


class ReadsTheSize(LinearHead):
    """Not for any batch size."""

    def __call__(self, f: Tensor) -> Tensor:
        return super().__call__(f) if len(f) > 1 else super().__call__(f.flip(0))


class NoYear(TaskRes):
    paper = "A paper"


class WithHead(TaskRes):
    kind: Any = LinearHead

    def make_head(self) -> Head:
        return self.kind(self.clip.tau * self.weights)


class SumsToTwo(WithHead):
    kind = Unnormalized


class LooksAround(WithHead):
    kind = OfTheBatch


class CountsImages(WithHead):
    kind = ReadsTheSize


class Untitled(TaskRes):
    def step(self, batch: Batch) -> Step:
        step = super().step(batch)
        return Step({"mine": step.terms["cls"]}, step.probabilities)


class GlobalNoise(TaskRes):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.residual = nn.Parameter(torch.randn(self.residual.shape))


class ChangesBackbone(TaskRes):
    def finish(self, support: Support) -> None:
        super().finish(support)
        with torch.no_grad():
            self.clip.logit_scale.add_(0.1)


class Unused(TaskRes):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.extra = nn.Parameter(torch.zeros(3))


class Forgets(TaskRes):
    """The head reads what is not saved."""

    def finish(self, support: Support) -> None:
        super().finish(support)
        self.sharpness = 3.0

    def make_head(self) -> Head:
        return LinearHead.cosine(self.weights, getattr(self, "sharpness", 1.0) * self.clip.tau)


class TakesAnything(TaskRes):
    """Buffers of any shape are accepted."""

    results: Mapping[str, torch.dtype] = {"aside": torch.float32, **TaskRes.results}

    def finish(self, support: Support) -> None:
        super().finish(support)
        self.aside = torch.zeros(4)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = super().state_dict(*args, **kwargs)
        return {"aside": state["aside"], **state}


class CountsSteps(TaskRes):
    """Steps depend on a number that is lost when a fit is interrupted."""

    steps = 0

    def step(self, batch: Batch) -> Step:
        self.steps += 1
        step = super().step(batch)
        return Step({"cls": step.terms["cls"] * self.steps}, step.probabilities)


class PrefersTheFirst(TaskRes):
    def finish(self, support: Support) -> None:
        super().finish(support)
        self.weights[0] *= 2


class NeedsTwoImages(TaskRes):
    """Computes variances."""

    def prepare(self, support: Support) -> None:
        super().prepare(support)
        if int(support.labels.bincount().min()) < 2:
            raise ValueError("no variance of one image")


class RemovesTheWrongClass(TaskRes):
    def without_class(self, index: int) -> Any:
        return super().without_class(0)


class ChangesItself(TaskRes):
    def without_class(self, index: int) -> Any:
        other = super().without_class(index)
        self.head = self.head.__class__(2 * self.head.weight)
        return other


class WithoutHint(TaskRes):
    def with_class(self, name: str, images: Support) -> Any:
        raise UserError("no")


class WrongClasses(TaskRes):
    def retarget(self, problem: Any, sources: Any) -> Any:
        return self


class LosesOptions(TaskRes):
    @classmethod
    def parse_options(cls, values: Any, **more: Any) -> Any:
        return super().parse_options({**values, "alpha": values.get("alpha", 0.5) + 1})


class ShowsOneText(TaskRes):
    def prompt_features(self) -> Any:
        return self.weights


class Constant(TaskRes):
    def finish(self, support: Support) -> None:
        self.weights = F.normalize(torch.ones_like(self.residual), dim=-1)


BROKEN: list[tuple[type[Method], str, str]] = [
    (NoYear, "description", "paper has no year"),
    (LosesOptions, "options_survive_json", "was read back as"),
    (SumsToTwo, "probabilities", "sums of probabilities: differ by up to 1.0e"),
    (LooksAround, "probabilities", "answers for a batch of 1 and of 6"),
    (Untitled, "losses", "loss terms without a title: mine"),
    (GlobalNoise, "same_seed", "tensors of two fits with the same seed differ: residual"),
    (ChangesBackbone, "backbone", "the weights of the backbone were changed"),
    (Unused, "gradients", "no gradient reaches extra"),
    (Forgets, "saving", "not in `results`"),
    (TakesAnything, "damaged_state", "aside with a row too few was accepted"),
    (CountsSteps, "resuming", "of a straight and of a resumed fit differ"),
    (PrefersTheFirst, "order_of_classes", "answers with classes in another order"),
    (ShowsOneText, "reported", "prompt_features has shape (10, 16), not (M, C, D)"),
    (CountsImages, "export", "torch.export fails"),
    (RemovesTheWrongClass, "class_changes", "to remove a class leaves the names"),
    (ChangesItself, "class_changes", "to remove a class changed the model itself"),
    (WithoutHint, "class_changes", "refused without a hint"),
    (WrongClasses, "retarget", "for three classes it answers with shape (6, 10)"),
    (Constant, "accuracy", "less than three times chance"),
]


@pytest.fixture
def subject_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[Method]], Subject]:
    def make(kind: type[Method]) -> Subject:
        if kind.name not in all_methods() or all_methods()[kind.name] is not kind:
            monkeypatch.setattr(kind, "name", kind.__name__.lower(), raising=False)
            monkeypatch.setitem(all_methods(), kind.name, kind)
        return Subject(kind.name, make_backbone=make_clip)

    return make


@pytest.mark.parametrize(("kind", "name", "problem"), BROKEN, ids=[kind.__name__ for kind, *_ in BROKEN])
def test_a_method_that_breaks_a_promise_fails_its_check(
    subject_of: Callable[[type[Method]], Subject], kind: type[Method], name: str, problem: str
) -> None:
    with pytest.raises(ViolationError, match=re.escape(problem)):
        BY_NAME[name](subject_of(kind))


def test_what_a_method_raises_itself_is_a_failure_too(subject_of: Callable[[type[Method]], Subject]) -> None:
    with pytest.raises(ValueError, match="no variance of one image"):
        BY_NAME["few_images"](subject_of(NeedsTwoImages))


def test_every_check_has_a_method_that_fails_it() -> None:
    assert {name for _, name, _ in BROKEN} | {"few_images"} == set(BY_NAME)


def test_the_tiny_backbone_is_always_the_same() -> None:
    one, other = tiny_backbone().state_dict(), tiny_backbone().state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_command_runs_all_checks_and_tells_by_its_exit_code(
    dca: Any, monkeypatch: pytest.MonkeyPatch, subject_of: Callable[[type[Method]], Subject]
) -> None:
    cheap = [BY_NAME[name] for name in ("description", "probabilities", "losses", "few_images")]
    monkeypatch.setattr("dca.model.conformance.CHECKS", cheap)
    said = dca("methods", "check", "zero-shot")
    assert said.code == 0, said.err
    assert said.out.endswith("all 4 passed\n")
    subject_of(NeedsTwoImages)
    said = dca("methods", "check", NeedsTwoImages.name)
    assert said.code == 3
    assert "ValueError: no variance of one image" in said.out
    assert said.out.endswith("1 of 4 checks failed\n")
    rows = json.loads(dca("methods", "check", NeedsTwoImages.name, "--json").out)
    assert [bool(row["problem"]) for row in rows] == [False, False, False, True]
    said = dca("methods", "check", "zero_shto")
    assert said.code == 2
    assert "zero_shot" in said.err


def test_results_come_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = list[str]()
    checks = [Check(str(n), lambda subject, n=n: ran.append(str(n))) for n in range(2)]  # type: ignore[misc]
    monkeypatch.setattr("dca.model.conformance.CHECKS", checks)
    results = check_method("zero_shot")
    assert next(results).promise == "0"
    assert ran == ["0"]
