"""State dicts: read from files without executing anything, renamed to our tensors, and hashed.

A checkpoint family describes its tensor names by one function, our name -> `TensorSource`. Missing tensors, unexpected
tensors and the way to write a checkpoint all follow from it.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dca.backbones.torchscript import is_torchscript, read_torchscript
from dca.core.errors import UserError
from dca.core.hints import Hint
from dca.core.text import format_bytes

PICKLE_SUFFIXES = {".bin", ".pt", ".pth"}
# Bytes in which a safetensors file may describe its tensors, about 10,000 of them: 400,000 would take 20 s to read.
LARGEST_HEADER = 1_000_000
# Files in an archive; each tensor is one.
MOST_MEMBERS = 20_000


@dataclass(frozen=True)
class TensorSource:
    """Checkpoint tensors, stacked along the first axis; `transposed` if they are stored as (in, out)."""

    names: tuple[str, ...]
    transposed: bool = False

    def read(self, state: Mapping[str, Tensor]) -> Tensor:
        """Our tensor, made of the checkpoint's."""
        parts = [state[n].T if self.transposed else state[n] for n in self.names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def write(self, tensor: Tensor) -> dict[str, Tensor]:
        """The checkpoint's tensors, made of ours."""
        parts = tensor.chunk(len(self.names)) if len(self.names) > 1 else (tensor,)
        return {n: (p.T if self.transposed else p).contiguous() for n, p in zip(self.names, parts, strict=True)}


def read_safetensors(path: Path, hint: Hint = "") -> dict[str, Tensor]:
    """Tensors of a safetensors file, by name.

    Raises:
        UserError: If the file is damaged, or describes more tensors than any model has; it carries `hint`.
    """
    try:
        with path.open("rb") as file:
            described = int.from_bytes(file.read(8), "little")
        if LARGEST_HEADER < described <= path.stat().st_size:
            raise UserError(
                f"{path}: describes its tensors in {format_bytes(described)}; at most {format_bytes(LARGEST_HEADER)}",
                hint=hint,
            )
        return load_file(path)
    except (SafetensorError, OSError, ValueError, MemoryError) as error:
        raise UserError(f"{path}: not a readable safetensors file ({error})", hint=hint) from None


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Tensors of a file, by name. Nothing in the file is ever executed.

    Raises:
        UserError: If the file is damaged, or needs code to be read.
    """
    try:
        state: Any = _read_pickle(path) if path.suffix in PICKLE_SUFFIXES else read_safetensors(path)
    except UserError:
        raise
    except Exception as error:  # readers raise almost anything on damaged files
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{path}: not a readable checkpoint ({reason})", hint="copy it again") from None
    state = state.get("state_dict", state)
    if not isinstance(state, dict):
        raise UserError(f"{path}: its state_dict is a {type(state).__name__}, not tensors by name")
    return {str(name).removeprefix("module."): t for name, t in state.items() if isinstance(t, Tensor)}


def _refuse_bomb(path: Path) -> None:
    """Raise for an archive that takes far more memory than its file, or very long: torch compresses nothing."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    size = sum(member.file_size for member in members)
    if len(members) > MOST_MEMBERS or size > path.stat().st_size:
        raise UserError(f"{path}: an archive of {len(members):,} files, {format_bytes(size)} unpacked; refused")


def _read_pickle(path: Path) -> dict[str, Any]:
    """Tensors of a TorchScript archive; else load with `weights_only`: whatever would need code is refused."""
    if is_torchscript(path):
        return read_torchscript(path)
    _refuse_bomb(path)
    hint = "use the checkpoint's safetensors form, or write one (safetensors.torch.save_file) where you trust it"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{path}: not a plain file of tensors; refused ({reason})", hint=hint) from None
    if not isinstance(state, dict):
        raise UserError(f"{path}: holds a {type(state).__name__}, not a state dict", hint=hint)
    return state


def rename_tensors(
    state: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    source_of: Callable[[str], TensorSource],
    *,
    ignored: re.Pattern[str],
    path: Path,
) -> dict[str, Tensor]:
    """Our float32 tensors, made of a checkpoint's.

    Args:
        state: The checkpoint's tensors, by its names.
        expected: Tensors of our shapes, by our names; may be on the meta device.
        source_of: Where the checkpoint keeps the tensor of one of our names.
        ignored: Names in the checkpoint that are not weights.
        path: The checkpoint, for the error message.

    Raises:
        UserError: One error that lists every missing, unexpected, misshapen or non-finite tensor.
    """
    problems: list[str] = []
    used: set[str] = set()
    renamed: dict[str, Tensor] = {}
    for name, target in expected.items():
        source = source_of(name)
        used.update(source.names)
        if missing := [n for n in source.names if n not in state]:
            problems += [f"missing {n}" for n in missing]
            continue
        tensor = source.read(state)
        if repeats_values(tensor):
            problems.append(f"{', '.join(source.names)}: fewer values than its shape {tuple(tensor.shape)}")
            continue
        if target.dim() == 0 and tensor.numel() == 1:
            tensor = tensor.reshape(())  # some files hold scalars as (1,)
        if tensor.shape != target.shape:
            problems.append(f"{', '.join(source.names)}: shape {tuple(tensor.shape)}, expected {tuple(target.shape)}")
        elif not torch.isfinite(tensor).all():
            problems.append(f"{', '.join(source.names)}: holds NaN or infinite values")
        renamed[name] = tensor.float().contiguous()
    problems += [f"unexpected {n}" for n in sorted(set(state) - used) if not ignored.match(n)]
    if problems:
        raise UserError(
            f"{path}: the tensors are not those of the model its configuration describes",
            details=problems,
            hint="take weights and configuration from the same checkpoint",
        )
    return renamed


def repeats_values(tensor: Tensor) -> bool:
    """Whether a tensor repeats its values: a copy of it, as a hostile file may describe it, could fill all memory."""
    return tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()


def hash_backbone(state: Mapping[str, Tensor], parts: Iterable[str]) -> str:
    """sha256 of weights, by their names, and of what else decides the features: tokenizer, preprocessing, sizes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    for part in parts:
        digest.update(part.encode())
    return digest.hexdigest()
