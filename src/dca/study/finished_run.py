"""A finished run measured with other options of its head, or on other targets: nothing is trained again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dca.core.files import atomic_folder, read_json, write_json
from dca.core.options import as_json
from dca.datasets.protocols import Task
from dca.methods.base import Method
from dca.model import checkpoint
from dca.model.checkpoint import RESULT, SPEC
from dca.runs.evaluate import accuracies, evaluate
from dca.runs.spec import Spec
from dca.training.session import Session


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
    return checkpoint.load_model(folder, record, session.load_backbone(spec.backbone, spec.precision))


def run_finished(
    spec: Spec,
    head: Mapping[str, Any],
    method: Method,
    task: Task,
    session: Session,
    fit: Path,
    folder: Path,
    features: dict[str, Tensor] | None = None,
) -> dict[str, Any]:
    """Measure a finished method and record the figures as those of an experiment with the same training.

    The parameters are those of the fit: training reads no option of the head. With other options of the head the
    probabilities are not calibrated.

    Args:
        spec: The experiment; its protocol and targets may differ from those of the fit.
        head: Options of the head by name; none for the head of the fit.
        method: The finished method.
        task: The task of the spec.
        session: Loads images and features.
        fit: Folder of the finished run.
        folder: Where `result.json` and `spec.json` go, in one rename; "options" in the latter are all values of the
            head's options, those that follow from others included.
        features: Features of the test images, shared by the heads of this method (`measure.evaluate`).

    Returns:
        The figures of `result.json`: those of the fit, with the accuracies of this head and these targets.

    Raises:
        UserError: If the head cannot have these options, or an image cannot be read.
    """
    changed, began = method.with_options(head), time.monotonic()
    measured = evaluate(changed, task.targets, session, features)
    result = {
        **read_json(fit / RESULT),
        "protocol": spec.protocol,
        **accuracies(spec.protocol, measured),
        "temperature": changed.temperature,
        "evaluation_seconds": round(time.monotonic() - began, 2),
        "fit": fit.name,
    }
    if head:  # the estimate and the findings are those of the fit's own head
        result |= {"estimate": None, "findings": None, "head": dict(head)}
    with atomic_folder(folder) as made:
        values = as_json({name: getattr(changed.options, name) for name in changed.head_options})
        write_json(made / SPEC, {"spec": spec.to_dict(), "head": dict(head), "options": values})
        write_json(made / RESULT, result)
    return result
