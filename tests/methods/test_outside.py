"""The method of docs/add-a-method.md, as a file of ours and as another package's."""

from __future__ import annotations

import json
import logging
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.methods.base import Batch, Method, Problem
from dca.methods.dca import DCA
from dca.methods.registry import all_methods, get_method
from dca.methods.summary import parameter_count
from dca.methods.zero_shot import ZeroShot
from dca.model.conformance import CHECKS, Check, Subject
from oracles import towers
from oracles.images import Images

PAGE = Path(__file__).resolve().parents[2] / "docs" / "add-a-method.md"
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
CLASSES = ("cat", "dog", "x")


def distribution(folder: Path, package: str, code: str, points: dict[str, str]) -> None:
    """What an installer would leave of a package: its module, and metadata with its entry points."""
    (folder / f"{package}.py").write_text(code, encoding="utf-8")
    info = folder / f"{package}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n", encoding="utf-8")
    lines = [f"{name} = {package}:{attribute}" for name, attribute in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[dca.methods]", *lines, ""]), encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on the path where packages can be put."""
    folder = tmp_path_factory.mktemp("site")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.startswith("dca_outside")]:
        del sys.modules[name]
    all_methods.cache_clear()


@pytest.fixture(scope="module")
def outside(site: Path) -> type[Method]:
    """The page's method, found through the entry point of a package."""
    assert "task_res" not in all_methods()
    distribution(site, "dca_outside", CODE, {"task_res": "TaskRes"})
    all_methods.cache_clear()
    return get_method("task-res")


@pytest.fixture(scope="module")
def subject(outside: type[Method]) -> Subject:
    return Subject(outside.name, make_backbone=make_clip)


def test_the_page_s_file_registers_itself() -> None:
    module = ModuleType("task_res")
    sys.modules["task_res"] = module
    try:
        exec(compile(CODE, str(PAGE), "exec"), module.__dict__)
        assert module.METHOD.name == "task_res"
        assert parameter_count(module.METHOD) == 51_200
    finally:
        del sys.modules["task_res"]


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_it_does_what_every_method_must(subject: Subject, check: Check) -> None:
    check(subject)


def test_a_class_is_removed_with_its_rows(subject: Subject) -> None:
    method, f = subject.fitted.method_, subject.features
    whole = method.classify(f)[:, [0, *range(2, len(method.problem.names))]]
    left = method.without_class(1).classify(f)
    torch.testing.assert_close(left, whole / whole.sum(dim=1, keepdim=True), atol=1e-5, rtol=1e-4)


def test_its_step_equals_its_equations(outside: type[Method], clip: CLIP) -> None:
    images, plain = Images((2, 1, 1)), towers.double(clip)
    problem = Problem(names=CLASSES, shots=1, template="a photo of {}.")
    method: Any = outside.build(clip, problem, outside.Options())
    with torch.no_grad():
        method.residual.copy_(torch.randn(3, 16, generator=torch.Generator().manual_seed(0)))
    method.prepare(images)
    rows = clip.encode_image(images.pixels)
    step = method.step(Batch(rows, images.labels, torch.Generator()))
    with torch.no_grad():
        t = plain.encode_text([f"a photo of {name}." for name in CLASSES]).double()
        w = t + 0.5 * method.residual.double()
        f = torch.stack([towers.encode_image(plain, image) for image in images.pixels.double()])
        logits = torch.stack([torch.stack([plain.tau * (a @ b) / b.norm() for b in w]) for a in f])
    assert float(step.terms["cls"].detach()) == pytest.approx(towers.cross_entropy(logits, images.labels), abs=1e-5)
    torch.testing.assert_close(step.probabilities.double(), logits.softmax(-1), atol=1e-5, rtol=0)


def test_without_a_step_it_is_zero_shot(outside: type[Method], clip: CLIP) -> None:
    images, problem = Images((1, 1, 1)), Problem(names=CLASSES, shots=1)
    method, zero_shot = (
        outside.build(clip, problem, outside.Options()),
        ZeroShot.build(clip, problem, ZeroShot.Options()),
    )
    method.prepare(images)
    method.finish(images)
    method.build_head()
    zero_shot.finish()
    zero_shot.build_head()
    f = F.normalize(clip.encode_image(images.pixels), dim=-1)
    torch.testing.assert_close(method.classify(f), zero_shot.classify(f))


def test_the_command_line_knows_it(outside: type[Method], dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path):
    rows = {row["name"]: row for row in json.loads(dca("methods", "--json").out)}
    assert rows["task_res"]["trained_parameters"] == 51_200
    assert "alpha = 0.5" in dca("methods", "show", "task_res").out
    model = tmp_path / "photos.dca"
    said = dca(
        "fit", photos, "-o", model, "--method", "task_res", "--shots", 2, "--backbone", tiny_folder, "--set", "epochs=2"
    )
    assert said.code == 0, said.err
    config = json.loads((model / "config.json").read_text())
    assert (config["method"], config["package"]) == ("task_res", "dca_outside")
    assert dca("eval", model, photos).code == 0


def test_a_damaged_model_of_it_is_refused(subject: Subject) -> None:
    method = subject.fitted.method_
    with pytest.raises(Exception, match="not those of a 'task_res' model"):
        method.restore({**method.state_dict(), "weights": torch.ones(2, 16)})


def test_the_page_s_loss_replaces_one_term_of_dca_and_encodes_texts_once(clip: CLIP) -> None:
    (block,) = re.findall(r"\n( {4}class HingeDCA.*?\n)\n?##", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    code = textwrap.dedent(block)
    names: dict[str, Any] = {"DCA": DCA, "torch": torch}
    exec(compile(code, str(PAGE), "exec"), names)
    images, steps, texts = Images((2, 2, 2)), {}, []
    for kind in (DCA, names["HingeDCA"]):
        method = kind.build(clip, Problem(names=CLASSES, shots=2, seed=1), kind.Options(alpha=2.0, beta=0.5))
        with torch.no_grad():
            for parameter in method.parameters():
                parameter.copy_(torch.linspace(-0.1, 0.1, parameter.numel()).view(parameter.shape))
        method.prepare(images)
        encode = method.encode_text
        method.encode_text = lambda *args, encode=encode: texts.append(args) or encode(*args)
        steps[kind] = method.step(images.batch())
        if kind is not DCA:
            flat = encode().detach().flatten(0, 1)
            apart = [max(0.0, 1 - float((a - b).norm())) for a in flat for b in flat]
            assert float(steps[kind].terms["ts"].detach()) == pytest.approx(0.5 * sum(apart) / len(apart), abs=1e-4)
    assert len(texts) == 2
    one, other = (steps[kind].terms for kind in steps)
    assert list(one) == list(other) == ["cls", "in", "ts"]
    assert torch.equal(one["in"], other["in"])


def test_broken_packages_are_reported_and_left_out(
    outside: type[Method], site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    distribution(site, "dca_outside_broken", "raise RuntimeError('half installed')", {"broken": "Broken"})
    distribution(site, "dca_outside_number", "METHOD = 3", {"number": "METHOD"})
    code = "from dca.methods.zero_shot import ZeroShot\n\n\nclass Mine(ZeroShot):\n    pass\n"
    distribution(site, "dca_outside_same", code, {"zero_shot": "Mine"})
    all_methods.cache_clear()
    with caplog.at_level(logging.WARNING):
        found = all_methods()
    assert {"task_res", "dca"} <= found.keys()
    assert not {"broken", "number"} & found.keys()
    assert found["zero_shot"] is ZeroShot
    assert "method 'broken' of dca_outside_broken cannot be loaded: half installed" in caplog.text
    assert "method 'number' of dca_outside_number is not a class" in caplog.text
