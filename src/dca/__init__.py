"""Few-shot adaptation of CLIP: DCA prompt learning and the methods it is compared with."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dca.clip import CLIP
    from dca.core.errors import UserError
    from dca.data import load_dataset
    from dca.methods.registry import all_methods as list_methods
    from dca.model.classifier import Classifier

__version__ = "0.1.0.dev0"
__all__ = ["CLIP", "Classifier", "UserError", "__version__", "list_methods", "load_dataset"]

_HOMES = {
    "CLIP": ("dca.clip", "CLIP"),
    "Classifier": ("dca.model.classifier", "Classifier"),
    "UserError": ("dca.core.errors", "UserError"),
    "list_methods": ("dca.methods.registry", "all_methods"),
    "load_dataset": ("dca.data", "load_dataset"),
}


def __getattr__(name: str) -> Any:
    """Load public names on first use, so that `import dca` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dca' has no attribute '{name}'")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)
