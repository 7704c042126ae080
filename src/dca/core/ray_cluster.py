"""An existing Ray cluster: how it is found, and how its CPUs and GPUs are shared by equal tasks."""

from __future__ import annotations

from typing import Any

from dca.core.actions import start_ray
from dca.core.errors import UserError

# Tasks per GPU unless the number of tasks is given.
PER_GPU = 4


def connected() -> Any:
    """The module ray, connected to the cluster that RAY_ADDRESS names, or that runs on this machine.

    Raises:
        UserError: If Ray is not installed, or there is no cluster.
    """
    try:
        import ray
        from ray import init  # a folder called ray in the working folder is no library
    except ImportError:
        raise UserError(
            "this engine needs Ray, which is not installed.", hint="pip install 'dca-prompt[ray]'"
        ) from None
    try:
        init(address="auto", log_to_driver=False, logging_level="ERROR")
    except ConnectionError:
        raise UserError("no Ray cluster was found", hint=start_ray()) from None
    return ray


def shares(resources: dict[str, float], device: str, tasks: int | None = None) -> tuple[int, float]:
    """Tasks at once, and the part of a GPU that each has.

    Args:
        resources: Of the cluster, as Ray names them.
        device: "auto" takes the GPUs of the cluster if it has some; "cpu" none.
        tasks: Tasks at once; by default 4 per GPU, or one per CPU.

    Returns:
        Both numbers.

    >>> shares({"CPU": 16, "GPU": 2}, "auto"), shares({"CPU": 16, "GPU": 2}, "cpu")
    ((8, 0.25), (16, 0))
    >>> shares({"CPU": 16, "GPU": 2}, "auto", 3), shares({"CPU": 4}, "auto", 2)
    ((3, 0.5), (2, 0))
    """
    gpus = 0 if device == "cpu" else int(resources.get("GPU", 0))
    at_once = tasks or (PER_GPU * gpus if gpus else max(1, int(resources.get("CPU", 1))))
    return at_once, 1 / -(-at_once // gpus) if gpus else 0
