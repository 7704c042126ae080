"""Hints are worded for the command line and for Python, and errors take flags and commands from them alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dca.core import hints
from dca.core.errors import UserError
from dca.core.hints import Action, Hint

EVERY = [
    hints.choose_output(),
    hints.choose_output("a folder outside the images"),
    hints.allow_overwrite(),
    hints.set_shots(4),
    hints.set_shots(1, 2),
    hints.combine("wait", hints.choose_output()),
    hints.hold_out(0.2),
    hints.omit("shots"),
    hints.omit("shots", "hold_out"),
    hints.set_option("learning_rate", 1e-3),
    hints.set_option("contexts", "unified"),
    hints.choose_backbone(),
    hints.choose_device("auto", "cpu"),
    hints.choose_precision("auto", "fp32", "bf16"),
    hints.list_methods(),
    hints.show_method("coop"),
    hints.list_datasets(),
    hints.show_dataset("eurosat"),
    hints.set_data_root("eurosat"),
    hints.check_data(),
    hints.write_draw(),
    hints.skip_unreadable(),
    hints.fit_first(),
    hints.resume_fit(),
    hints.evaluate_model(),
]


@pytest.mark.parametrize("action", EVERY, ids=lambda action: action.cli)
def test_python_is_told_no_flags_and_the_command_line_no_arguments(action: Action):
    assert "--" not in action.python
    assert "-o " not in action.python
    assert "`dca " not in action.python
    for argument in ("folder=", "overwrite=", "shots=", "hold_out", "device=", "precision=", "backbone=", "()"):
        assert argument not in action.cli
    assert not action.cli.endswith(".")
    assert not action.python.endswith(".")


@pytest.mark.parametrize(
    ("action", "cli", "python"),
    [
        (hints.choose_output(), "choose another folder with -o DIR", "choose another folder"),
        (hints.omit("shots", "hold_out"), "leave out --shots and --hold-out", "leave out shots and hold_out"),
        (hints.set_option("rate", 1e-5), "use --set rate=1e-05", "use rate=1e-05"),
        (hints.set_option("way", "left"), "use --set way=left", "use way='left'"),
        (hints.choose_device("auto", "cpu"), "use --device auto or cpu", "use device='auto' or 'cpu'"),
        (hints.choose_device("cpu"), "use --device cpu", "use device='cpu'"),
    ],
)
def test_an_action_has_words_for_both(action: Action, cli: str, python: str):
    assert (action.cli, action.python) == (cli, python)


def test_the_code_of_python_hints_runs_in_a_fresh_process():
    """Only names are looked up: calls on data are cut off before their arguments."""
    shown = [
        hints.check_data(),
        hints.write_draw(),
        hints.list_datasets(),
        hints.show_dataset("eurosat"),
        hints.list_methods(),
        hints.show_method("coop"),
        hints.fit_first(),
        hints.evaluate_model(),
    ]
    lines = [line for action in shown for line in re.findall(r"`(.*?)`", action.python)]
    assert len(lines) == len(shown)
    code = []
    for line in lines:
        called = re.sub(r"\((data|\.\.\.)\).*$", "", line).replace("classifier.", "dca.Classifier().")
        code.append(f"exec({called!r}, {{'dca': dca}})")
    script = "\n".join(["import dca", *code])
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=300)


@pytest.mark.parametrize(
    ("hint", "cli", "python"),
    [
        ("", "", ""),
        ((), "", ""),
        ("add images", "add images", "add images"),
        (hints.set_shots(2), "use --shots 2", "use shots=2"),
        (["", "add images", hints.set_shots(2)], "add images, or use --shots 2", "add images, or use shots=2"),
    ],
)
def test_a_hint_is_rendered_for_whoever_reads_it(hint: Hint, cli: str, python: str):
    error = UserError("too few images", details=["cat: 2"], hint=hint)
    assert error.hint == python
    assert str(error) == "too few images\n  cat: 2" + (f"\n  fix: {python}" if python else "")
    assert error.render("cli") == "too few images\n  cat: 2" + (f"\n  fix: {cli}" if cli else "")


# Errors below the command line name no flags and no commands: those come from `dca.core.hints`.

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
        if not name.startswith(("cli/", "study/commands/")) and (
            wrong := flags_in_errors(path.read_text(encoding="utf-8"))
        ):
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
