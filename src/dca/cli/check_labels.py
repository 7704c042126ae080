"""dca check-labels: images whose labels look wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dca.cli.common import columns, emit, json_flag, padded, quiet_flag, running, showing
from dca.core.text import percent, pluralize, to_printable

if TYPE_CHECKING:
    from dca.datasets.dataset import Dataset
    from dca.model.findings import DoubtfulLabel, LabelCheck

MOST = 40
MOST_OTHERS = 5
# Pixels of an image in the picture; many photos in full size would need gigabytes.
SIDE = 240


@click.command()
@click.argument("data", type=click.Path())
@click.option(
    "--most",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help=f"Show at most N images, the most doubtful first. [{MOST}; with --json all]",
)
@click.option(
    "--odds",
    type=click.FloatRange(min=1),
    default=10.0,
    show_default=True,
    help="Show images for which another class is at least this many times as probable as the given one.",
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Draw the images that are shown into this .png or .svg file. Needs matplotlib.",
)
@click.option("--backbone", default="mini", show_default=True, help="As for dca fit.")
@running
@quiet_flag
@json_flag
def command(
    data: str,
    most: int | None,
    odds: float,
    picture: Path | None,
    backbone: str,
    device: str,
    precision: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Find images of DATA whose labels look wrong.

    Each training image is left out in turn and predicted by a model of all others (the default
    method, which takes seconds). What is listed are candidates to look at, not facts: an unusual
    photo with the right label is listed as well. DATA has the forms that `dca fit` takes; to check
    another part, give its folder. No file is changed and no model is written.

    \b
    dca check-labels photos/
    dca check-labels photos/ --picture doubtful.png
    dca check-labels photos/test/ --odds 3 --most 100 --json
    """
    from dca.model.findings import check_labels
    from dca.model.inputs import as_dataset
    from dca.training.session import Session

    if picture is not None:
        from dca.plots.style import require_drawable

        require_drawable(picture)
    dataset = as_dataset(data, None)
    with showing(quiet=quiet) as progress:
        session = Session(device=device, progress=progress)
        found = check_labels(dataset, session, backbone=backbone, precision=precision, odds=odds)
    drawn = picture if found.doubtful else None
    if drawn is not None:
        draw(found, dataset, drawn, most or MOST)
    if as_json:
        emit(plain(found, data, odds, most, drawn))
        return
    click.echo("\n".join(summary(found, odds, most or MOST)))
    if picture is not None:
        click.echo(f"wrote {picture}" if drawn else f"nothing to draw: {picture} is not written")


def plain(found: LabelCheck, data: str, odds: float, most: int | None, picture: Path | None) -> dict[str, Any]:
    """What was found, as one JSON value."""
    rows = found.to_dict()
    drawn = {"picture": str(picture)} if picture is not None else {}
    shown = {"found": len(found.doubtful), **rows, "doubtful": rows["doubtful"][:most]}
    return {"data": data, "odds": odds, **shown, **drawn}


def summary(found: LabelCheck, odds: float, most: int) -> list[str]:
    """What was found, as lines of text."""
    doubtful, checked = found.doubtful, found.images - len(found.not_checked)
    seen = f"{len(doubtful):,} of {pluralize(checked, 'training image')}"
    lines = [
        f"labels to check: {seen} (another class at least {odds:g} times as probable)",
        f"predicted by models that have not seen the image (estimated accuracy {percent(found.estimate.accuracy)})",
    ]
    lines += table(doubtful[:most])
    if len(doubtful) > most:
        lines.append(f"{len(doubtful) - most:,} more: --most {len(doubtful)} shows them")
    if found.conflicts:
        lines.append(
            f"copies under two labels, of which at least one is wrong: {pluralize(len(found.conflicts), 'pair')}"
        )
        lines += _some([f"{_join_pair(one.images)} ({_join_pair(one.labels)})" for one in found.conflicts], most)
    if found.not_checked:
        only = "the only image of its class, or a copy of it, cannot be left out"
        lines.append(f"not checked: {pluralize(len(found.not_checked), 'image')} ({only})")
        lines += _some(list(map(to_printable, found.not_checked)), MOST_OTHERS)
    if doubtful:
        lines.append("These are candidates to look at, not facts: move a file only after looking at it.")
    return lines


def table(rows: Sequence[DoubtfulLabel]) -> list[str]:
    """One line per image with a line of titles; nothing without rows."""
    if not rows:
        return []
    cells = [["image", "given", "suggested", "probability", "of the given"]]
    for row in rows:
        words = map(to_printable, (row.image, row.label, row.suggested))
        cells.append([*words, f"{row.probability:.3f}", f"{row.own:.3f}"])
    widths = [columns(column) for column in zip(*cells, strict=True)]
    return ["  " + "  ".join(map(padded, line, widths)).rstrip() for line in cells]


def _some(lines: list[str], most: int) -> list[str]:
    """At most that many lines, indented; the last says how many more there are."""
    rest = [f"  and {len(lines) - most:,} more; --json has all of them"] if len(lines) > most else []
    return [*(f"  {line}" for line in lines[:most]), *rest]


def _join_pair(two: tuple[str, str]) -> str:
    return " ~ ".join(map(to_printable, two))


def draw(found: LabelCheck, dataset: Dataset, path: Path, most: int) -> None:
    """Draw the most doubtful images with both labels."""
    from PIL import ImageOps

    from dca import plots
    from dca.images.decode import open_image

    rows = found.doubtful[:most]
    plots.label_sheet(
        [ImageOps.fit(open_image(dataset.train[row.index].image), (SIDE, SIDE)) for row in rows],
        [Path(row.image).name for row in rows],
        [row.label for row in rows],
        [row.suggested for row in rows],
        [row.probability for row in rows],
        path,
        found=len(found.doubtful),
        of=found.images - len(found.not_checked),
    )
