"""A smaller ONNX file: the backbone's weights as 8-bit integers.

How far an exported model is from the original, measured on images.

The folder of an exported model: model.onnx, classes.json, predict.py and, for the browser, a page.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dca.core.errors import UserError
from dca.core.files import atomic_folder, explain_write_errors, read_json, write_bytes, write_json
from dca.core.hints import allow_overwrite, choose_folder
from dca.core.progress import Progress, silent
from dca.datasets.dataset import Dataset
from dca.datasets.sample import load_sample
from dca.export import predict
from dca.export.page import PAGE, runtime_for, write_page
from dca.export.program import convert, describe, need_onnx
from dca.images.decode import ImageLike, StoredImage
from dca.model.classifier import Classifier
from dca.model.inputs import as_dataset, match_classes
from dca.model.records import LIBRARY


def quantize(source: Path, target: Path, of_backbone: Sequence[str]) -> None:
    """Write `source` with 8-bit weights, one scale per output channel; activations are quantized while it runs.

    of_backbone: names of the nodes of the backbone. Only their matrix products change: the head holds few weights, and
    its distances and scaled cosines need the precision.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    program = onnx.load(source)
    # The known shapes become wrong where weights are transposed; they are inferred again.
    program.graph.ClearField("value_info")
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)  # it recommends a preprocessing that this program has had
    try:
        quantize_dynamic(
            program,
            target,
            op_types_to_quantize=["MatMul", "Gemm"],
            nodes_to_quantize=list(of_backbone),
            per_channel=True,
            weight_type=QuantType.QInt8,
        )
    finally:
        root.setLevel(before)


# Images on which the exported model is compared with torch.
COMPARED = 100
# Largest difference of a probability that rounding explains.
ROUNDING = 1e-4


@dataclass(frozen=True)
class Checked:
    """Images to measure on. truth: class index of each, (N,); None if they are not of the model's classes."""

    images: list[ImageLike]
    truth: NDArray[np.int64] | None


@dataclass(frozen=True)
class Parity:
    """The exported model against torch. difference: largest |Δp| over all classes of `images` images."""

    difference: float
    images: int


@dataclass(frozen=True)
class Int8Cost:
    """The 8-bit model against the float one on `images` images.

    same: images with the same answer. difference: largest |Δp|. accuracy, accuracy_int8: fractions; None if the images
    have no labels that the model knows.
    """

    images: int
    same: int
    difference: float
    accuracy: float | None
    accuracy_int8: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `--json` prints them."""
        return asdict(self)


def images_to_check(model: Classifier, data: str | Path | Dataset | None) -> Checked:
    """The labelled images of `data`; without data, images of the built-in sample, whose labels rarely fit.

    Raises:
        UserError: If the data cannot be read, or has classes that the model does not know.
    """
    if data is not None:
        return _matched(model, as_dataset(data, None, measuring=True))
    sample = load_sample(per_class_train=1, per_class_test=COMPARED // 10)
    try:
        return _matched(model, sample)
    except UserError:
        return Checked([item.image for item in sample.test], None)


def _matched(model: Classifier, dataset: Dataset) -> Checked:
    problem = model.method_.problem
    items = match_classes(dataset, model.classes_.tolist(), problem.names, problem.dataset).items
    return Checked([item.image for item in items], np.array([item.label for item in items]))


def parity(model: Classifier, file: Path, checked: Checked, progress: Progress) -> Parity:
    """Compare an ONNX file with the classifier on at most `COMPARED` of the images, evenly spread."""
    n = len(checked.images)
    chosen = [checked.images[i] for i in np.unique(np.linspace(0, n - 1, min(n, COMPARED)).astype(int))]
    expected = model.predict_proba(chosen, progress=progress)
    found = probabilities(model, file, chosen, progress)
    return Parity(float(np.abs(found - expected).max()), len(chosen))


def int8_cost(model: Classifier, files: tuple[Path, Path], checked: Checked, progress: Progress) -> Int8Cost:
    """Compare the 8-bit file, the second, with the float file."""
    whole, small = (probabilities(model, file, checked.images, progress) for file in files)
    answers, others = whole.argmax(axis=1), small.argmax(axis=1)
    right = [None if checked.truth is None else float((a == checked.truth).mean()) for a in (answers, others)]
    return Int8Cost(len(answers), int((answers == others).sum()), float(np.abs(small - whole).max()), *right)


def probabilities(
    model: Classifier, file: Path, images: Sequence[ImageLike], progress: Progress
) -> NDArray[np.float32]:
    """Probabilities (N, C) of an ONNX file, by the code that is exported with it."""
    preprocess = model.method_.clip.preprocess.to_dict()
    session, found = predict.open_session(file), []
    opened = [image for image in images if not isinstance(image, StoredImage)]  # which only a refit has
    for crops in predict.batches(opened, preprocess):
        found.append(predict.run(session, crops))
        progress("comparing", sum(map(len, found)), len(images), "")
    return np.concatenate(found)


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
    with atomic_folder(target) as made:
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
    with explain_write_errors(file):
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
    with explain_write_errors(target):
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
