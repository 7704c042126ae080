"""A finished model as one ONNX program: uint8 images in, probabilities out, any batch size."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dca
from dca.core.errors import UserError
from dca.methods.base import Method
from dca.model.records import LIBRARY, ModelRecord

INPUT, OUTPUT = "images", "probabilities"
# Metadata of a node: the modules that it was made in.
SCOPES = "pkg.torch.onnx.name_scopes"


class Program(nn.Module):
    """Images uint8 (B, S, S, 3) -> probabilities float32 (B, C); the text side is in the finished head."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method
        self.clip = method.clip  # a method does not register its backbone

    def forward(self, images: Tensor) -> Tensor:
        """Normalise, encode, classify."""
        pixels = self.clip.preprocess.normalize(images.permute(0, 3, 1, 2))
        return self.method.classify(self.method.encode(pixels)).float()


def need_onnx() -> None:
    """Raise a UserError if the packages of the extra `onnx` are not installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"an export needs {error.name}, which is not installed.", hint="pip install 'dca-prompt[onnx]'"
        ) from None


def describe(record: ModelRecord) -> dict[str, Any]:
    """The content of `classes.json`: classes, preprocessing, and what goes in and comes out."""
    preprocess = dict(record.backbone.preprocess)
    size, words = preprocess["size"], preprocessing_words(preprocess)
    return {
        "library": LIBRARY,
        "version": dca.__version__,
        "method": record.method,
        "backbone": {"source": record.backbone.source, "sha256": record.backbone.digest},
        "labels": list(record.labels),
        "names": list(record.problem.names),
        "preprocess": {**preprocess, "mean": list(preprocess["mean"]), "std": list(preprocess["std"]), "steps": words},
        "input": {"name": INPUT, "type": "uint8", "shape": ["batch", size, size, 3]},
        "output": {"name": OUTPUT, "type": "float32", "shape": ["batch", len(record.labels)]},
    }


def preprocessing_words(preprocess: Mapping[str, Any]) -> str:
    """What must be done to an image before it is given to the program, and what the program does itself."""
    size, resize = preprocess["size"], preprocess["resize"]
    how = f"resize the short side to {resize} pixels" if resize else f"resize to {size} x {size} pixels"
    return (
        "apply the EXIF rotation, put transparent images on white, convert to 8-bit RGB; "
        f"{how} (Pillow's filter {preprocess['resample']}); cut the central {size} x {size} pixels. "
        "Scaling to [0, 1] and normalising by mean and std are part of the model."
    )


def convert(method: Method, file: Path, about: Mapping[str, Any]) -> list[str]:
    """Write the program of a finished method on the CPU.

    about: `describe`, kept in the file's metadata, too. Returns the names of the nodes that belong to the backbone.
    """
    size = method.clip.preprocess.size
    example = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    with torch.no_grad(), _quiet():
        made = torch.onnx.export(
            Program(method).eval(),
            (example,),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            input_names=[INPUT],
            output_names=[OUTPUT],
            verbose=False,
        )
    assert made is not None
    made.model.metadata_props.update({key: _text(value) for key, value in about.items()})
    made.model.producer_name, made.model.producer_version = LIBRARY, dca.__version__
    nodes = list(made.model.graph.all_nodes())
    of_backbone = [node.name or "" for node in nodes if "'clip." in node.metadata_props.get(SCOPES, "")]
    for node in nodes:
        node.metadata_props.clear()  # where in which file of this machine each node was made
    made.save(file)
    return of_backbone


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks about itself: deprecations inside torch, and that torchvision is missing."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
