"""`dca completion`, and what a shell is answered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dca.cli import COMMANDS
from dca.cli.completion import SHELLS, method_names
from dca.methods.registry import all_methods

# How each shell hands over the words: bash gives the place of the last one, fish the last one itself.
ASKING: dict[str, Callable[[list[str]], dict[str, str]]] = {
    "bash": lambda words: {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)},
    "zsh": lambda words: {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)},
    "fish": lambda words: {"COMP_WORDS": " ".join(words[:-1]), "COMP_CWORD": words[-1]},
}


def answers(*words: str, shell: str = "bash") -> list[str]:
    """What dca answers a shell that completes the last word, one line per completion."""
    asked = {"_DCA_COMPLETE": f"{shell}_complete", **ASKING[shell](["dca", *words])}
    found = subprocess.run(
        [sys.executable, "-m", "dca"], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert found.stderr == ""
    return [line for line in found.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_are_completed(shell: str) -> None:
    found = "\n".join(answers("re", shell=shell))
    assert "remove-class" in found
    assert "rename-class" in found
    assert "fit" not in found
    if shell != "bash":  # bash shows no help
        assert COMMANDS["remove-class"][1] in found


def test_options_values_and_files_are_completed() -> None:
    assert answers("fit", "--meth") == ["plain,--method"]
    assert answers("fit", "photos/", "--method", "tip") == ["plain,tip_adapter", "plain,tip_adapter_f"]
    assert answers("fit", "photos/", "--with", "dc") == ["plain,dca"]
    assert answers("methods", "show", "coc") == ["plain,cocoop"]
    assert answers("study", "run", "photos/", "--protocol", "base") == ["plain,base-to-new"]
    for words in (["fit", "ph"], ["predict", "m.dca", "ph"], ["eval", "m.dca", "ph"], ["check-labels", "ph"]):
        assert answers(*words) == ["file,ph"], words


def test_unknown_words_are_completed_with_nothing() -> None:
    assert answers("train", "ph") == []


def test_method_names_are_those_of_the_methods_and_need_no_torch() -> None:
    assert method_names() == sorted(all_methods())
    code = "import sys; from dca.cli.completion import method_names; method_names(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_is_printed(shell: str, dca: Any) -> None:
    said = dca("completion", shell)
    assert said.code == 0
    assert said.err == ""
    assert f"_DCA_COMPLETE={shell}_complete" in said.out
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=said.out, text=True, check=True)


def test_an_unknown_shell_is_named(dca: Any) -> None:
    said = dca("completion", "tcsh")
    assert said.code == 2
    assert "tcsh" in said.err
    assert "bash" in said.err


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_completes(tmp_path: Path) -> None:
    """The script in a real shell, with `dca` on its path."""
    program = tmp_path / "dca"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dca "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(dca completion bash)"; COMP_WORDS=(dca dat); COMP_CWORD=1; _dca_completion dca; echo "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    found = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True)
    assert found.stdout == "datasets\n"
    assert found.stderr == ""
