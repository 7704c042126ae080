"""Write the table of methods into docs/methods.md, from the methods themselves.

    python benchmarks/method_table.py
    python benchmarks/method_table.py experiments/few-shot.toml RUNS    first make methods/measured.json of these runs
"""

from __future__ import annotations

import sys
from pathlib import Path

from dca.core.files import write_json
from dca.methods.registry import all_methods
from dca.methods.summary import table
from dca.studies.measured import measured_accuracies
from dca.studies.spec_file import load_study

ROOT = Path(__file__).resolve().parents[1]
PAGE, MEASURED = ROOT / "docs" / "methods.md", ROOT / "src" / "dca" / "methods" / "measured.json"
BEGIN, END = "<!-- methods: benchmarks/method_table.py -->\n", "\n<!-- end of methods -->"


def filled(page: str) -> str:
    """The page with the table of the methods in this package between its marks."""
    ours = [method for method in all_methods().values() if method.__module__.startswith("dca.methods.")]
    before, rest = page.split(BEGIN)
    return before + BEGIN + table(ours) + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    if len(sys.argv) == 3:
        write_json(MEASURED, measured_accuracies(load_study(sys.argv[1]), Path(sys.argv[2])))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
