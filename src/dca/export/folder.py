"""The folder of an export: model.onnx, classes.json, predict.py and, for the browser, a page.

The exported model is compared with the classifier in torch before the folder appears.
"""

from __future__ import annotations

import inspect
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
from dca.export.page import PAGE_NAMES, fetch_runtime_for, write_page
from dca.export.program import ModelDescription, convert, describe_model, quantize, require_onnx
from dca.images.decode import ImageLike, StoredImage
from dca.model.classifier import Classifier
from dca.model.inputs import as_dataset, match_classes
from dca.model.records import LIBRARY

MODEL, CLASSES, SCRIPT = "model.onnx", "classes.json", "predict.py"
# Weights over 2 GB are in a file of their own beside the model.
WEIGHTS = f"{MODEL}.data"
# Images on which the exported model is compared with torch.
MOST_COMPARED = 100
# Largest difference of a probability that rounding explains.
ROUNDING = 1e-4


@dataclass(frozen=True)
class TorchParity:
    """The exported model compared with torch. difference: largest |Δp| of any class on `images` images."""

    difference: float
    images: int


@dataclass(frozen=True)
class Int8Cost:
    """The 8-bit model compared with the float model on `images` images.

    same: images with the same predicted class. difference: largest |Δp|. accuracy, accuracy_int8: fractions; None if
    the images have no labels that the model knows.
    """

    images: int
    same: int
    difference: float
    accuracy: float | None
    accuracy_int8: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `--json` prints them."""
        return asdict(self)


@dataclass(frozen=True)
class ExportResult:
    """The files that an export has written, and how close the exported model is to the original.

    Attributes:
        folder: The folder.
        sizes: Size of each file in bytes, by its path in the folder.
        parity: The float32 model compared with torch.
        cost: The cost of 8-bit weights; None without them.

    Example:
        >>> from pathlib import Path
        >>> from dca.export.folder import ExportResult, TorchParity
        >>> result = ExportResult(Path("out"), {"model.onnx": 29_100_000}, TorchParity(7e-7, 100), None)
        >>> result.to_dict()["parity"]
        {'difference': 7e-07, 'images': 100}
    """

    folder: Path
    sizes: dict[str, int]
    parity: TorchParity
    cost: Int8Cost | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `dca export --json` prints them.

        Returns:
            Folder, files with their sizes, `parity`, and `int8`, which is None without 8-bit weights.
        """
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
) -> ExportResult:
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
        The files, and how far the exported model is from the original.

    Raises:
        UserError: If a package is missing, the model cannot be read, or the folder cannot be written.

    Example:
        >>> from dca import Classifier, export_onnx
        >>> export_onnx(Classifier(), "out")
        Traceback (most recent call last):
        ...
        dca.core.errors.NotFittedError: this classifier is not fitted yet
          fix: call fit(...) or Classifier.from_pretrained(...)
    """
    require_onnx()
    require_free(target := Path(folder), overwrite=overwrite)
    classifier = model if isinstance(model, Classifier) else Classifier.from_pretrained(model, device="cpu")
    description = describe_model(classifier._to_record())
    require_cpu(classifier)
    runtime = fetch_runtime_for(description.preprocess, progress) if web else None
    comparison = load_comparison_images(classifier, data)
    with atomic_folder(target, "export") as scratch:
        parity, cost = _write_model(classifier, scratch, description, comparison, int8=int8, progress=progress)
        write_json(scratch / CLASSES, description.to_dict())
        write_bytes(scratch / SCRIPT, inspect.getsource(predict).encode())
        if runtime is not None:
            write_page(scratch, runtime)
        files = sorted(path for path in scratch.rglob("*") if path.is_file())
        sizes = {path.relative_to(scratch).as_posix(): path.stat().st_size for path in files}
    return ExportResult(target, sizes, parity, cost)


def _write_model(
    model: Classifier,
    folder: Path,
    description: ModelDescription,
    comparison: ComparisonImages,
    *,
    int8: bool,
    progress: Progress,
) -> tuple[TorchParity, Int8Cost | None]:
    """Write `model.onnx` into the folder and measure it."""
    file, small = folder / MODEL, folder / f"int8-{MODEL}"
    with explain_write_errors(file):
        progress("converting", 0, 1, "")
        backbone_nodes = convert(model.method_, file, description)
        progress("converting", 1, 1, "")
        parity = measure_parity(model, file, comparison.images, progress)
        if not int8:
            return parity, None
        quantize(file, small, backbone_nodes)
        cost = measure_int8_cost(model, file, small, comparison, progress)
        small.replace(file)
        (folder / WEIGHTS).unlink(missing_ok=True)
    return parity, cost


@dataclass(frozen=True)
class ComparisonImages:
    """Images to compare models on. truth: class indices (N,); None if the images have no class of the model."""

    images: list[ImageLike]
    truth: NDArray[np.int64] | None


def load_comparison_images(model: Classifier, data: str | Path | Dataset | None) -> ComparisonImages:
    """Load the labelled images of `data`; without data, images of the built-in sample, whose labels rarely fit.

    Raises:
        UserError: If the data cannot be read, or has classes that the model does not know.
    """
    if data is not None:
        return _match_labels(model, as_dataset(data, None, for_evaluation=True))
    sample = load_sample(per_class_train=1, per_class_test=MOST_COMPARED // 10)
    try:
        return _match_labels(model, sample)
    except UserError:
        return ComparisonImages([item.image for item in sample.test], None)


def _match_labels(model: Classifier, dataset: Dataset) -> ComparisonImages:
    """The images of a dataset with class indices of the model."""
    problem = model.method_.problem
    items = match_classes(dataset, model.classes_.tolist(), problem.names, problem.dataset).items
    return ComparisonImages([item.image for item in items], np.array([item.label for item in items]))


def measure_parity(model: Classifier, file: Path, images: Sequence[ImageLike], progress: Progress) -> TorchParity:
    """Compare an ONNX file with the classifier on at most `MOST_COMPARED` of the images, evenly spread."""
    n = len(images)
    compared = [images[i] for i in np.unique(np.linspace(0, n - 1, min(n, MOST_COMPARED)).astype(int))]
    expected = model.predict_proba(compared, progress=progress)
    exported = predict_onnx(model, file, compared, progress)
    return TorchParity(float(np.abs(exported - expected).max()), len(compared))


def measure_int8_cost(
    model: Classifier, float_file: Path, int8_file: Path, comparison: ComparisonImages, progress: Progress
) -> Int8Cost:
    """Compare a file with 8-bit weights with the float file."""
    float_probs, int8_probs = (
        predict_onnx(model, file, comparison.images, progress) for file in (float_file, int8_file)
    )
    predicted, truth = [probs.argmax(axis=1) for probs in (float_probs, int8_probs)], comparison.truth
    accuracies = [None if truth is None else float((classes == truth).mean()) for classes in predicted]
    same = int((predicted[0] == predicted[1]).sum())
    return Int8Cost(len(predicted[0]), same, float(np.abs(int8_probs - float_probs).max()), *accuracies)


def predict_onnx(model: Classifier, file: Path, images: Sequence[ImageLike], progress: Progress) -> NDArray[np.float32]:
    """Predict probabilities (N, C) with an ONNX file, by the code that is exported with it."""
    preprocess = model.method_.encoder.preprocess.to_dict()
    session, probs = predict.open_session(file), list[NDArray[np.float32]]()
    readable = [image for image in images if not isinstance(image, StoredImage)]  # which only a refit has
    for crops in predict.iter_batches(readable, preprocess):
        probs.append(predict.predict_batch(session, crops))
        progress("comparing", sum(map(len, probs)), len(images), "")
    return np.concatenate(probs)


def require_cpu(model: Classifier) -> None:
    """Raise if the model is not on the CPU in float32, which is what is exported."""
    encoder = model.method_.encoder
    if encoder.device.type != "cpu" or encoder.precision != "float32":
        raise UserError(
            f"the model is on {encoder.device} in {encoder.precision}; an export needs it on the CPU in float32",
            hint="load it with Classifier.from_pretrained(folder, device='cpu', precision='fp32')",
        )


def require_free(target: Path, *, overwrite: bool) -> None:
    """Raise if the output folder exists and may not be replaced."""
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
    """Whether the folder holds an export and nothing else."""
    try:
        if read_json(folder / CLASSES).get("library") != LIBRARY:
            return False
    except UserError:
        return False
    known = {MODEL, WEIGHTS, CLASSES, SCRIPT, *PAGE_NAMES}
    return {path.name for path in folder.iterdir()} <= known
