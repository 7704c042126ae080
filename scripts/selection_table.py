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
# The methods of which a table shows all settings, and the mark of that table.
ALL_SETTINGS, SETTINGS = ("clap", "lamm"), "settings: scripts/selection_table.py"


def make_table(selection: Mapping[str, Any]) -> str:
    """One row per method: its reference, and what was chosen instead."""
    lines = [
        "| method | settings | reference | mean | chosen | mean | difference |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*lines, *(_make_row(name, own) for name, own in selection["methods"].items())])


def make_settings_table(selection: Mapping[str, Any]) -> str:
    """One row per setting of CLAP and LAMM: what differs from the reference, and what that brings."""
    lines = ["| method | setting | mean | difference |", "|---|---|---:|---:|"]
    for name in ALL_SETTINGS:
        own = selection["methods"][name]
        for number, one in enumerate(own["settings"]):
            changed = _format_options(one["options"], own["reference"]) or "the reference"
            mean, gain = _format_percent(one), _format_gain(one) if number else ""
            lines.append(f"| `{name}` | {changed} | {mean} | {gain} |")
    return "\n".join(lines)


def _format_gain(setting: Mapping[str, Any]) -> str:
    """The paired difference to the reference with its standard error, in points."""
    return f"{100 * setting['difference']:+.1f} ± {100 * setting['standard_error']:.1f}"


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
    last = [_format_options(own["chosen"], own["reference"]), _format_percent(chosen), _format_gain(chosen)]
    return "| " + " | ".join([*cells, *last]) + " |"


def _find_setting(own: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(one for one in own["settings"] if one["options"] == own["chosen"])
    return found


def _format_options(options: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The options that differ from those of another setting."""
    return ", ".join(f"`{name}={'auto' if v is None else v}`" for name, v in options.items() if v != other[name])


def _format_percent(setting: Mapping[str, Any]) -> str:
    return f"{100 * setting['accuracy']:.1f}"


def main() -> None:
    """Write the tables."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    selection = read_json(SELECTION)
    write_part(SCRIPT, make_table(selection))
    write_part(SETTINGS, make_settings_table(selection))


if __name__ == "__main__":
    main()
