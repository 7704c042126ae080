"""A smaller ONNX file: the backbone's weights as 8-bit integers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path


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
