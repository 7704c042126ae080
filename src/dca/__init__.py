"""Few-shot adaptation of CLIP: DCA prompt learning and the methods it is compared with."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dca.clip import CLIP
    from dca.core.errors import UserError
    from dca.core.options import opt
    from dca.data import load_dataset, protocols
    from dca.data.dataset import Dataset, Item
    from dca.engine.evaluate import Evaluation
    from dca.engine.session import Session
    from dca.experiment.run import Outcome, run
    from dca.experiment.spec import Spec
    from dca.export.folder import export_onnx
    from dca.methods.interface import Method, TrainedMethod
    from dca.methods.recipe import Recipe
    from dca.methods.registry import all_methods as list_methods
    from dca.model.classifier import Classifier

__version__ = "0.1.0.dev0"
__all__ = [
    "CLIP",
    "Classifier",
    "Dataset",
    "Evaluation",
    "Item",
    "Method",
    "Outcome",
    "Recipe",
    "Session",
    "Spec",
    "TrainedMethod",
    "UserError",
    "__version__",
    "export_onnx",
    "list_methods",
    "load_dataset",
    "opt",
    "protocols",
    "run",
]

# Public name -> where it is defined.
_HOMES = {
    "CLIP": "dca.clip:CLIP",
    "Classifier": "dca.model.classifier:Classifier",
    "Dataset": "dca.data.dataset:Dataset",
    "Evaluation": "dca.engine.evaluate:Evaluation",
    "Item": "dca.data.dataset:Item",
    "Method": "dca.methods.interface:Method",
    "Outcome": "dca.experiment.run:Outcome",
    "Recipe": "dca.methods.recipe:Recipe",
    "Session": "dca.engine.session:Session",
    "Spec": "dca.experiment.spec:Spec",
    "TrainedMethod": "dca.methods.interface:TrainedMethod",
    "UserError": "dca.core.errors:UserError",
    "export_onnx": "dca.export.folder:export_onnx",
    "list_methods": "dca.methods.registry:all_methods",
    "load_dataset": "dca.data:load_dataset",
    "opt": "dca.core.options:opt",
    "protocols": "dca.data.protocols:",
    "run": "dca.experiment.run:run",
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
