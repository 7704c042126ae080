"""dca study bench: the fast implementations beside a plain reference, in the same run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from dca.cli.common import Group, device_flags, emit, json_flag, print_lines

if TYPE_CHECKING:
    import torch

    from dca.backbones.clip import CLIP
    from dca.study.bench import Result

HEADER = ("", "ours ms", "reference", "ratio", "memory", "reference", "floor ms", "gap")
backbone_option = click.option(
    "--backbone", default="random-vit-b-16", show_default=True, help="A backbone, or random weights of that shape."
)


@click.group(cls=Group)
def command() -> None:
    """Measure time and memory on this machine: ours, and a plain reference written for the purpose.

    \b
    dca study bench step --classes 10,100,1000          a training step of DCA
    dca study bench text --backbone mini                the text side of a step
    dca study bench head                                the head of a finished model
    dca study bench eval photos/                        images from files to probabilities
    dca study bench fit photos/ --epochs 10             dca fit, from the command to the accuracy
    dca study bench startup photos/                     what a fit costs before its first step
    """


def parse_numbers(text: str) -> list[int]:
    """`10,100` -> [10, 100]."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"'{text}' is not a list of whole numbers such as 10,100") from None


@command.command()
@click.option("--classes", default="10,100", show_default=True, help="Numbers of classes.")
@click.option("--batch", "batches", default="32", show_default=True, help="Batch sizes.")
@click.option("--reference/--no-reference", default=True, help="Also run the usual step.  [on]")
@backbone_option
@device_flags
@json_flag
def step(
    classes: str, batches: str, reference: bool, backbone: str, device: str, precision: str, as_json: bool
) -> None:
    """A training step of DCA: forward, backward, update; beside 77 tokens for every class and prompt.

    The floor is the time of the arithmetic alone at 790 TFLOP/s.

    \b
    dca study bench step --classes 10,1000 --batch 32
    """
    from dca.study.bench import measure_steps

    clip = load_backbone(backbone, device, precision)
    print_results(
        measure_steps(clip, parse_numbers(classes), parse_numbers(batches), compare=reference), clip.device, as_json
    )


@command.command()
@click.option("--classes", default=100, show_default=True, help="Number of classes.")
@backbone_option
@device_flags
@json_flag
def text(classes: int, backbone: str, device: str, precision: str, as_json: bool) -> None:
    """The text side of a training step, beside 77 tokens for every class and prompt.

    \b
    dca study bench text --backbone mini
    """
    from dca.study.bench import measure_text

    clip = load_backbone(backbone, device, precision)
    print_results([measure_text(clip, classes)], clip.device, as_json)


@command.command()
@click.option("--classes", default=1000, show_default=True, help="Number of classes.")
@click.option("--shots", default=16, show_default=True, help="Training images per class.")
@click.option("--images", default=32, show_default=True, help="Images that are classified.")
@device_flags
@json_flag
def head(classes: int, shots: int, images: int, device: str, precision: str, as_json: bool) -> None:
    """Distances of DCA's head, beside whole inverse covariance matrices; memory is that of the head.

    \b
    dca study bench head --classes 1000 --shots 16
    """
    from dca.core.device import resolve_device
    from dca.study.bench import measure_head

    resolved = resolve_device(device)
    print_results([measure_head(resolved, classes, shots, images)], resolved, as_json)


@command.command(name="eval")
@click.argument("data")
@click.option("--images", default=2000, show_default=True, help="Images at most.")
@click.option("--backbone", default="mini", show_default=True, help="A backbone.")
@device_flags
@json_flag
def evaluate(data: str, images: int, backbone: str, device: str, precision: str, as_json: bool) -> None:
    """Images of DATA from files to probabilities, beside opening them one after the other.

    \b
    dca study bench eval photos/
    """
    from dca.study.bench import measure_eval

    clip = load_backbone(backbone, device, precision)
    print_results([measure_eval(data, clip, images)], clip.device, as_json)


@command.command()
@click.argument("data")
@click.option("--epochs", default=None, type=int, help="Epochs; the method's own if not given.")
@click.option("--shots", default=16, show_default=True, help="Training images per class.")
@click.option("--backbone", default="mini", show_default=True, help="A backbone.")
@device_flags
@json_flag
def fit(data: str, epochs: int | None, shots: int, backbone: str, device: str, precision: str, as_json: bool) -> None:
    """`dca fit DATA --method dca`, from the command to the printed accuracy.

    \b
    dca study bench fit photos/ --epochs 10
    """
    from dca.core.device import resolve_device
    from dca.study.bench import measure_fit

    print_results(measure_fit(data, backbone, device, epochs, shots), resolve_device(device), as_json)


@command.command()
@click.argument("data")
@click.option("--backbone", default="mini", show_default=True, help="A backbone.")
@device_flags
@json_flag
def startup(data: str, backbone: str, device: str, precision: str, as_json: bool) -> None:
    """What a user waits for before the first step: `dca --help`, and a fit of one epoch.

    \b
    dca study bench startup photos/
    """
    from dca.core.device import resolve_device
    from dca.study.bench import measure_startup

    print_results(measure_startup(data, backbone, device), resolve_device(device), as_json)


def load_backbone(backbone: str, device: str, precision: str) -> CLIP:
    """The backbone that is measured."""
    from dca.core.device import compute_dtype, require_device, resolve_device
    from dca.study import bench

    require_device(device, precision)
    resolved = resolve_device(device)
    return bench.load_backbone(backbone, resolved, compute_dtype(resolved, precision))


def print_results(results: Iterable[Result], device: torch.device, as_json: bool) -> None:
    """Print a table as results come, or one JSON object."""
    import platform

    import torch

    import dca

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    if as_json:
        versions = {"dca": dca.__version__, "torch": torch.__version__, "python": platform.python_version()}
        head = {"device": name, "threads": torch.get_num_threads(), "versions": versions}
        emit({**head, "results": [result.to_dict() for result in results]})
        return
    print_lines(f"{name}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print_lines(format_line(HEADER))
    for result in results:
        print_lines(format_line(format_cells(result)))


def format_line(cells: Iterable[str]) -> str:
    """One row of the table."""
    first, *rest = cells
    return f"{first:<52}" + "".join(f"{cell:>11}" for cell in rest)


def format_cells(result: Result) -> tuple[str, ...]:
    """The cells of a result; empty where a value is not known."""
    found = result.to_dict()

    def size(count: int | None) -> str:
        return "" if count is None else f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.1f} MiB"

    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    return (
        result.name,
        number(result.ours_ms, ".2f"),
        number(result.reference_ms, ".1f"),
        number(found["ratio"], ".1f"),
        size(result.memory),
        size(result.reference_memory),
        number(result.floor_ms, ".2f"),
        number(result.gap, ".0e"),
    )
