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
import torch
from numpy.typing import NDArray

from dca.core.errors import UserError
from dca.core.files import atomic_folder, explain_write_errors, read_json, restore_folder, write_bytes, write_json
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
from dca.stats.conformal import ClassRanks
from dca.training.evaluate import classify_features

MODEL, CLASSES, SCRIPT = "model.onnx", "classes.json", "predict.py"
# Weights over 2 GB are in a file of their own beside the model.
WEIGHTS = f"{MODEL}.data"
# Images on which the exported model is compared with torch.
MOST_COMPARED = 100
# Largest difference of a probability that rounding explains.
ROUNDING = 1e-4
# Coverage at which prediction sets are compared.
COVERAGE = 0.9


@dataclass(frozen=True)
class TorchParity:
    """The exported model compared with torch on `images` images.

    difference: largest |Δp| of any class. p_values: largest difference of p-values; None without them. sets: images for
    which a prediction set with a coverage of 0.9 is another one; None without sets.
    """

    difference: float
    images: int
    p_values: float | None = None
    sets: int | None = None


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
        {'difference': 7e-07, 'images': 100, 'p_values': None, 'sets': None}
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
    name: str | None = None,
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
        name: Of the model, for people; by default that of its folder.
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
    require_cpu(classifier)
    description = describe_model(classifier, name or name_model(model, target))
    runtime = fetch_runtime_for(description.inputs, progress) if web else None
    comparison = load_comparison_images(classifier, data)
    with atomic_folder(target, "export") as scratch:
        parity, cost = _write_model(classifier, scratch, description, comparison, int8=int8, progress=progress)
        write_bytes(scratch / SCRIPT, inspect.getsource(predict).encode())
        if runtime is not None:
            write_page(scratch, runtime)
        files = sorted(path for path in scratch.rglob("*") if path.is_file())
        sizes = {path.relative_to(scratch).as_posix(): path.stat().st_size for path in files}
    return ExportResult(target, sizes, parity, cost)


def name_model(model: Classifier | str | Path, folder: Path) -> str:
    """A name for a model: that of its folder, or else of the folder of the export."""
    path = folder if isinstance(model, Classifier) else Path(model)
    return path.resolve().name.removesuffix(".dca")


def _write_model(
    model: Classifier,
    folder: Path,
    description: ModelDescription,
    comparison: ComparisonImages,
    *,
    int8: bool,
    progress: Progress,
) -> tuple[TorchParity, Int8Cost | None]:
    """Write `model.onnx` and `classes.json` into the folder and measure the model."""
    file, small = folder / MODEL, folder / f"int8-{MODEL}"
    write_json(folder / CLASSES, description.to_dict())
    with explain_write_errors(file):
        progress("converting", 0, 1, "")
        backbone_nodes = convert(model, file, description)
        progress("converting", 1, 1, "")
        parity = measure_parity(model, folder, comparison.images, progress)
        if not int8:
            return parity, None
        before = predict_exported(folder, comparison.images, progress).probabilities
        quantize(file, small, backbone_nodes)
        small.replace(file)
        (folder / WEIGHTS).unlink(missing_ok=True)
        after = predict_exported(folder, comparison.images, progress).probabilities
        return parity, compare_int8(before, after, comparison.truth)


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


def measure_parity(model: Classifier, folder: Path, images: Sequence[ImageLike], progress: Progress) -> TorchParity:
    """Compare an export with the classifier on at most `MOST_COMPARED` of the images, evenly spread."""
    n = len(images)
    compared = [images[i] for i in np.unique(np.linspace(0, n - 1, min(n, MOST_COMPARED)).astype(int))]
    exported = predict_exported(folder, compared, progress)
    with torch.no_grad():
        features = model._encode(compared, progress)
        expected, certainty = classify_features(model.method_, features), model.certainty()
        p_values = certainty.p_values(features, torch.from_numpy(expected))
        ranks = certainty.class_ranks(features, torch.from_numpy(expected))
    difference, other_p, different = float(np.abs(exported.probabilities - expected).max()), None, None
    if p_values is not None and exported.p_values is not None:
        other_p = float(np.abs(exported.p_values - p_values.numpy()).max())
    if ranks is not None and exported.ranks is not None:
        sets = ClassRanks(torch.from_numpy(exported.ranks), ranks.images).sets(COVERAGE)
        different = int((sets != ranks.sets(COVERAGE)).any(dim=1).sum())
    return TorchParity(difference, len(compared), other_p, different)


def compare_int8(before: NDArray[np.float32], after: NDArray[np.float32], truth: NDArray[np.int64] | None) -> Int8Cost:
    """Compare probabilities (N, C) with 8-bit weights with those before. truth: class indices (N,) or None."""
    predicted = [probs.argmax(axis=1) for probs in (before, after)]
    accuracies = [None if truth is None else float((classes == truth).mean()) for classes in predicted]
    same = int((predicted[0] == predicted[1]).sum())
    return Int8Cost(len(before), same, float(np.abs(after - before).max()), *accuracies)


def predict_exported(folder: Path, images: Sequence[ImageLike], progress: Progress) -> predict.Predictions:
    """Predict images with an export, by the code that is exported with it."""
    exported, parts = predict.Model(folder), list[predict.Predictions]()
    readable = [image for image in images if not isinstance(image, StoredImage)]  # which only a refit has
    for start in range(0, len(readable), exported.batch):
        parts.append(exported.predict_details(readable[start : start + exported.batch]))
        progress("comparing", min(start + exported.batch, len(readable)), len(images), "")
    return predict.join_predictions(parts)


def require_cpu(model: Classifier) -> None:
    """Raise if the model is not on the CPU in float32, which is what is exported."""
    encoder = model._require_fitted().encoder
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
    restore_folder(target)
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
