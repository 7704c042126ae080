"""Write the options that were chosen on validation images into docs/, from study/selection.json.

python scripts/selection_table.py
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pages import write_part

from dca.core.files import read_json

SELECTION = Path(__file__).resolve().parents[1] / "study" / "selection.json"
SCRIPT = "scripts/selection_table.py"


def make_table(selection: Mapping[str, Any]) -> str:
    """One row per method: its reference, and what was chosen instead."""
    lines = [
        "| method | settings | reference | mean | chosen | mean | difference |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*lines, *(_make_row(name, own) for name, own in selection["methods"].items())])


def _make_row(method: str, own: Mapping[str, Any]) -> str:
    reference, chosen = own["settings"][0], _find_setting(own)
    cells = [
        f"`{method}`",
        str(len(own["settings"])),
        _format_options(own["reference"], own["chosen"]),
        _format_percent(reference),
    ]
    if chosen is reference:
        return "| " + " | ".join([f"`{method}`", cells[1], "", cells[3], "the reference", "", ""]) + " |"
    gain = f"{100 * chosen['difference']:+.1f} ± {100 * chosen['standard_error']:.1f}"
    return (
        "| "
        + " | ".join([*cells, _format_options(own["chosen"], own["reference"]), _format_percent(chosen), gain])
        + " |"
    )


def _find_setting(own: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(one for one in own["settings"] if one["options"] == own["chosen"])
    return found


def _format_options(options: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The options that differ from those of another setting."""
    return ", ".join(f"`{name}={'auto' if v is None else v}`" for name, v in options.items() if v != other[name])


def _format_percent(setting: Mapping[str, Any]) -> str:
    return f"{100 * setting['accuracy']:.1f}"


def main() -> None:
    """Write the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    write_part(SCRIPT, make_table(read_json(SELECTION)))


if __name__ == "__main__":
    main()
