"""A finished run measured with other options of its head: nothing is trained again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dca.core.files import folder_in_one_rename, read_json, write_json
from dca.core.options import as_json
from dca.data.protocols import Task
from dca.engine.session import Session
from dca.experiment.measure import accuracies, evaluate
from dca.experiment.spec import Spec
from dca.methods.head_changes import with_options
from dca.methods.interface import Method
from dca.model import checkpoint
from dca.model.checkpoint import RESULT, SPEC


def finished_method(spec: Spec, folder: Path, session: Session) -> Method:
    """The method of a finished run on the backbone of its spec.

    Args:
        spec: What was run.
        folder: Folder of the finished run.
        session: Loads the backbone.

    Returns:
        The method, sealed.

    Raises:
        UserError: If the folder holds no complete model, or one of another backbone.
    """
    record = checkpoint.read_record(folder)
    return checkpoint.load_model(folder, record, session.backbone(spec.backbone, spec.precision))


def run_head(
    spec: Spec, head: Mapping[str, Any], method: Method, task: Task, session: Session, fit: Path, folder: Path
) -> dict[str, Any]:
    """Measure a finished method with other options of its head and record the figures.

    The parameters are those of the fit: training reads no option of the head. The probabilities are not calibrated.

    Args:
        spec: What was fitted.
        head: Options of the head by name.
        method: The finished method.
        task: The task of the spec.
        session: Loads images and features.
        fit: Folder of the finished run.
        folder: Where `result.json` and `spec.json` go, in one rename; "options" in the latter are all values of the
            head's options, those that follow from others included.

    Returns:
        The figures of `result.json`: those of the fit, with "head" and the accuracies of this head.

    Raises:
        UserError: If the head cannot have these options, or an image cannot be read.
    """
    changed, began = with_options(method, head), time.monotonic()
    measured = evaluate(changed, task.targets, session)
    result = {
        **read_json(fit / RESULT),
        **accuracies(spec.protocol, measured),
        "estimate": None,
        "temperature": changed.temperature,
        "findings": None,
        "evaluation_seconds": round(time.monotonic() - began, 2),
        "head": dict(head),
        "fit": spec.id,
    }
    with folder_in_one_rename(folder) as made:
        values = as_json({name: getattr(changed.options, name) for name in changed.head_options})
        write_json(made / SPEC, {"spec": spec.to_dict(), "head": dict(head), "options": values})
        write_json(made / RESULT, result)
    return result
