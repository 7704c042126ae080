"""The rooms of the house: who may import whom, and what no room may do."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"

BASE = {"errors", "seeds", "files", "options", "progress", "device"}
LOOP = {"support", "gradients", "train", "evaluate"}
TOP = {"inputs", "classifier", "run"}
# Room -> the rooms it may import, besides itself. A new room needs a line here.
MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(BASE, BASE),
    "clip": BASE,
    "data": BASE,
    "engine": BASE | {"clip"},
    "methods": BASE | {"clip"},
    **{room: BASE | LOOP | {"clip", "data", "methods", "engine"} for room in LOOP},
    "checkpoint": BASE | {"clip", "methods"},
    "inputs": BASE | {"data", "checkpoint"},
    "classifier": BASE | LOOP | {"clip", "data", "methods", "engine", "checkpoint", "inputs"},
    "run": BASE | LOOP | {"clip", "data", "methods", "checkpoint", "inputs", "classifier"},
    "transfer": BASE | LOOP | {"data", "methods", "classifier"},
    "plots": BASE,
    "demo": BASE | LOOP | TOP | {"data", "plots"},
    "studies": BASE | TOP | {"plots"},
    "serve": BASE | TOP | {"plots"},
    "cli": BASE | TOP | {"demo", "plots", "studies", "serve"},
    "pretrain": BASE | {"clip", "data", "plots"},
    "__main__": {"cli"},
}
# Commands that are about a lower room, and the parts of it that they may know.
EXCEPTIONS: dict[str, tuple[str, ...]] = {
    "dca.cli.fit": ("dca.methods.base",),
    "dca.cli.methods": ("dca.methods.base", "dca.methods.shape"),
    "dca.cli.datasets": ("dca.data",),
    "dca.cli.cache": ("dca.data",),
    "dca.studies": ("dca.methods.base", "dca.data.protocols"),
}
MOST_FUNCTION_LINES, MOST_FILE_LINES = 50, 400
# Enough of a house for the planted examples.
EMPTY = {"dca.clip.model": "", "dca.methods.metric": ""}


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
    """Every import from a lower room of an upper one, and every room without a rule."""
    packages = {".".join(name.split(".")[:depth]) for name in texts for depth in range(1, name.count(".") + 1)}
    wrong = []
    for module, text in texts.items():
        room = module.split(".")[1] if "." in module else ""
        if room and room not in MAY_IMPORT:
            wrong.append(f"{module}: no rule for the room '{room}'")
            continue
        excepted = next((parts for name, parts in EXCEPTIONS.items() if f"{module}.".startswith(f"{name}.")), ())
        for line, name in imports(module, text, packages) if room else ():
            other = name.split(".")[1] if "." in name else ""
            if other in ("", "__version__", room) or other in MAY_IMPORT[room]:
                continue
            if not any(f"{name}.".startswith(f"{part}.") for part in excepted):
                wrong.append(f"{module}:{line} imports {name}")
    return wrong


def wrong_calls(texts: Mapping[str, str]) -> list[str]:
    """What no room may do: choose a device, move the global seed, open pickles, print, use pyplot."""
    wrong = []
    for module, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                name = ast.unparse(node)
                banned = "pyplot" in name
            elif isinstance(node, ast.Attribute):
                name = ast.unparse(node)
                banned = name in ("torch.manual_seed", "pickle.load", "pickle.loads") or name.endswith(".pyplot")
                banned |= name == "torch.load" and module != "dca.clip.weights"
            elif isinstance(node, ast.Call):
                name = f"{ast.unparse(node.func)}()"
                banned = isinstance(node.func, ast.Attribute) and node.func.attr == "cuda"
                banned |= name in ("exec()", "eval()")
                banned |= name == "print()" and not module.startswith(("dca.cli", "dca.pretrain"))
            else:
                continue
            if banned:
                wrong.append(f"{module}:{getattr(node, 'lineno', 0)} {name}")
    return wrong


def too_long(texts: Mapping[str, str]) -> list[str]:
    """Functions and files over the limit."""
    wrong = []
    for module, text in texts.items():
        if len(text.splitlines()) > MOST_FILE_LINES:
            wrong.append(f"{module}: {len(text.splitlines())} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MOST_FUNCTION_LINES:
                    wrong.append(f"{module}.{node.name}: {lines} lines")
    return wrong


def test_no_room_imports_one_above_it():
    assert wrong_imports(sources()) == []


def test_no_room_does_what_is_banned():
    assert wrong_calls(sources()) == []


def test_functions_and_files_stay_short():
    assert too_long({name: text for name, text in sources().items() if not name.startswith("dca.pretrain")}) == []


def test_the_whole_house_is_looked_at():
    found = sources()
    assert {"dca.clip.weights", "dca.methods.dca", "dca.cli.fit", "dca.train", "dca.data.folder"} <= set(found)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("dca.clip.model", "from dca.data.images import stream"),
        ("dca.clip.model", "import dca.methods.base"),
        ("dca.clip.model", "def f():\n    from dca import train"),
        ("dca.clip.model", "if TYPE_CHECKING:\n    from dca.methods import base"),
        ("dca.clip.model", "from ..methods import base"),
        ("dca.clip", "from .. import data"),
        ("dca.clip.model", "import_module('dca.train')"),
        ("dca.data.folder", "from dca.clip import CLIP"),
        ("dca.methods.coop", "from dca.train import Trainer"),
        ("dca.methods.coop", "from dca.data import load_dataset"),
        ("dca.train", "from dca.classifier import Classifier"),
        ("dca.checkpoint", "from dca import classifier"),
        ("dca.errors", "from dca.clip import CLIP"),
        ("dca.plots", "from dca.train import Row"),
        ("dca.run", "from dca.cli.common import emit"),
        ("dca.classifier", "from dca.pretrain import train"),
        ("dca.cli.eval", "from dca.methods.base import get_method"),
        ("dca.cli.fit", "from dca.methods.metric import euclidean"),
        ("dca.cli.fit", "from dca.train import Trainer"),
        ("dca.cli.datasets", "from dca.clip import CLIP"),
        ("dca.attic.old", "import os"),
        ("dca.train", "from dca import Classifier"),
    ],
)
def test_a_planted_import_is_found(module: str, text: str):
    assert len(wrong_imports({**EMPTY, module: text})) == 1


def test_an_allowed_import_is_not_found():
    for module, text in [
        ("dca.methods.coop", "from dca.clip import CLIP\nfrom dca.methods import losses\nfrom . import metric"),
        ("dca.cli.fit", "from dca.methods.base import get_method\nfrom dca import options\nimport dca"),
        ("dca.cli.datasets", "from dca.data import catalog"),
        ("dca.train", "import torch\nfrom dca import __version__, seeds"),
    ]:
        assert wrong_imports({**EMPTY, module: text}) == []


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
    ],
)
def test_a_planted_call_is_found(text: str):
    assert wrong_calls({"dca.train": text}) != []


def test_calls_in_their_own_room_are_allowed():
    assert wrong_calls({"dca.clip.weights": "torch.load(path, weights_only=True)", "dca.cli.fit": "print(1)"}) == []
    assert wrong_calls({"dca.train": "torch.Generator().manual_seed(1); model.eval()"}) == []


def test_a_planted_long_function_or_file_is_found():
    long = "def f():\n" + "    x = 1\n" * 50
    assert too_long({"dca.a": long}) == ["dca.a.f: 51 lines"]
    assert too_long({"dca.b": "x = 1\n" * 401}) == ["dca.b: 401 lines"]
    assert too_long({"dca.c": "def f():\n" + "    x = 1\n" * 49 + "x = 1\n" * 350}) == []
