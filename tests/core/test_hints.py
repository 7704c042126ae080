"""Errors below the command line name no flags and no commands: those come from `dca.core.hints`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "dca"
FLAG_OR_COMMAND = re.compile(
    r"(?<![\w-])--[a-z]|(?<![\w-])-[oq](?![\w-])"
    r"|\bdca (fit|eval|predict|check-labels|(add|remove|rename)-class|export|push|methods|datasets|cache|doctor|demo)\b"
)


def texts(node: ast.AST) -> Iterator[ast.Constant]:
    """All string literals in a piece of code, the fixed parts of f-strings included."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner


def in_errors(tree: ast.Module) -> Iterator[ast.AST]:
    """Code that makes the text of an error: its call, any `hint=`, and what is assigned to the names these use."""
    found: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if ast.unparse(node.func).split(".")[-1] in ("UserError", "unknown_name"):
                found.append(node)
            found += [keyword.value for keyword in node.keywords if keyword.arg == "hint"]
    names = {inner.id for node in found for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if names & {inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)}:
                found.append(node.value)
    yield from found


def flags_in_errors(code: str) -> list[str]:
    """Line and text of every flag or command that an error of this code names."""
    wrong = {text for node in in_errors(ast.parse(code)) for text in texts(node) if FLAG_OR_COMMAND.search(text.value)}
    return [f"{text.lineno}: {text.value}" for text in sorted(wrong, key=lambda text: text.lineno)]


def test_errors_below_the_command_line_name_no_flags_and_no_commands():
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith("cli/") and (wrong := flags_in_errors(path.read_text(encoding="utf-8"))):
            found[name] = wrong
    assert found == {}


@pytest.mark.parametrize(
    "code",
    [
        "raise UserError('no', hint='use --shots 2')",
        "raise UserError('--shots and --draw cannot go together')",
        "raise errors.UserError('no', hint=f'choose {x} with -o DIR')",
        "raise UserError('no', details=['`dca methods` lists them'])",
        "raise unknown_name('method', name, known, hint='see dca methods')",
        "way_out = 'see `dca datasets show x`'\nraise UserError('no', hint=way_out)",
        "_WAY: Hint = ['add images', '--set epochs=5']\ndef f():\n    raise UserError('no', hint=_WAY)",
        "read_json(path, hint='fit again with --overwrite')",
        "raise UserError('no', hint=('add images', 'dca fit DATA'))",
    ],
)
def test_a_planted_flag_is_found(code: str):
    assert len(flags_in_errors(code)) == 1


@pytest.mark.parametrize(
    "code",
    [
        "raise UserError('a well-known problem -- or not', hint=set_shots(2))",
        "raise UserError(f'{folder} is not a dca model', hint='x-o-x')",
        "click.option('--shots')",
        "'''See `dca fit --help`.'''",
    ],
)
def test_other_text_is_not_found(code: str):
    assert flags_in_errors(code) == []
