"""dca check-labels: images whose labels look wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dca.cli.common import architecture_flag, device_flags, emit, json_flag, print_lines, quiet_flag, showing
from dca.cli.tables import format_table
from dca.core.text import percent, pluralize

if TYPE_CHECKING:
    from dca.datasets.dataset import Dataset
    from dca.model.findings import DoubtfulLabel, LabelCheck

# Rows that are printed: doubtful images, and images that cannot be checked.
MOST, MOST_UNCHECKED = 40, 5
# Pixels of an image on the sheet; many photos in full size would need gigabytes.
SIDE = 240


@click.command()
@click.argument("data", type=click.Path())
@click.option(
    "--most",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help=f"Show at most N images, the most doubtful first.  [default: {MOST}; all with --json]",
)
@click.option(
    "--odds",
    type=click.FloatRange(min=1),
    default=None,
    metavar="N",
    help="Show images for which another class is at least this many times as probable as the given one.  "
    "[default: 10, and in proportion more for more than 10 classes]",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Also draw the listed images into this .png or .svg file. Needs matplotlib.",
)
@click.option("--backbone", default="auto", show_default=True, help="Backbone, as for dca fit.")
@architecture_flag
@device_flags
@quiet_flag
@json_flag
def command(
    data: str,
    most: int | None,
    odds: float | None,
    plot: Path | None,
    backbone: str,
    device: str,
    precision: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Find images of DATA whose labels look wrong.

    Each training image is left out in turn and predicted by a model of all others (the default
    method, which takes seconds). The list has candidates to look at, not facts: an unusual photo
    with the right label is listed as well. DATA has the forms that `dca fit` takes; to check
    another part, give its folder. No file is changed and no model is written.

    \b
    dca check-labels photos/
    dca check-labels photos/ --plot doubtful.png
    dca check-labels photos/test/ --odds 3 --most 100 --json
    """
    from dca.model.findings import check_labels, usual_odds
    from dca.model.inputs import as_dataset
    from dca.training.session import Session

    if plot is not None:
        from dca.plots.style import require_drawable

        require_drawable(plot)
    dataset = as_dataset(data, None)
    with showing(quiet=quiet) as progress:
        session = Session(device=device, progress=progress)
        check = check_labels(dataset, session, backbone=backbone, precision=precision, odds=odds)
    sheet = plot if check.doubtful else None
    used = usual_odds(len(dataset.labels)) if odds is None else odds
    if sheet is not None:
        draw_sheet(check, dataset, sheet, most or MOST)
    if as_json:
        emit(to_json(check, data, used, most, sheet))
        return
    print_lines(*format_check(check, used, most or MOST))
    if plot is not None:
        print_lines(f"wrote {plot}" if sheet else f"nothing to draw: {plot} is not written")


def to_json(check: LabelCheck, data: str, odds: float, most: int | None, sheet: Path | None) -> dict[str, Any]:
    """The result as one JSON value."""
    values = check.to_dict()
    values["doubtful"] = values["doubtful"][:most]
    plot = {"plot": str(sheet)} if sheet is not None else {}
    return {"data": data, "odds": odds, "found": len(check.doubtful), **values, **plot}


def format_check(check: LabelCheck, odds: float, most: int) -> list[str]:
    """The result as lines of text."""
    doubtful, checked = check.doubtful, check.images - len(check.not_checked)
    lines = [
        f"labels to check: {len(doubtful):,} of {pluralize(checked, 'training image')} "
        f"(another class at least {odds:g} times as probable)",
        f"predicted by models that have not seen the image (estimated accuracy {percent(check.estimate.accuracy)})",
    ]
    lines += format_doubtful(doubtful[:most])
    if len(doubtful) > most:
        lines.append(f"{len(doubtful) - most:,} more: --most {len(doubtful)} shows them")
    if check.conflicts:
        lines.append(
            f"copies under two labels, of which at least one is wrong: {pluralize(len(check.conflicts), 'pair')}"
        )
        lines += _cut_list([f"{_join_pair(one.images)} ({_join_pair(one.labels)})" for one in check.conflicts], most)
    if check.not_checked:
        reason = "the only image of its class, or a copy of it, cannot be left out"
        lines.append(f"not checked: {pluralize(len(check.not_checked), 'image')} ({reason})")
        lines += _cut_list(check.not_checked, MOST_UNCHECKED)
    if doubtful:
        lines.append("These are candidates to look at, not facts: move a file only after looking at it.")
    return lines


def format_doubtful(rows: Sequence[DoubtfulLabel]) -> list[str]:
    """One line per image below a line of titles; nothing without rows."""
    if not rows:
        return []
    cells = [["image", "given", "suggested", "probability", "of the given"]]
    for row in rows:
        cells.append([row.image, row.label, row.suggested, f"{row.probability:.3f}", f"{row.own:.3f}"])
    return format_table(cells, indent=2)


def _cut_list(lines: Sequence[str], most: int) -> list[str]:
    """At most `most` lines, indented; a last line says how many more there are."""
    rest = [f"  and {len(lines) - most:,} more; --json has all of them"] if len(lines) > most else []
    return [*(f"  {line}" for line in lines[:most]), *rest]


def _join_pair(pair: tuple[str, str]) -> str:
    return " ~ ".join(pair)


def draw_sheet(check: LabelCheck, dataset: Dataset, path: Path, most: int) -> None:
    """Draw the most doubtful images with both labels."""
    from PIL import ImageOps

    from dca import plots
    from dca.images.decode import open_image

    rows = check.doubtful[:most]
    plots.plot_doubtful_labels(
        [ImageOps.fit(open_image(dataset.train[row.index].image), (SIDE, SIDE)) for row in rows],
        [Path(row.image).name for row in rows],
        [row.label for row in rows],
        [row.suggested for row in rows],
        [row.probability for row in rows],
        path,
        found=len(check.doubtful),
        of=check.images - len(check.not_checked),
    )
