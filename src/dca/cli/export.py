"""dca export: a model for programs without torch."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dca.cli.common import backbone_of_model, emit, json_flag, print_lines, quiet_flag, showing
from dca.core.text import format_bytes, percent, pluralize

if TYPE_CHECKING:
    from dca.export.folder import ExportResult, Int8Cost, TorchParity


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-o", "--onnx", "folder", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Folder to write."
)
@click.option("--int8", is_flag=True, help="Store the backbone's weights in 8 bits, and measure the cost in accuracy.")
@click.option("--web", is_flag=True, help="Add a page that classifies images in the browser. Needs npm once.")
@click.option("--data", default=None, help="Labelled images to compare on.  [default: images of the built-in sample]")
@click.option("--overwrite", is_flag=True, help="Replace an earlier export.")
@backbone_of_model
@quiet_flag
@json_flag
def command(
    model: Path,
    folder: Path,
    int8: bool,
    web: bool,
    data: str | None,
    overwrite: bool,
    backbone: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write MODEL as an ONNX file that needs no torch, and compare it with the original.

    DIR gets model.onnx (8-bit images in; probabilities, p-values and what sets of classes follow from out, any
    batch size), classes.json (classes and preprocessing) and predict.py, a script that needs only onnxruntime,
    pillow and numpy.

    \b
    dca export photos.dca --onnx out/
    dca export photos.dca --onnx small/ --int8 --data more_photos/
    dca export photos.dca --onnx site/ --web && python -m http.server -d site/
    """
    from dca.export.folder import export_onnx, name_model, require_free
    from dca.export.program import require_onnx
    from dca.model.classifier import Classifier

    require_onnx()
    require_free(folder, overwrite=overwrite)
    classifier = Classifier.from_pretrained(model, backbone=backbone, device="cpu", precision="fp32")
    with showing(quiet=quiet) as progress:
        result = export_onnx(
            classifier,
            folder,
            name=name_model(model, folder),
            int8=int8,
            web=web,
            data=data,
            overwrite=overwrite,
            progress=progress,
        )
    warn_about_difference(result)
    if as_json:
        emit(result.to_dict())
        return
    print_lines(*format_result(result, int8=int8, web=web))


def warn_about_difference(result: ExportResult) -> None:
    """Warn on stderr if the difference from torch is more than rounding."""
    from dca.export.folder import ROUNDING

    if result.parity.difference > ROUNDING:
        print_lines(f"warning: max |Δp| vs torch is above {ROUNDING:g}, which rounding does not explain", err=True)


def format_result(result: ExportResult, *, int8: bool, web: bool) -> list[str]:
    """The files, the difference from torch, and the next command, as lines of text."""
    size = sum(size for name, size in result.sizes.items() if name.startswith("model.onnx"))
    others = [name for name in result.sizes if name in ("classes.json", "predict.py", "index.html")]
    lines = [f"{result.folder / 'model.onnx'} {format_bytes(size)}, {', '.join(others)}"]
    lines.append(format_parity(result.parity) + (" before 8 bits" if int8 else ""))
    if result.cost is not None:
        lines += format_cost(result.cost)
    where = shlex.quote(str(result.folder))
    if web:
        lines.append(f"next  python -m http.server -d {where}   then open http://127.0.0.1:8000")
    else:
        lines.append(f"next  python {shlex.quote(str(result.folder / 'predict.py'))} photo.jpg")
    return lines


def format_parity(parity: TorchParity) -> str:
    """How close the exported model is to the original, as a line of text."""
    line = f"max |Δp| vs torch {parity.difference:.1e}"
    if parity.p_values is not None:
        line += f", of p-values {parity.p_values:.1e}"
    if parity.sets is not None:
        line += f", {parity.sets} different sets of classes"
    return f"{line}, on {pluralize(parity.images, 'image')}"


def format_cost(cost: Int8Cost) -> list[str]:
    """The cost of 8-bit weights, as lines of text."""
    same = f"same answer on {cost.same:,} of {pluralize(cost.images, 'image')}, max |Δp| {cost.difference:.2g}"
    if cost.accuracy is None or cost.accuracy_int8 is None:
        return [f"int8: {same}", "  the cost in accuracy is not known: give labelled images with --data"]
    gained = 100 * (cost.accuracy_int8 - cost.accuracy)
    figures = f"accuracy {percent(cost.accuracy_int8)} instead of {percent(cost.accuracy)} ({gained:+.1f} points)"
    return [f"int8: {figures}; {same}"]
