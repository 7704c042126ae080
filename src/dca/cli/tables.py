"""Text in columns, as the commands print it."""

from __future__ import annotations

from collections.abc import Sequence

from dca.core.text import make_visible


def format_table(
    rows: Sequence[Sequence[str]], *, align: str = "", indent: int = 0, pad_last: bool = False
) -> list[str]:
    """Format rows as lines whose columns are two spaces apart.

    Args:
        rows: Cells; every row has the same number of them.
        align: One letter per column, "l" or "r"; columns without one are aligned left.
        indent: Spaces in front of each line.
        pad_last: Keep the spaces at the end of lines, so that all are equally wide.

    Returns:
        One line per row.

    >>> format_table([["cat", "97.5 %"], ["大熊猫", "8.0 %"]], align="lr", indent=2)
    ['  cat     97.5 %', '  大熊猫   8.0 %']
    """
    from rich.cells import cell_len  # 大 and 🐶 take two terminal columns

    rows = [[make_visible(cell) for cell in row] for row in rows]
    columns = len(rows[0]) if rows else 0
    widths = [max(cell_len(row[n]) for row in rows) for n in range(columns)]

    def pad(text: str, n: int) -> str:
        space = " " * (widths[n] - cell_len(text))
        return space + text if align[n : n + 1] == "r" else text + space

    lines = [" " * indent + "  ".join(pad(cell, n) for n, cell in enumerate(row)) for row in rows]
    return lines if pad_last else [line.rstrip() for line in lines]
