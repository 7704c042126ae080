"""A finished model as one ONNX program: uint8 crops in; probabilities, p-values and ranks out.

With 8-bit weights if wanted.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import dca
from dca.backbones.encoder import Pixels
from dca.core.errors import UserError
from dca.methods.base import Method
from dca.model.certainty import Certainty
from dca.model.classifier import Classifier
from dca.model.records import LIBRARY

PROBABILITIES, P_VALUES, RANKS = "probabilities", "p_values", "ranks"
# Metadata key of a node: the modules that created it.
SCOPES = "pkg.torch.onnx.name_scopes"
# Number of values from which on a float64 constant is stored in float32.
LARGE = 256
# What an image program gives for B images: probabilities, p-values and ranks.
Outputs = tuple[Tensor, ...]


class ImageProgram(nn.Module):
    """Crops uint8, one (B, S, S, 3) for each encoder -> all that a finished model says of the images.

    probabilities (B, C) float32; then, where the model has them, p-values (B,) float64 and the ranks of the classes
    (B, C) int32, from which prediction sets follow for any coverage. The text side is in the finished head.
    """

    def __init__(self, method: Method, certainty: Certainty) -> None:
        super().__init__()
        self.method, self.certainty = method, certainty
        self.encoder = method.encoder  # a method does not register its backbone

    def forward(self, images: Sequence[Tensor]) -> Outputs:
        """Normalise, encode, classify, and compare with the training images."""
        features = self.method.encode(self.encoder.preprocess.normalize(join_crops(images)))
        probabilities = self.method.classify(features)
        outputs = [probabilities.float()]
        if (p_values := self.certainty.p_values(features, probabilities)) is not None:
            outputs.append(p_values)
        if (ranks := self.certainty.class_ranks(features, probabilities)) is not None:
            outputs.append(ranks.ranks)
        return tuple(outputs)


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

    name: of the model, for people. inputs: name, type, shape and preprocessing of each; `steps` in the preprocessing
    says in words what must be done to an image. outputs: name, type and shape of each. temperature: by which the
    probabilities were calibrated, in the program. smallest_p_value: None without p-values. set_images: held-out images
    that the ranks count; None without ranks.
    """

    name: str
    method: str
    backbone: Mapping[str, str]
    labels: Sequence[Any]
    names: Sequence[str]
    inputs: Sequence[Mapping[str, Any]]
    temperature: float
    smallest_p_value: float | None
    set_images: int | None

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """What the program gives, in order."""
        C = len(self.labels)
        given = [{"name": PROBABILITIES, "type": "float32", "shape": ["batch", C]}]
        if self.smallest_p_value is not None:
            given.append({"name": P_VALUES, "type": "float64", "shape": ["batch"]})
        if self.set_images is not None:
            given.append({"name": RANKS, "type": "int32", "shape": ["batch", C]})
        return given

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"library": LIBRARY, "version": dca.__version__, **own, "outputs": self.outputs}


def describe_model(model: Classifier, name: str) -> ModelDescription:
    """Describe a fitted model for programs that use its ONNX file."""
    record, method, certainty = model._to_record(), model.method_, model.certainty()
    parts = method.encoder.preprocess.parts
    names = ["images"] if len(parts) == 1 else [f"images_{number}" for number in range(1, len(parts) + 1)]
    with torch.no_grad():
        features = method.encode(method.encoder.preprocess.normalize(join_crops(make_blank_crops(method, 1))))
        ranks = certainty.class_ranks(features, method.classify(features))
    return ModelDescription(
        name=name,
        method=record.method,
        backbone={"source": record.backbone.source, "sha256": record.backbone.digest},
        labels=list(record.labels),
        names=list(record.problem.names),
        inputs=[describe_input(*named) for named in zip(names, parts, strict=True)],
        temperature=method.temperature,
        smallest_p_value=certainty.smallest_p_value,
        set_images=None if ranks is None else ranks.images,
    )


def describe_input(name: str, pixels: Pixels) -> dict[str, Any]:
    """Name, type, shape and preprocessing of the crops of one encoder."""
    preprocess = pixels.to_dict()
    preprocess |= {"mean": list(preprocess["mean"]), "std": list(preprocess["std"])}
    return {
        "name": name,
        "type": "uint8",
        "shape": ["batch", pixels.size, pixels.size, 3],
        "preprocess": {**preprocess, "steps": describe_preprocessing(preprocess)},
    }


def describe_preprocessing(preprocess: Mapping[str, Any]) -> str:
    """Describe what must be done to an image before the program, and what the program does itself."""
    size, resize = preprocess["size"], preprocess["resize"]
    how = f"resize the short side to {resize} pixels" if resize else f"resize to {size} x {size} pixels"
    return (
        "apply the EXIF rotation, put transparent images on white, convert to 8-bit RGB; "
        f"{how} (Pillow's filter {preprocess['resample']}); cut the central {size} x {size} pixels. "
        "Scaling to [0, 1] and normalising by mean and std are part of the model."
    )


def join_crops(crops: Sequence[Tensor]) -> Tensor:
    """Crops (B, S, S, 3) of each encoder as a method's encoder takes them: (B, 3, S, S), or rows for several."""
    squares = [crop.permute(0, 3, 1, 2) for crop in crops]
    return squares[0] if len(squares) == 1 else torch.cat([square.flatten(1) for square in squares], dim=1)


def make_blank_crops(method: Method, images: int) -> list[Tensor]:
    """Black crops as the program takes them, uint8 (images, S, S, 3) for each encoder."""
    sizes = [part.size for part in method.encoder.preprocess.parts]
    return [torch.zeros(images, size, size, 3, dtype=torch.uint8) for size in sizes]


def convert(model: Classifier, file: Path, description: ModelDescription) -> list[str]:
    """Write the program of a fitted model on the CPU; returns the names of the nodes of the backbone.

    description: also written into the metadata of the file.
    """
    method, batch = model.method_, torch.export.Dim("batch")
    program, example = ImageProgram(method, model.certainty()).eval(), make_blank_crops(method, 2)
    with torch.no_grad(), _silence_exporter():
        program(example)  # what is computed on first use is not to be traced
        exported = torch.onnx.export(
            program,
            (example,),
            dynamo=True,
            dynamic_shapes=([{0: batch} for _ in example],),
            input_names=[given["name"] for given in description.inputs],
            output_names=[given["name"] for given in description.outputs],
            verbose=False,
        )
    assert exported is not None
    written = exported.model
    written.metadata_props.update({key: _to_text(value) for key, value in description.to_dict().items()})
    written.producer_name, written.producer_version = LIBRARY, dca.__version__
    nodes = list(written.graph.all_nodes())
    backbone_nodes = [node.name or "" for node in nodes if "'encoder." in node.metadata_props.get(SCOPES, "")]
    for node in nodes:
        node.metadata_props.clear()  # they name source files of this machine
    store_in_float32(written.graph)
    exported.save(file)
    return backbone_nodes


def store_in_float32(graph: Any) -> None:
    """Store large float64 constants of an `onnx_ir` graph in half the size; the program widens them when it is loaded.

    They are products with features, which are float32 themselves: rounding changes as little as that of features does.
    """
    import onnx_ir as ir

    for name, value in list(graph.initializers.items()):
        if value.dtype != ir.DataType.DOUBLE or value.const_value.size < LARGE:
            continue
        narrow = ir.Value(name=f"{name}_float32", const_value=ir.tensor(value.const_value.numpy().astype(np.float32)))
        cast = ir.node("Cast", [narrow], attributes={"to": ir.DataType.DOUBLE}, name=f"widen_{name}")
        ir.convenience.replace_all_uses_with(value, cast.outputs[0])
        graph.initializers.pop(name)
        graph.register_initializer(narrow)
        graph.insert_before(graph[0], cast)


def quantize(source: Path, target: Path, backbone_nodes: Sequence[str]) -> None:
    """Write `source` with 8-bit weights of the backbone, one scale per output channel.

    Matrix products are computed with 8-bit activations, which are quantized at run time. Convolutions are computed in
    float32.

    backbone_nodes: names of the nodes of the backbone. The head has few weights, and its distances and scaled cosines
    need the precision.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    program = onnx.load(source)
    # Quantization transposes some weights, which would make the stored shapes wrong; they are inferred again.
    program.graph.ClearField("value_info")
    _unshare_weights(program.graph)
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
    program = onnx.load(target)
    _store_convolutions_in_8_bits(program.graph, set(backbone_nodes))
    onnx.save(program, target)


def _unshare_weights(graph: Any) -> None:
    """Give every Gemm weights of its own: the quantizer transposes them where they are."""
    users = Counter(name for node in graph.node for name in node.input)
    constants = {constant.name: constant for constant in graph.initializer}
    for number, node in enumerate(graph.node):
        if node.op_type == "Gemm" and users[name := node.input[1]] > 1 and name in constants:
            own = graph.initializer.add()
            own.CopyFrom(constants[name])
            own.name = node.input[1] = f"{name}_{number}"


def _store_convolutions_in_8_bits(graph: Any, names: set[str]) -> None:
    """Replace the weights (out, in, k, k) of the convolutions with these names by 8-bit numbers and scales (out,)."""
    from onnx import helper, numpy_helper

    constants = {constant.name: constant for constant in graph.initializer}
    for number, node in enumerate(list(graph.node)):
        if node.op_type != "Conv" or node.name not in names:
            continue
        constant = constants[node.input[1]]
        weight = numpy_helper.to_array(constant)
        scale = np.maximum(np.abs(weight).max(axis=(1, 2, 3)) / 127, np.finfo(np.float32).tiny).astype(np.float32)
        rounded = np.rint(weight / scale[:, None, None, None]).astype(np.int8)
        small = [f"{constant.name}_{part}_{number}" for part in ("int8", "scale", "float")]
        graph.initializer.extend(
            numpy_helper.from_array(values, name) for values, name in zip((rounded, scale), small, strict=False)
        )
        graph.node.insert(0, helper.make_node("DequantizeLinear", small[:2], small[2:], axis=0, name=small[2]))
        node.input[1] = small[2]
    used = {name for node in graph.node for name in node.input}
    kept = [constant for constant in graph.initializer if constant.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)


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
