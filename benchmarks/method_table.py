"""Write the table of methods into docs/methods.md, from the methods themselves.

python benchmarks/method_table.py
"""

from __future__ import annotations

from pathlib import Path

from dca.methods.registry import all_methods
from dca.methods.summary import table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "methods.md"
BEGIN, END = "<!-- methods: benchmarks/method_table.py -->\n", "\n<!-- end of methods -->"


def filled(page: str) -> str:
    """The page with the table of the methods in this package between its marks."""
    ours = [method for method in all_methods().values() if method.__module__.startswith("dca.methods.")]
    before, rest = page.split(BEGIN)
    return before + BEGIN + table(ours) + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
