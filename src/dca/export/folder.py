"""The folder of an exported model: model.onnx, classes.json, predict.py and, for the browser, a page."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dca.core.actions import allow_overwrite, choose_folder
from dca.core.errors import UserError
from dca.core.files import folder_in_one_rename, read_json, write_bytes, write_json, writing
from dca.core.progress import Progress, silent
from dca.data.dataset import Dataset
from dca.export import predict
from dca.export.int8 import quantize
from dca.export.measure import Checked, Int8Cost, Parity, images_to_check, int8_cost, parity
from dca.export.page import PAGE, runtime_for, write_page
from dca.export.program import convert, describe, need_onnx
from dca.model.card import LIBRARY
from dca.model.classifier import Classifier

MODEL, CLASSES, SCRIPT = "model.onnx", "classes.json", "predict.py"
# Weights over 2 GB are in a file of their own beside the model.
WEIGHTS = f"{MODEL}.data"


@dataclass(frozen=True)
class Exported:
    """What an export has written.

    Attributes:
        folder: The folder.
        sizes: Size of each file in bytes, by its path in the folder.
        parity: The float32 model against torch.
        cost: What 8-bit weights cost; None without them.
    """

    folder: Path
    sizes: dict[str, int]
    parity: Parity
    cost: Int8Cost | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `dca export --json` prints them."""
        return {
            "folder": str(self.folder),
            "files": self.sizes,
            "parity": asdict(self.parity),
            "int8": self.cost.to_dict() if self.cost else None,
        }


def export_onnx(
    model: Classifier | str | Path,
    folder: str | Path,
    *,
    int8: bool = False,
    web: bool = False,
    data: str | Path | Dataset | None = None,
    overwrite: bool = False,
    progress: Progress = silent,
) -> Exported:
    """Write a model as an ONNX program that needs no torch, and compare it with the original.

    Args:
        model: A fitted classifier, or the folder of a saved one. Its backbone must be on the CPU.
        folder: Folder to write; it appears when it is complete.
        int8: Store the backbone's weights as 8-bit integers and measure what that costs.
        web: Add a page that classifies images in the browser; needs npm once, to fetch onnxruntime-web.
        data: Labelled images to measure on; by default images of the built-in sample.
        overwrite: Replace an earlier export.
        progress: Receives the progress.

    Returns:
        The files and how far the exported model is from the original.

    Raises:
        UserError: If a package is missing, the model cannot be read, or the folder cannot be written.

    Example:
        >>> from dca import Classifier, export_onnx
        >>> export_onnx(Classifier(), "out")
        Traceback (most recent call last):
        ...
        dca.core.errors.UserError: this classifier is not fitted yet
          fix: call fit(...) or Classifier.from_pretrained(...)
    """
    need_onnx()
    require_free(target := Path(folder), overwrite=overwrite)
    found = model if isinstance(model, Classifier) else Classifier.from_pretrained(model, device="cpu")
    about = describe(found.record())
    require_cpu(found)
    runtime = runtime_for(about["preprocess"], progress) if web else None
    checked = images_to_check(found, data)
    with folder_in_one_rename(target) as made:
        same, cost = _write_model(found, made, about, checked, int8=int8, progress=progress)
        write_json(made / CLASSES, about)
        write_bytes(made / SCRIPT, inspect.getsource(predict).encode())
        if runtime is not None:
            write_page(made, runtime)
        sizes = {path.relative_to(made).as_posix(): path.stat().st_size for path in _files(made)}
    return Exported(target, sizes, same, cost)


def _write_model(
    model: Classifier, made: Path, about: dict[str, Any], checked: Checked, *, int8: bool, progress: Progress
) -> tuple[Parity, Int8Cost | None]:
    """Write `model.onnx` into the folder and measure it."""
    file, small = made / MODEL, made / f"int8-{MODEL}"
    with writing(file):
        progress("converting", 0, 1, "")
        of_backbone = convert(model.method_, file, about)
        progress("converting", 1, 1, "")
        same = parity(model, file, checked, progress)
        if not int8:
            return same, None
        quantize(file, small, of_backbone)
        cost = int8_cost(model, (file, small), checked, progress)
        small.replace(file)
        (made / WEIGHTS).unlink(missing_ok=True)
    return same, cost


def require_cpu(model: Classifier) -> None:
    """Raise if the model is not on the CPU in float32, which is what is exported."""
    clip = model.method_.clip
    if clip.device.type != "cpu" or clip.dtype.itemsize != 4:
        found = f"{clip.device} in {str(clip.dtype).removeprefix('torch.')}"
        raise UserError(
            f"the model is on {found}; an export needs it on the CPU in float32",
            hint="load it with Classifier.from_pretrained(folder, device='cpu', precision='fp32')",
        )


def require_free(target: Path, *, overwrite: bool) -> None:
    """Raise if something is at the output that may not be replaced."""
    elsewhere = choose_folder("onnx")
    if target.name in ("", ".."):
        raise UserError(f"'{target}' is not a name for a new folder", hint=elsewhere)
    with writing(target):
        if target.exists() and not target.is_dir():
            raise UserError(f"{target} exists and is a file", hint=elsewhere)
        if not target.is_dir() or not any(target.iterdir()):
            return
    if not holds_export(target):
        raise UserError(f"{target} exists and is not an export", hint=elsewhere)
    if not overwrite:
        raise UserError(f"{target} holds an export", hint=[elsewhere, allow_overwrite()])


def holds_export(folder: Path) -> bool:
    """Whether the folder holds an export, and nothing that an export does not have."""
    try:
        if read_json(folder / CLASSES).get("library") != LIBRARY:
            return False
    except UserError:
        return False
    known = {MODEL, WEIGHTS, CLASSES, SCRIPT, *PAGE}
    return {path.name for path in folder.iterdir()} <= known


def _files(folder: Path) -> list[Path]:
    """All files below a folder, by name."""
    return sorted(path for path in folder.rglob("*") if path.is_file())
