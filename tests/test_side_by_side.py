"""study/measurements/compare_with_authors.py: comparison with the authors' code, here with planted toy repositories."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

FOLDER = Path(__file__).resolve().parents[1] / "study" / "measurements"
MODULES = ("authors", "comparing", "repositories", "report", "setting", "vpt")
# A file that cannot be imported, with the class that the comparison of `vpt placement=original` takes from it.
TOKENS = """
import torchvision

class PromptedTransformer(Transformer):
    def __init__(self, prompts, config, size, vis):
        super().__init__(config, size, vis)
        self.n, width = prompts.NUM_TOKENS, config.hidden_size
        self.prompt_embeddings = nn.Parameter(torch.zeros(1, self.n, width))
        self.deep_prompt_embeddings = nn.Parameter(torch.zeros(config.transformer["num_layers"] - 1, self.n, width))

    def forward(self, x):
        x = self.embeddings(x)
        for i, layer in enumerate(self.encoder.layer):
            tokens = self.deep_prompt_embeddings[i - 1] if i else self.prompt_embeddings[0]
            rest = x[:, (1 + self.n if i else 1):]
            x, _ = layer(torch.cat([x[:, :1], SCALE * tokens.expand(len(x), -1, -1), rest], dim=1))
        return self.encoder.encoder_norm(x), []
"""
# A script as the authors write them: third-party packages, a registry, CUDA, float16, and progress on the terminal.
SCRIPT = """
import torchvision.transforms as transforms
from dassl.engine import REGISTRY, Trainer
from utils import scaled

@REGISTRY.register()
class Model(Trainer):
    mean = transforms.Normalize((0.5,), (0.5,))

def run(x, module):
    print("a progress bar")
    y = scaled(module.half().cuda()(x.cuda().type(torch.float32).to("cuda")))
    return y, torch.ones(1), float(y.detach().reshape(-1)[:1].cpu().numpy())

import torch
"""


@pytest.fixture(scope="module")
def side() -> Iterator[Any]:
    """The modules of the benchmark, and its script as `script`."""
    sys.path.insert(0, str(FOLDER))
    try:
        found = {name: importlib.import_module(f"side_by_side.{name}") for name in MODULES}
        spec = importlib.util.spec_from_file_location("side_by_side_script", FOLDER / "compare_with_authors.py")
        assert spec is not None
        assert spec.loader is not None
        found["script"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found["script"])
    finally:
        sys.path.remove(str(FOLDER))
    holder = ModuleType("side")
    vars(holder).update(found)
    yield holder
    for name in [name for name in sys.modules if name.split(".")[0] == "side_by_side"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def setting(side: Any) -> Any:
    return side.setting.make_setting(side.setting.Widths(vision=128, text=64, joint=64))


def plant(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def planted_vpt(repos: Path, scale: str) -> None:
    plant(repos / "vpt", {"src/models/vit_prompt/vit.py": TOKENS.replace("SCALE", scale)})


@pytest.fixture
def compared(
    side: Any, setting: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """The script on small widths: exit code, stdout and stderr."""
    monkeypatch.setattr(side.script, "make_setting", lambda: setting)

    def call(*arguments: object) -> tuple[int, str, str]:
        code = side.script.main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


def test_authors_code_that_does_the_same_agrees(compared: Any, tmp_path: Path) -> None:
    planted_vpt(tmp_path, "1.0")
    code, out, err = compared("--repos", tmp_path)
    assert code == 0, out
    (row,) = [line for line in out.splitlines() if "| agrees |" in line]
    assert row.startswith("| `vpt placement=original` | KMnP/vpt@unknown | ")
    assert err.startswith("vpt placement=original: agrees")
    assert f"git clone https://github.com/mlvlab/DAPT {tmp_path}/mlvlab+DAPT" in out
    assert out.count("| not compared |") == 11


def test_authors_code_that_does_something_else_differs(compared: Any, tmp_path: Path) -> None:
    planted_vpt(tmp_path, "-1.0")
    code, out, _ = compared("--repos", tmp_path, "--json")
    assert code == 1
    (found,) = [row for row in json.loads(out)["comparisons"] if row["verdict"] != "not compared"]
    assert (found["method"], found["verdict"]) == ("vpt placement=original", "differs")
    assert found["logits"] > 1e-2
    assert found["gradient"] > 1e-2


def test_a_repository_with_other_code_fails_and_says_how(compared: Any, tmp_path: Path) -> None:
    plant(tmp_path / "KMnP+vpt", {"src/models/vit_prompt/vit.py": "class Renamed:\n    pass\n"})
    code, out, _ = compared("--repos", tmp_path)
    assert code == 1
    assert "LookupError" in out
    assert "no definition of PromptedTransformer" in out


def test_without_any_repository_every_one_is_named_and_the_exit_code_is_2(compared: Any, tmp_path: Path) -> None:
    code, out, err = compared("--repos", tmp_path, "--json")
    rows = json.loads(out)["comparisons"]
    assert (code, err) == (2, "")
    assert {row["verdict"] for row in rows} == {"not compared"}
    assert all(row["note"].startswith(f"git clone https://github.com/{row['repository']} ") for row in rows)
    assert len({row["repository"] for row in rows}) == 10


def test_a_folder_that_does_not_exist_is_an_error(
    side: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        side.script.main(["--repos", str(tmp_path / "nowhere")])
    assert error.value.code == 2
    assert "no such folder" in capsys.readouterr().err


def test_authors_code_runs_on_the_cpu_in_float64_and_leaves_no_trace(
    side: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roots = [
        plant(tmp_path / name, {"main.py": SCRIPT, "utils.py": f"def scaled(x):\n    return {factor} * x\n"})
        for name, factor in (("one", 2), ("other", 3))
    ]

    def state() -> tuple[object, ...]:
        loaded = [sys.modules.get(name) for name in ("main", "utils", "torchvision", "dassl")]
        return loaded, list(sys.path), list(sys.meta_path), torch.Tensor.to, torch.get_default_dtype()

    before = state()
    for root, factor in zip(roots, (2, 3), strict=True):
        layer, x = nn.Linear(2, 2), torch.ones(1, 2).double()
        with side.authors.run_authors_code(root):
            script = importlib.import_module("main")
            y, made, first = script.run(x, layer)
            assert script.Model.__name__ == "Model"
        torch.testing.assert_close(y, factor * layer(x))
        assert y.dtype == made.dtype == torch.float64
        assert first == pytest.approx(y[0, 0].item())
    assert state() == before
    assert not list(tmp_path.rglob("__pycache__"))
    assert torch.ones(1).half().dtype == torch.float16
    assert capsys.readouterr() == ("", "")


def test_a_definition_is_taken_from_its_file_as_it_is(side: Any, tmp_path: Path) -> None:
    text = "import nothing_of_this_name\n\ndef f(x):\n    return g(x) + 1\n\nclass A(Base):\n    pass\n"
    path = plant(tmp_path, {"script.py": text}) / "script.py"
    assert side.authors.extract(path, "f", {"g": lambda x: 10 * x})(2) == 21
    assert issubclass(side.authors.extract(path, "A", {"Base": dict, "__name__": "planted"}), dict)
    with pytest.raises(LookupError, match="no definition of h"):
        side.authors.extract(path, "h", {})


def test_watched_names_are_replaced_and_recorded(side: Any) -> None:
    root = side.authors.Recorder(torch.sqrt)
    watched = side.authors.Watched(torch, sqrt=root)
    assert float(watched.sqrt(watched.tensor(4.0))) == 2.0
    ((arguments, result),) = root.calls
    assert (float(arguments[0]), float(result)) == (4.0, 2.0)


def observed(side: Any, logits: float = 0.0, loss: float = 0.0, gradient: float = 0.0) -> Any:
    gradients = {"a": torch.tensor([100.0, -50.0 + gradient]), "b": torch.tensor([1.0])}
    return side.comparing.Observed(torch.tensor([[1.0 + logits, 2.0]]), torch.tensor(3.0 + loss), gradients)


@pytest.mark.parametrize(
    ("changed", "agrees"),
    [
        ({}, True),
        ({"logits": 0.9e-4, "loss": 0.8e-5, "gradient": 0.9e-2}, True),
        ({"logits": 1.2e-4}, False),
        ({"loss": 1.2e-5}, False),
        ({"gradient": 1.2e-2}, False),
        ({"logits": float("nan")}, False),
        ({"gradient": float("nan")}, False),
    ],
)
def test_logits_loss_and_gradients_have_limits(side: Any, changed: dict[str, float], agrees: bool) -> None:
    assert side.comparing.difference(observed(side), observed(side, **changed)).agrees is agrees


def test_what_cannot_be_compared_is_an_error(side: Any) -> None:
    whole, Observed = observed(side), side.comparing.Observed
    with pytest.raises(ValueError, match="shapes"):
        side.comparing.difference(whole, Observed(torch.zeros(1, 3), whole.loss, whole.gradients))
    with pytest.raises(ValueError, match=r"gradients of \['a', 'b'\] and of \['a'\]"):
        side.comparing.difference(whole, Observed(whole.logits, whole.loss, {"a": whole.gradients["a"]}))
    trainless = side.comparing.difference(Observed(whole.logits), Observed(whole.logits))
    assert (trainless.logits, trainless.loss, trainless.gradient) == (0.0, None, None)


def test_a_repository_is_found_by_either_name_with_its_commit(side: Any, tmp_path: Path) -> None:
    repository, commit = side.repositories.Repository("someone/model"), side.repositories.commit

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        done = subprocess.run(["git", "-C", str(short), *identity, *arguments], capture_output=True, text=True)
        return done.stdout.strip()

    assert repository.find(tmp_path) is None
    short = plant(tmp_path / "model", {"a.py": "x = 1\n", "notes.txt": "text\n"})
    assert repository.find(tmp_path) == short
    assert commit(short) == "unknown"
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "First")
    assert commit(short) == git("rev-parse", "--short=7", "HEAD")
    # Large data files that are missing do not matter, changed code does.
    (short / "notes.txt").unlink()
    assert commit(short) == git("rev-parse", "--short=7", "HEAD")
    (short / "a.py").write_text("x = 2\n", encoding="utf-8")
    assert commit(short).endswith("+")
    # A plain folder in a clone has no commit of its own.
    assert commit(plant(short / "inner", {"b.py": ""})) == "unknown"
    full = plant(tmp_path / "someone+model", {"a.py": ""})
    assert repository.find(tmp_path) == full
