"""No method is a copy of another: what two of them share belongs into a module of its own."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

METHODS = Path(__file__).resolve().parents[1] / "src" / "dca" / "methods"
MOST_EQUAL_LINES = 7
# A line of nothing else says nothing.
EMPTY = " ()[]{}\"',:"

Line = tuple[int, str]


def sources(root: Path = METHODS) -> dict[str, str]:
    """File name -> text of every file of the methods."""
    return {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py"))}


def telling(text: str) -> list[Line]:
    """Number and stripped text of the lines that count: no blanks, lone brackets or quotes, comments, imports."""
    left_out = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        number, column = token.start
        if token.type == tokenize.COMMENT and not lines[number - 1][:column].strip():
            left_out.add(number)
    return [(n, line.strip()) for n, line in enumerate(lines, 1) if n not in left_out and line.strip(EMPTY)]


def runs(one: list[Line], other: list[Line], most: int) -> list[tuple[list[Line], list[Line]]]:
    """Every stretch of more than `most` equal lines, as long as it gets, as it stands in the one and in the other."""
    found = []
    for i in range(len(one)):
        for j in range(len(other)):
            if i and j and one[i - 1][1] == other[j - 1][1]:
                continue  # the stretch began earlier
            length = 0
            while i + length < len(one) and j + length < len(other) and one[i + length][1] == other[j + length][1]:
                length += 1
            if length > most:
                found.append((one[i : i + length], other[j : j + length]))
    return found


def repetitions(texts: Mapping[str, str], most: int = MOST_EQUAL_LINES) -> list[str]:
    """Every pair of files with more than `most` equal lines on end: where, and the lines."""
    counted = {name: telling(text) for name, text in texts.items()}
    return [
        f"{one}:{here[0][0]}-{here[-1][0]} = {other}:{there[0][0]}-{there[-1][0]}\n"
        + "\n".join(f"    {line}" for _, line in here)
        for one, other in combinations(counted, 2)
        for here, there in runs(counted[one], counted[other], most)
    ]


def test_no_two_files_of_methods_share_eight_lines():
    found = repetitions(sources())
    assert not found, "move what they share into a module of its own:\n" + "\n".join(found)
