"""dca doctor: what is installed and what a run would use."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

import dca
from dca.cli.common import emit, json_flag

PACKAGES = ("torch", "numpy", "pillow", "safetensors", "tokenizers", "huggingface_hub", "matplotlib", "scikit-learn")
VARIABLES = ("HF_HOME", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "DCA_CACHE", "DCA_DATA")


@click.command()
@json_flag
def command(as_json: bool) -> None:
    """Show what is installed, which device will be used, and which backbones are on this machine.

    \b
    dca doctor
    dca doctor --json > doctor.json          to attach to a bug report
    """
    report = examine()
    if as_json:
        emit(report)
        return
    click.echo(f"dca {report['dca']}   Python {report['python']}   {report['platform']}")
    for name, found in report["packages"].items():
        click.echo(f"  {name:<16} {found or 'not installed'}")
    click.echo(f"device auto -> {report['device']} ({report['threads']} threads), precision {report['precision']}")
    for name, place in report["backbones"].items():
        click.echo(f"  {name:<16} {place or 'downloaded on first use'}")
    for name, value in report["environment"].items():
        click.echo(f"  {name}={value}")
    for note in report["notes"]:
        click.echo(f"note: {note}")


def examine() -> dict[str, Any]:
    """Everything the command prints."""
    import torch

    from dca.backbones.sources import list_backbones
    from dca.core.device import compute_dtype, resolve_device

    device = resolve_device("auto")
    return {
        "dca": dca.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: installed(name) for name in PACKAGES},
        "torch_build": f"cuda {torch.version.cuda}" if torch.version.cuda else "cpu",
        "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        "threads": torch.get_num_threads(),
        "precision": str(compute_dtype(device, "auto")).removeprefix("torch."),
        "backbones": list_backbones(),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "notes": notes(),
    }


def installed(package: str) -> str | None:
    """Version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def notes() -> list[str]:
    """Advice about this installation."""
    import torch

    found = []
    if torch.version.cuda and not torch.cuda.is_available():
        found.append("this torch is built for CUDA but finds no GPU; a CPU build is 4 GB smaller (see the README)")
    if installed("matplotlib") is None:
        found.append("matplotlib is not installed; charts need it: pip install 'dca-prompt[report]'")
    return found
