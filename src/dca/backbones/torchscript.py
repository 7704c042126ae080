"""Tensors of a TorchScript archive, the form of OpenAI's own files, read without executing anything in it.

Such a file is a zip of programs (`code/`), one pickle of objects and their tensors (`data.pkl`), and the values of the
tensors (`data/0`, `data/1`, ...). Only the pickle and the values are read. The pickle is scanned first, and whatever
class it names becomes an inert record (`dca.core.pickles`). All sizes are compared with that of the file before memory
is used: a pickle has limits of its own, values are stored uncompressed and none twice, and no tensor is larger than its
values.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dca.core.archives import check_directory
from dca.core.errors import UserError
from dca.core.pickles import PLAIN, scan_pickle

# OpenAI's largest pickle has less than 300 kB, and its directory 200 kB.
MOST_PICKLE, MOST_DIRECTORY = 4 * 2**20, 8 * 2**20
# Modules inside modules, and tensors: far above any CLIP.
DEEPEST, MOST_TENSORS, MOST_AXES = 64, 20_000, 8
ALLOWED = PLAIN | {"BINPERSID", "REDUCE", "BINFLOAT"}
TYPES = {
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "DoubleStorage": torch.float64,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
SCRIPTED = "__torch__"


# Records are tuples: a pickle can change the attributes of other objects (BUILD) after they were checked.


class _Storage(NamedTuple):
    """Values in the archive: the name of their file, their type and number."""

    key: str
    dtype: torch.dtype
    length: int


class _View(NamedTuple):
    """A tensor: which values of a storage it has, in which shape."""

    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class _Function:
    """A function that a pickle may call, and not change."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a function with a state")


class _Module:
    """What is left of a scripted object: its attributes."""

    def __init__(self) -> None:
        self.attributes: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise pickle.UnpicklingError("an object whose attributes are no dictionary")
        self.attributes = {str(name): value for name, value in state.items()}


def is_torchscript(path: Path) -> bool:
    """Whether a file is a zip with TorchScript's programs in it.

    Raises:
        UserError: If it is a zip that cannot be read within the limits.
    """
    if not zipfile.is_zipfile(path):
        return False
    with _open(path) as archive:
        return any("/code/" in name or name.endswith("/constants.pkl") for name in archive.namelist())


def read_torchscript(path: Path) -> dict[str, Tensor]:
    """Tensors of a TorchScript archive by the names of their modules. Nothing in the file is executed.

    Raises:
        UserError: If the file is damaged, or holds anything but modules, tensors and plain values.
    """
    with _open(path) as archive:
        members = {info.filename: info for info in archive.infolist()}
        _check_members(members, path.stat().st_size)
        top = next((name.removesuffix("data.pkl") for name in members if name.endswith("/data.pkl")), None)
        if top is None or top.count("/") != 1:
            raise ValueError("no data.pkl")
        if f"{top}byteorder" in members and archive.read(f"{top}byteorder").strip() != b"little":
            raise ValueError("values in another byte order")
        content = _read_limited(archive, members[f"{top}data.pkl"])
        views = dict(_walk(_Unpickler(content).load()))
        _check_views(views, path.stat().st_size)
        values = {view.storage.key: view.storage for view in views.values()}
        if any(values[view.storage.key] != view.storage for view in views.values()):
            raise ValueError("values of two types or numbers under one name")
        loaded = {key: _load(archive, members.get(f"{top}data/{key}"), storage) for key, storage in values.items()}
        return {
            name: torch.as_strided(loaded[view.storage.key], view.size, view.stride, view.offset)
            for name, view in views.items()
        }


@contextmanager
def _open(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive; whatever is wrong with it, in here or in the caller's block, becomes an error for the user."""
    try:
        with path.open("rb") as file:
            check_directory(file, MOST_DIRECTORY)
            with zipfile.ZipFile(file) as archive:
                yield archive
    except UserError:
        raise
    except Exception as error:  # damaged and hostile archives raise almost anything
        raise UserError(
            f"{path}: not a readable archive of tensors ({error}). Nothing in it was executed.",
            hint="take the file from its authors again, or its safetensors form",
        ) from error


def _check_members(members: dict[str, zipfile.ZipInfo], size: int) -> None:
    """Raise ValueError where the files inside need more bytes than the archive has: some would overlap."""
    if sum(info.compress_size for info in members.values()) > size:
        raise ValueError("files inside it overlap")


def _read_limited(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """The pickle, scanned; at most `MOST_PICKLE` bytes are unpacked."""
    with archive.open(info) as file:
        content = file.read(MOST_PICKLE + 1)
    scan_pickle(content, MOST_PICKLE, ALLOWED)
    return content


class _Unpickler(pickle.Unpickler):
    """An unpickler that knows tensors, plain containers and inert modules."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))

    def find_class(self, module: str, name: str) -> Any:
        """Inert stand-ins for what TorchScript writes; everything else is refused."""
        if module == SCRIPTED or module.startswith(f"{SCRIPTED}."):
            return _Module
        if module == "torch" and name in TYPES:
            return TYPES[name]
        if (module, name) not in FUNCTIONS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return FUNCTIONS[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        """("storage", type, key, device, number of values) as a record."""
        kind, dtype, key, _, length = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype) or not isinstance(key, str):
            raise pickle.UnpicklingError("values without type and name")
        return _Storage(key, dtype, _count(length))


def _make_view(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> _View:
    """A tensor as a record, if all its values are in its storage."""
    if not isinstance(storage, _Storage) or len(size) != len(stride) or len(size) > MOST_AXES:
        raise pickle.UnpicklingError("a tensor without values or shape")
    view = _View(storage, _count(offset), tuple(map(_count, size)), tuple(map(_count, stride)))
    steps = zip(view.size, view.stride, strict=True)
    last = view.offset + sum((n - 1) * step for n, step in steps) if prod(view.size) else view.offset
    if prod(view.size) > storage.length or last >= max(storage.length, 1):
        raise pickle.UnpicklingError(f"a tensor of shape {list(view.size)} in {storage.length} values")
    return view


def _make_dictionary(*arguments: Any) -> dict[Any, Any]:
    return {}


def _take_first(value: Any, *rest: Any) -> Any:
    return value


FUNCTIONS = {
    ("torch._utils", "_rebuild_tensor_v2"): _Function(_make_view),
    ("torch._utils", "_rebuild_parameter"): _Function(_take_first),
    ("collections", "OrderedDict"): _Function(_make_dictionary),
    ("torch.jit._pickle", "build_intlist"): _Function(_take_first),
    ("torch.jit._pickle", "build_doublelist"): _Function(_take_first),
    ("torch.jit._pickle", "build_boollist"): _Function(_take_first),
    ("torch.jit._pickle", "build_tensorlist"): _Function(_take_first),
    ("torch.jit._pickle", "restore_type_tag"): _Function(_take_first),
}


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**48:
        raise pickle.UnpicklingError(f"{value!r} where a number of values is expected")
    return value


def _walk(top: Any) -> Iterator[tuple[str, _View]]:
    """Tensors of modules inside modules, by the path to them; a module that is reached twice is named once."""
    waiting: list[tuple[str, Any, int]] = [("", top, 0)]
    seen, found = set[int](), 0
    while waiting:
        path, value, depth = waiting.pop()
        if isinstance(value, _View):
            found += 1
            if found > MOST_TENSORS:
                raise ValueError(f"more than {MOST_TENSORS:,} tensors")
            yield path, value
        elif isinstance(value, _Module) and id(value) not in seen:
            if depth > DEEPEST:
                raise ValueError(f"modules in modules, more than {DEEPEST} deep")
            seen.add(id(value))
            prefix = f"{path}." if path else ""
            waiting += [(f"{prefix}{name}", inner, depth + 1) for name, inner in value.attributes.items()]


def _check_views(views: dict[str, _View], size: int) -> None:
    """Raise ValueError where tensors together have many more values than the file: a few would stand for all."""
    total = sum(prod(view.size) * view.storage.dtype.itemsize for view in views.values())
    if total > 2 * size:
        raise ValueError("its tensors share their values")


def _load(archive: zipfile.ZipFile, info: zipfile.ZipInfo | None, storage: _Storage) -> Tensor:
    """All values of a storage, (length,)."""
    wanted = storage.length * storage.dtype.itemsize
    if info is None:
        raise ValueError(f"the values {storage.key} are missing")
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size or info.file_size < wanted:
        raise ValueError(f"the values {storage.key} are packed, or fewer than the tensor has")
    if not wanted:
        return torch.empty(0, dtype=storage.dtype)
    return torch.frombuffer(bytearray(archive.read(info)), dtype=storage.dtype, count=storage.length)
