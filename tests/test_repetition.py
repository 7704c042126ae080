"""No method is a copy of another: what two of them share belongs into a module of its own."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import pytest

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


def test_all_methods_are_looked_at():
    found = sources()
    assert {"interface.py", "coop.py", "dca.py", "zero_shot.py"} <= set(found)
    assert all(len(telling(text)) >= 8 for name, text in found.items() if not name.endswith("__init__.py"))


def body(count: int, start: int = 1) -> str:
    return "".join(f"    x{n} = f({n})\n" for n in range(start, start + count))


def indented(text: str) -> str:
    return "".join(f"    {line}" for line in text.splitlines(keepends=True))


def test_a_planted_repetition_is_found_with_both_places_and_its_lines():
    one = "import torch\n\n\ndef f(x):\n" + body(8) + "    return x\n"
    other = '"""Another."""\n\n\ndef g(y):\n' + body(8) + "    return y\n"
    (found,) = repetitions({"a.py": one, "b.py": other, "c.py": "def f(x):\n    return x\n"})
    assert found.splitlines()[0] == "a.py:5-12 = b.py:5-12"
    assert [line.strip() for line in found.splitlines()[1:]] == [f"x{n} = f({n})" for n in range(1, 9)]


def test_a_planted_copy_of_a_method_is_found():
    found = sources()
    copy = "if True:\n" + indented(found["coop.py"].replace("CoOp", "Other"))
    assert any(line.startswith("coop.py:") for line in repetitions({**found, "other.py": copy}))


@pytest.mark.parametrize(
    "between",
    [
        "\n",
        "    # why\n",
        "    import os\n",
        "    from os import (\n        path,\n        sep,\n    )\n",
        "    (\n    )\n",
    ],
)
def test_what_does_not_count_does_not_hide_a_repetition(between: str):
    one = "def f():\n" + body(4) + between + body(4, start=5)
    other = "def g():\n" + body(8)
    assert len(repetitions({"a.py": one, "b.py": other})) == 1
    assert len(repetitions({"b.py": other, "a.py": one})) == 1


def test_indentation_does_not_hide_a_repetition():
    deep = "class A:\n    def f(self):\n" + indented(body(8))
    assert len(repetitions({"a.py": deep, "b.py": "def g():\n" + body(8)})) == 1


def test_a_long_repetition_is_told_once_and_each_of_two_is_told():
    whole = "def f():\n" + body(20)
    (found,) = repetitions({"a.py": whole, "b.py": whole})
    assert found.startswith("a.py:1-21 = b.py:1-21")
    parted = "def g():\n" + body(8) + "    y = 0\n" + body(8, start=11)
    assert len(repetitions({"a.py": whole, "b.py": parted})) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f():\n" + body(7), "def g():\n" + body(7)),
        ("def f():\n" + body(8), "def g():\n" + body(4) + "    y = 0\n" + body(4, start=5)),
        ("import a\n" * 9, "import a\n" * 9),
        ("from a import (\n" + body(9).replace(" = ", " as y").replace("f(", "").replace(")", ",") + ")\n",) * 2,
        ("# the same\n" * 9, "# the same\n" * 9),
        ("x = [\n" + "    (\n    ),\n" * 9 + "]\n", "y = [\n" + "    (\n    ),\n" * 9 + "]\n"),
    ],
)
def test_less_or_what_does_not_count_is_no_repetition(one: str, other: str):
    assert repetitions({"a.py": one, "b.py": other}) == []


def test_a_hash_inside_a_string_is_no_comment():
    text = 'x = """\n' + "".join(f"# {n}\n" for n in range(8)) + '"""\n'
    assert len(repetitions({"a.py": text, "b.py": f"y = 1\n{text}"})) == 1
