"""Few-shot adaptation of CLIP: DCA prompt learning and the methods it is compared with."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dca.backbones.clip import CLIP
    from dca.core.errors import NotFittedError, UserError
    from dca.core.options import option
    from dca.datasets import load_dataset
    from dca.datasets.dataset import Dataset, LabelledImage
    from dca.export.folder import ExportResult, export_onnx
    from dca.methods.base import Method, TrainedMethod, TrainingOptions
    from dca.methods.registry import all_methods as list_methods
    from dca.model.classifier import Classifier, Predictions
    from dca.model.records import Estimate, HeldOutPrediction, TrainingImage
    from dca.training.evaluate import Evaluation
    from dca.training.session import Session

__version__ = "0.1.0.dev0"
__all__ = [
    "CLIP",
    "Classifier",
    "Dataset",
    "Estimate",
    "Evaluation",
    "ExportResult",
    "HeldOutPrediction",
    "LabelledImage",
    "Method",
    "NotFittedError",
    "Predictions",
    "Session",
    "TrainedMethod",
    "TrainingImage",
    "TrainingOptions",
    "UserError",
    "__version__",
    "export_onnx",
    "list_methods",
    "load_dataset",
    "option",
]

# Public name -> where it is defined.
_HOMES = {
    "Classifier": "dca.model.classifier:Classifier",
    "CLIP": "dca.backbones.clip:CLIP",
    "Dataset": "dca.datasets.dataset:Dataset",
    "Estimate": "dca.model.records:Estimate",
    "Evaluation": "dca.training.evaluate:Evaluation",
    "ExportResult": "dca.export.folder:ExportResult",
    "HeldOutPrediction": "dca.model.records:HeldOutPrediction",
    "LabelledImage": "dca.datasets.dataset:LabelledImage",
    "Method": "dca.methods.base:Method",
    "NotFittedError": "dca.core.errors:NotFittedError",
    "Predictions": "dca.model.classifier:Predictions",
    "Session": "dca.training.session:Session",
    "TrainedMethod": "dca.methods.base:TrainedMethod",
    "TrainingImage": "dca.model.records:TrainingImage",
    "TrainingOptions": "dca.methods.base:TrainingOptions",
    "UserError": "dca.core.errors:UserError",
    "export_onnx": "dca.export.folder:export_onnx",
    "list_methods": "dca.methods.registry:all_methods",
    "load_dataset": "dca.datasets:load_dataset",
    "option": "dca.core.options:option",
}


def __getattr__(name: str) -> Any:
    """Load public names on first use, so that `import dca` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dca' has no attribute '{name}'")
    module, _, attribute = _HOMES[name].partition(":")
    found = import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    """All public names, loaded or not."""
    return sorted({*globals(), *__all__})
