"""Which package may import which, and what no package may do."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"

# Packages in the order of the data flow: each may import those before it, and itself.
ORDER = (
    *("core", "stats", "images", "features", "datasets", "backbones", "methods", "training", "model"),
    *("plots", "runs", "report", "export", "estimators", "projects", "serve", "cli", "__main__"),
    # The second floor: no package of the product imports it.
    "study",
)
# Stricter than the order: what a package may import besides itself.
MAY_IMPORT: dict[str, set[str]] = {
    **{name: set(ORDER[:place]) for place, name in enumerate(ORDER)},
    "images": {"core"},
    "features": {"core"},
    "datasets": {"core", "images"},
    "backbones": {"core", "images", "features", "datasets.classes"},
    "methods": {"core", "stats", "backbones", "datasets.classes"},
    "plots": {"core", "stats"},
    "estimators": {"core", "stats", "methods"},
    "__main__": {"cli"},
}
# Enough of a house for the planted examples.
EMPTY = {"dca.backbones.clip.model": "", "dca.methods.shared.metric": ""}


def sources(root: Path = SOURCE) -> dict[str, str]:
    """Module name -> text of every file under src."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text(encoding="utf-8")
    return found


def imports(module: str, text: str, packages: set[str]) -> Iterator[tuple[int, str]]:
    """Line and full name of everything of ours that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                inside = module.split(".") if module in packages else module.split(".")[:-1]
                base = ".".join([*inside[: len(inside) - node.level + 1], *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        for name in names:
            if name == "dca" or name.startswith("dca."):
                yield getattr(node, "lineno", 0), name


def wrong_imports(texts: Mapping[str, str]) -> list[str]:
    """Every import of a package further right, and every package without a rule."""
    packages = {".".join(name.split(".")[:depth]) for name in texts for depth in range(1, name.count(".") + 1)}
    wrong = []
    for module, text in texts.items():
        if not module.startswith("dca.") or module == "dca":
            continue
        package = module.split(".")[1]
        if package not in MAY_IMPORT:
            wrong.append(f"{module}: no rule for the package '{package}'")
            continue
        for line, name in imports(module, text, packages):
            inside = name.partition(".")[2]
            if inside in ("", "__version__") or inside.split(".")[0] == package:
                continue
            if not any(f"{inside}.".startswith(f"{allowed}.") for allowed in MAY_IMPORT[package]):
                wrong.append(f"{module}:{line} imports {name}")
    return wrong


# What may rename files and folders: the one commit primitive; the journal of projects, which never replaces anything;
# files that are fetched in parts; files within an export that is not in its place yet; and the program of an export,
# which must not need this library. All others call `atomic_write` or `atomic_replace`.
RENAMING = (
    "dca.core.files", "dca.projects.steps", "dca.datasets.downloads", "dca.export.folder", "dca.export.predict"
)  # fmt: skip


def is_rename(call: ast.Call) -> bool:
    """Whether it looks like `Path.rename`, or `Path.replace`, which has one argument where that of texts has two."""
    if not isinstance(call.func, ast.Attribute):
        return False
    return call.func.attr == "rename" or (call.func.attr == "replace" and len(call.args) == 1 and not call.keywords)


def wrong_calls(texts: Mapping[str, str]) -> list[str]:
    """What no room may do: choose a device, move the global seed, open pickles, print, use pyplot, rename files."""
    wrong = []
    for module, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                name = ast.unparse(node)
                banned = "pyplot" in name
            elif isinstance(node, ast.Attribute):
                name = ast.unparse(node)
                banned = name in ("torch.manual_seed", "pickle.load", "pickle.loads") or name.endswith(".pyplot")
                banned |= name == "torch.load" and module != "dca.backbones.state_dict"
                banned |= name in ("os.rename", "os.replace", "shutil.move") and module not in RENAMING
            elif isinstance(node, ast.Call):
                name = f"{ast.unparse(node.func)}()"
                banned = isinstance(node.func, ast.Attribute) and node.func.attr == "cuda"
                banned |= is_rename(node) and module.startswith("dca.") and module not in RENAMING
                banned |= name in ("exec()", "eval()")
                banned |= name == "print()" and not module.startswith(("dca.cli", "dca.study.commands"))
            else:
                continue
            if banned:
                wrong.append(f"{module}:{getattr(node, 'lineno', 0)} {name}")
    return wrong


def test_no_room_imports_one_above_it():
    assert wrong_imports(sources()) == []


def test_no_room_does_what_is_banned():
    assert wrong_calls({**sources(), **sources(SOURCE.parent / "pretrain")}) == []


def test_the_whole_house_is_looked_at():
    found = sources()
    assert {
        "dca.backbones.state_dict",
        "dca.methods.dca",
        "dca.cli.fit",
        "dca.training.loop",
        "dca.datasets.folder",
    } <= set(found)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("dca.images.crops", "from dca.datasets import load_dataset"),
        ("dca.backbones.clip.model", "import dca.methods.base"),
        ("dca.backbones.clip.model", "def f():\n    from dca.training import loop"),
        ("dca.backbones.clip.model", "if TYPE_CHECKING:\n    from dca.methods import base"),
        ("dca.backbones.clip.model", "from ...methods import base"),
        ("dca.backbones.clip", "from ... import datasets"),
        ("dca.backbones.clip.model", "import_module('dca.training.loop')"),
        ("dca.datasets.folder", "from dca.backbones.clip import CLIP"),
        ("dca.methods.coop", "from dca.training.loop import Trainer"),
        ("dca.methods.coop", "from dca.datasets import load_dataset"),
        ("dca.training.loop", "from dca.model.classifier import Classifier"),
        ("dca.model.checkpoint", "from dca.runs import run"),
        ("dca.core.errors", "from dca.backbones.clip import CLIP"),
        ("dca.plots", "from dca.training.loop import Row"),
        ("dca.runs.run", "from dca.cli.common import emit"),
        ("dca.plots.charts", "from dca.runs.run import run"),
        ("dca.cli.fit", "from dca.study.experiment import Experiment"),
        ("dca.cli.report", "def f():\n    from dca.study.index import is_runs_folder"),
        ("dca.serve.api", "import dca.study"),
        ("dca.attic.old", "import os"),
        ("dca.training.loop", "from dca import Classifier"),
    ],
)
def test_a_planted_import_is_found(module: str, text: str):
    assert len(wrong_imports({**EMPTY, module: text})) == 1


def test_an_allowed_import_is_not_found():
    for module, text in [
        (
            "dca.methods.coop",
            "from dca.backbones.clip import CLIP\nfrom dca.methods import shared\nfrom . import metric",
        ),
        ("dca.backbones.preprocess", "from dca.images.decode import to_rgb"),
        ("dca.cli.fit", "from dca.methods.registry import get_method\nfrom dca.core import options\nimport dca"),
        ("dca.cli.datasets", "from dca.datasets import catalog"),
        ("dca.study.commands.run", "from dca.cli.fit import fit_options"),
        ("dca.training.loop", "import torch\nfrom dca import __version__\nfrom dca.core import seeds"),
    ]:
        assert wrong_imports({**EMPTY, module: text}) == []


def test_few_modules_lie_at_the_top():
    top = [path.stem for path in (SOURCE / "dca").glob("*.py")]
    assert len(top) <= 3, top


@pytest.mark.parametrize(
    "text",
    [
        "x.cuda()",
        "torch.load(path)",
        "load = torch.load",
        "torch.manual_seed(1)",
        "import matplotlib.pyplot as plt",
        "from matplotlib import pyplot",
        "print('hello')",
        "pickle.load(file)",
        "eval(text)",
        "os.replace(new, target)",
        "shutil.move(new, target)",
        "new.rename(target)",
        "new.replace(target)",
    ],
)
def test_a_planted_call_is_found(text: str):
    assert wrong_calls({"dca.training.loop": text}) != []


def test_calls_in_their_own_room_are_allowed():
    assert (
        wrong_calls({"dca.backbones.state_dict": "torch.load(path, weights_only=True)", "dca.cli.fit": "print(1)"})
        == []
    )
    assert wrong_calls({"dca.training.loop": "torch.Generator().manual_seed(1); model.eval()"}) == []
