"""dca study select: the options of every method, chosen on validation images by one rule."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from dca.cli.common import emit, json_flag, print_lines
from dca.cli.tables import format_table
from dca.core.text import percent


@click.command()
@click.argument("runs", type=click.Path(path_type=Path))
@click.option("--spec", default="selection", show_default=True, help="Specification of the cells to choose from.")
@click.option("--backbone", default=None, help="That of the sweep, if it was given there.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file to write."
)
@json_flag
def command(runs: Path, spec: str, backbone: str | None, output: Path, as_json: bool) -> None:
    """Choose the options of every method from the finished cells of a sweep on validation images.

    RUNS is the folder of the results, or a file of `dca study collect`. One rule for all methods: of the settings
    that are more than one standard error better than the one that is listed first, that with the best mean
    validation accuracy; if there are none, the first one. The file holds the rule, all figures and no date, so that
    equal results give equal bytes; quote its sha256.

    \b
    dca study sweep selection --data ~/datasets --runs runs/selection
    dca study select runs/selection -o selection.json
    """
    import hashlib

    from dca.core.files import write_json
    from dca.study.selection import select_options
    from dca.study.specification import load_specification

    selection = select_options(load_specification(spec, backbone=backbone), runs)
    write_json(output, selection)
    digest = hashlib.sha256(output.read_bytes()).hexdigest()
    if as_json:
        emit({**selection, "sha256": digest})
        return
    print_lines(*format_selection(selection))
    print_lines(f"wrote {output}, sha256 {digest}")


def format_selection(selection: Mapping[str, Any]) -> list[str]:
    """One line per method: the chosen setting, its accuracy, and the gain over the reference."""
    rows = []
    for method, row in selection["methods"].items():
        chosen = next(one for one in row["settings"] if one["options"] == row["chosen"])
        words = "the reference"
        if row["chosen"] != row["reference"]:
            gain = f"{100 * chosen['difference']:+.1f} ± {100 * chosen['standard_error']:.1f}"
            words = f"{' '.join(f'{k}={v}' for k, v in row['chosen'].items())} ({gain})"
        rows.append([method, percent(chosen["accuracy"]), f"of {len(row['settings'])}", words])
    return format_table(rows)
