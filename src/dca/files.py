"""Writing so that a reader never meets half a file."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dca.errors import UserError


def write_bytes(path: Path, data: bytes) -> None:
    """Write under a temporary name, flush to disk, then rename."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """An indented JSON file, atomically."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; anything else is an error that names the file."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not readable JSON ({error})") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: expected a JSON object, found a {type(raw).__name__}")
    return raw


def publish(made: Path, target: Path) -> None:
    """Put the finished folder `made` in the place of `target`, whatever was there before."""
    if target.exists():
        old = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.old."))
        os.replace(target, old / "was")
        os.replace(made, target)
        shutil.rmtree(old)
    else:
        os.replace(made, target)


def as_text(value: Mapping[str, Any]) -> str:
    """Canonical JSON text, for hashing."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
