from __future__ import annotations

import re
import subprocess
import sys

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
    hints.measure(),
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
        (hints.choose_output(), "choose another folder with -o DIR", "choose another folder with folder=DIR"),
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
        hints.measure(),
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
