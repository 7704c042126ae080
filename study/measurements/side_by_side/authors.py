"""Run the authors' code as it is: import it without its third-party packages, on a CPU, in float64.

Nothing of it is rewritten. What it imports but does not need for a comparison is stubbed. Tensors stay on the CPU and
in float64 where it asks for a GPU, float16 or float32. Definitions that cannot be imported are taken from their file.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.machinery
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

# Packages that some of the repositories import for data, logging or other models.
THIRD_PARTY = (
    "colorlog", "dassl", "ftfy", "gdown", "open_clip", "pandas", "pkg_resources", "regex", "scipy", "sklearn",
    "torchvision",
)  # fmt: skip


class _AnyAttribute(type):
    """Metaclass of a class with every attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class Stub(metaclass=_AnyAttribute):
    """Stands for any name of a stubbed package: a base class, a function, a decorator."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Itself; as a decorator, what it decorates."""
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __lt__(self, other: object) -> bool:
        # Versions of packages are compared; none is too old.
        return False


class _StubModule(ModuleType):
    """A module with every attribute."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub


class _Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stubs for packages of the given names and for their modules."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = set(names)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """A stub if the package is one of the names."""
        if fullname.split(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """A module with every attribute."""
        return _StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


@contextlib.contextmanager
def import_from(root: Path, stubs: Sequence[str] = THIRD_PARTY) -> Iterator[None]:
    """Within, modules of the repository at `root` can be imported, and packages named in `stubs` are stubs.

    Several repositories have modules of the same name (`clip`, `utils`, `train`): each context has its own. Nothing is
    written into the repository.
    """
    own = {path.stem for path in root.iterdir() if path.is_dir() or path.suffix == ".py"} | set(stubs)

    def loaded() -> dict[str, ModuleType]:
        return {name: module for name, module in sys.modules.items() if name.split(".")[0] in own}

    kept, finder, threads = loaded(), _Stubs(stubs), torch.get_num_threads()
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    for name in kept:
        del sys.modules[name]
    sys.path.insert(0, str(root))
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.path.remove(str(root))
        sys.meta_path.remove(finder)
        for name in loaded():
            del sys.modules[name]
        sys.modules.update(kept)
        torch.set_num_threads(threads)
        sys.dont_write_bytecode = written


def _should_stay(value: Any) -> bool:
    """Whether an argument of `to` or `type` may stay: it is neither a GPU nor a type of lower precision."""
    if isinstance(value, str | torch.device):
        return not str(value).startswith("cuda")
    return value not in (torch.float16, torch.float32)


def _keep_on_cpu(move: Callable[..., Any]) -> Callable[..., Any]:
    """`to` or `type` of tensors or modules that ignores what is not to change."""

    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
        kept = tuple(value for value in args if isinstance(value, Tensor) or _should_stay(value))
        named = {name: value for name, value in kwargs.items() if _should_stay(value)}
        # Without arguments `type` gives the name of the type.
        return move(self, *kept, **named) if kept or named or not (args or kwargs) else self

    return moved


def _number_from_one(array_of: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """`numpy` of tensors such that float() of one element works, which recent versions of NumPy refuse."""

    def numpy(self: Tensor) -> Any:
        array = array_of(self)
        return array.reshape(()) if array.size == 1 else array

    return numpy


def _to_float64(self: Any) -> Any:
    return self.double()


def _itself(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Within, tensors and modules stay on the CPU, numbers are float64, and nothing is printed or logged."""
    replaced: list[tuple[Any, str, Any]] = [
        (Tensor, "type", _keep_on_cpu(Tensor.type)),
        (Tensor, "numpy", _number_from_one(Tensor.numpy)),
    ]
    for kind in (Tensor, nn.Module):
        replaced += [(kind, "cuda", _itself), (kind, "half", _to_float64), (kind, "float", _to_float64)]
        replaced += [(kind, "to", _keep_on_cpu(kind.to))]
    default, disabled = torch.get_default_dtype(), logging.root.manager.disable
    with contextlib.ExitStack() as stack:
        for kind, name, function in replaced:
            stack.enter_context(mock.patch.object(kind, name, function))
        stack.callback(torch.set_default_dtype, default)
        torch.set_default_dtype(torch.float64)
        stack.callback(logging.disable, disabled)
        logging.disable(logging.CRITICAL)
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def run_authors_code(root: Path, stubs: Sequence[str] = THIRD_PARTY) -> Iterator[None]:
    """`importing` and `on_cpu` together."""
    with import_from(root, stubs), on_cpu():
        yield


def extract(path: Path, name: str, namespace: dict[str, Any]) -> Any:
    """The function or class `name` of a file, made from its own text with the given globals.

    For definitions whose file cannot be imported, and for classes that need another base class.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name]
    if not found:
        raise LookupError(f"{path}: no definition of {name}")
    exec(compile(ast.Module(body=[found[-1]], type_ignores=[]), str(path), "exec"), namespace)
    return namespace[name]


class Recorder:
    """Calls a function and keeps the arguments and the result of every call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls: list[tuple[tuple[Any, ...], Any]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the function."""
        result = self.function(*args, **kwargs)
        self.calls.append((args, result))
        return result


class Watched:
    """A module in which some names are replaced, e.g. by recorders."""

    def __init__(self, module: ModuleType, **replaced: Any) -> None:
        self._module = module
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
