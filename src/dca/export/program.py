"""A finished model as one ONNX program: uint8 images in, probabilities out; with 8-bit weights if wanted."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dca
from dca.core.errors import UserError
from dca.methods.base import Method
from dca.model.records import LIBRARY, ModelRecord

INPUT, OUTPUT = "images", "probabilities"
# Metadata key of a node: the modules that created it.
SCOPES = "pkg.torch.onnx.name_scopes"


class ImageProgram(nn.Module):
    """Images uint8 (B, S, S, 3) -> probabilities float32 (B, C); the text side is in the finished head."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method
        self.encoder = method.encoder  # a method does not register its backbone

    def forward(self, images: Tensor) -> Tensor:
        """Normalise, encode, classify."""
        pixels = self.encoder.preprocess.normalize(images.permute(0, 3, 1, 2))
        return self.method.classify(self.method.encode(pixels)).float()


def require_onnx() -> None:
    """Raise a UserError if the packages of the extra `onnx` are not installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"an export needs {error.name}, which is not installed.", hint="pip install 'dca-prompt[onnx]'"
        ) from None


@dataclass(frozen=True)
class ModelDescription:
    """The content of `classes.json`, also kept in the metadata of the ONNX file.

    preprocess: values of the preprocessing, and in `steps` what must be done to an image in words.
    """

    method: str
    backbone: Mapping[str, str]
    labels: Sequence[Any]
    names: Sequence[str]
    preprocess: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the shapes of input and output."""
        size = self.preprocess["size"]
        return {
            "library": LIBRARY,
            "version": dca.__version__,
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "input": {"name": INPUT, "type": "uint8", "shape": ["batch", size, size, 3]},
            "output": {"name": OUTPUT, "type": "float32", "shape": ["batch", len(self.labels)]},
        }


def describe_model(record: ModelRecord) -> ModelDescription:
    """Describe a saved model for programs that use its ONNX file."""
    preprocess = dict(record.backbone.preprocess)
    preprocess |= {"mean": list(preprocess["mean"]), "std": list(preprocess["std"])}
    return ModelDescription(
        method=record.method,
        backbone={"source": record.backbone.source, "sha256": record.backbone.digest},
        labels=list(record.labels),
        names=list(record.problem.names),
        preprocess={**preprocess, "steps": describe_preprocessing(preprocess)},
    )


def describe_preprocessing(preprocess: Mapping[str, Any]) -> str:
    """Describe what must be done to an image before the program, and what the program does itself."""
    size, resize = preprocess["size"], preprocess["resize"]
    how = f"resize the short side to {resize} pixels" if resize else f"resize to {size} x {size} pixels"
    return (
        "apply the EXIF rotation, put transparent images on white, convert to 8-bit RGB; "
        f"{how} (Pillow's filter {preprocess['resample']}); cut the central {size} x {size} pixels. "
        "Scaling to [0, 1] and normalising by mean and std are part of the model."
    )


def convert(method: Method, file: Path, description: ModelDescription) -> list[str]:
    """Write the program of a finished method on the CPU; returns the names of the nodes of the backbone.

    description: also written into the metadata of the file.
    """
    size = method.encoder.preprocess.size
    example = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    with torch.no_grad(), _silence_exporter():
        program = torch.onnx.export(
            ImageProgram(method).eval(),
            (example,),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            input_names=[INPUT],
            output_names=[OUTPUT],
            verbose=False,
        )
    assert program is not None
    model = program.model
    model.metadata_props.update({key: _to_text(value) for key, value in description.to_dict().items()})
    model.producer_name, model.producer_version = LIBRARY, dca.__version__
    nodes = list(model.graph.all_nodes())
    backbone_nodes = [node.name or "" for node in nodes if "'encoder." in node.metadata_props.get(SCOPES, "")]
    for node in nodes:
        node.metadata_props.clear()  # they name source files of this machine
    program.save(file)
    return backbone_nodes


def quantize(source: Path, target: Path, backbone_nodes: Sequence[str]) -> None:
    """Write `source` with 8-bit weights, one scale per output channel; activations are quantized at run time.

    backbone_nodes: names of the nodes of the backbone. Only their matrix products are quantized: the head has few
    weights, and its distances and scaled cosines need the precision.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    program = onnx.load(source)
    # Quantization transposes some weights, which would make the stored shapes wrong; they are inferred again.
    program.graph.ClearField("value_info")
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)  # it recommends a preprocessing that this program does not need
    try:
        quantize_dynamic(
            program,
            target,
            op_types_to_quantize=["MatMul", "Gemm"],
            nodes_to_quantize=list(backbone_nodes),
            per_channel=True,
            weight_type=QuantType.QInt8,
        )
    finally:
        root.setLevel(before)


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Hide the exporter's warnings about itself: deprecations inside torch, and that torchvision is missing."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
