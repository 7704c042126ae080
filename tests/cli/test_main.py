from __future__ import annotations

import doctest
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import dca as package
from dca import cli
from dca.__main__ import main as start
from dca.cli import pointers

HEAVY = ("torch", "numpy", "PIL", "sklearn", "matplotlib", "rich", "transformers", "safetensors", "tokenizers")


def python(code: str) -> Any:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=300)
    return json.loads(done.stdout.splitlines()[-1])


def test_import_dca_loads_nothing_heavy():
    loaded = python("import json, sys, dca; print(json.dumps(sorted(sys.modules)))")
    assert not set(HEAVY) & set(loaded)


def test_help_takes_under_a_second_of_one_core_and_loads_nothing_heavy():
    code = (
        "import json, resource, sys; from dca.cli import main; assert main(['--help']) == 0\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(json.dumps([used.ru_utime + used.ru_stime, sorted(sys.modules)]))"
    )
    seconds, loaded = python(code)
    assert seconds < 1
    assert not set(HEAVY) & set(loaded)


@pytest.mark.parametrize("chosen", [None, "ACTIVE"])
def test_threads_that_wait_leave_their_cores_to_others(monkeypatch: pytest.MonkeyPatch, chosen: str | None):
    monkeypatch.setattr(cli, "main", lambda: 0)
    if chosen:
        monkeypatch.setenv("OMP_WAIT_POLICY", chosen)
    else:
        monkeypatch.setenv("OMP_WAIT_POLICY", "")  # restored afterwards
        del os.environ["OMP_WAIT_POLICY"]
    with pytest.raises(SystemExit):
        start()
    assert os.environ["OMP_WAIT_POLICY"] == (chosen or "PASSIVE")


@pytest.mark.parametrize("command", ["fit", "eval", "predict", "doctor", "methods", "demo"])
def test_the_help_of_a_command_loads_no_torch(command: str):
    loaded = python(
        f"import json, sys; from dca.cli import main; assert main(['{command}', '--help']) == 0\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    assert "torch" not in loaded


def test_every_public_name_can_be_had():
    assert {name for name in package.__all__ if getattr(package, name) is None} == set()
    with pytest.raises(AttributeError, match="no attribute 'Clasifier'"):
        package.Clasifier  # noqa: B018


def test_help_names_every_command(dca: Any):
    said = dca("--help")
    assert said.code == 0
    for name, (_, what) in cli.COMMANDS.items():
        assert name in said.out
        assert what.split(",")[0] in said.out
    assert dca("--version").out.strip().endswith(package.__version__)


def test_every_command_is_there(dca: Any):
    for name in cli.COMMANDS:
        said = dca(name, "--help")
        assert said.code == 0, name
        assert said.out.startswith("Usage: dca")


def paths(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Words of every command and of the commands inside it."""
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from paths(inner, (*path, name))


def test_the_help_of_every_command_has_examples(dca: Any):
    found = list(paths(cli.group))
    assert ("datasets", "draw") in found
    for path in found:
        said = dca(*path, "--help")
        example = " ".join(("  dca", *path))
        assert said.code == 0
        assert any(line.startswith(example) for line in said.out.splitlines()), path


def test_an_unknown_command_suggests_the_nearest(dca: Any):
    said = dca("predcit", "x")
    assert said.code == 2
    assert "unknown command 'predcit'. Did you mean 'predict'?" in said.err


@pytest.mark.parametrize("line", [["fit"], ["eval", "x"], ["predict", "x"], ["fit", "x", "--frob"], []])
def test_a_line_that_lacks_something_exits_2_with_the_usage(dca: Any, line: list[str]):
    said = dca(*line)
    assert said.code == 2
    assert "Usage: dca" in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("line", "problem", "fix"),
    [
        ("gda", "'gda' is a method, not a command", "dca fit DATA --method gda"),
        ("gda --shots 4", "'gda' is a method", "dca fit DATA --shots 4 --method gda"),
        ("Tip-Adapter photos/", "'Tip-Adapter' is a method", "dca fit photos/ --method tip_adapter"),
        ("train photos/ --shots 2", "unknown command 'train'", "dca fit photos/ --shots 2"),
        ("test m.dca photos/", "unknown command 'test'", "dca eval m.dca photos/"),
        ("evaluate m.dca", "unknown command 'evaluate'", "dca eval m.dca"),
        ("classify m.dca new.jpg", "unknown command 'classify'", "dca predict m.dca new.jpg"),
        ("/ --shots 2", "'/' is a file or folder, not a command", "dca fit / --shots 2"),
    ],
)
def test_a_word_that_is_no_command_is_pointed_to_the_right_one(dca: Any, line: str, problem: str, fix: str):
    said = dca(*line.split())
    assert said.code == 2
    assert said.out == ""
    assert problem in said.err
    assert said.err.endswith(f"  fix: {fix}\n")


def test_the_command_that_is_suggested_can_be_copied(dca: Any):
    assert dca("train", "my photos/").err.endswith("fix: dca fit 'my photos/'\n")


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("--method dca --epochs 10", "--set epochs=10"),
        ("--method dca --epochs=10", "--set epochs=10"),
        ("--method dca --lr 0.1", "--set learning_rate=0.1"),
        ("--method dca --batch-size 8", "--set batch_size=8"),
        ("--method dca --epohs 10", "--set epochs=10"),
        ("--method dca --alpha", "--set alpha=VALUE"),
        ("--method coop --lr 0.1", "--set learning_rate=0.1"),
        ("--ridge 3", "--set ridge=3"),
        ("--epochs 10", "leave it out, or choose a trained method: --method dca --set epochs=10"),
        ("--form linear", "see the options and their limits with `dca methods show closed_form`"),
    ],
)
def test_an_option_of_a_method_is_pointed_to_set(dca: Any, line: str, fix: str):
    said = dca("fit", "photos/", *line.split())
    assert said.code == 2
    assert "error: dca fit has no option --" in said.err
    assert said.err.endswith(f"  fix: {fix}\n")


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("fit x --shot 3", "--shots"),
        ("fit x --see 3", "--seed"),
        ("predict m x --jsn", "--json"),
        ("eval m x --plot d", "--plots"),
    ],
)
def test_an_unknown_flag_suggests_the_nearest_and_no_other(dca: Any, line: str, flag: str):
    said = dca(*line.split())
    assert said.code == 2
    assert said.err.endswith(f"Did you mean '{flag}'?\n")
    assert "Usage: dca" in said.err


def test_a_flag_like_nothing_suggests_nothing(dca: Any):
    assert "Did you mean" not in dca("fit", "x", "--frob").err
    assert "--set" not in dca("eval", "m", "x", "--epochs", "10").err, "eval takes no options of a method"


def raising(error: BaseException) -> click.Command:
    @click.command()
    def command() -> None:
        raise error

    return command


def test_interrupts_exit_130(dca: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli.MainGroup, "get_command", lambda *_: raising(KeyboardInterrupt()))
    said = dca("doctor")
    assert said.code == 130
    assert "interrupted" in said.err
    assert "continue" not in said.err, "only a fit continues"


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (PermissionError(13, "Permission denied", "/locked"), "/locked: Permission denied"),
        (OSError(28, "No space left on device"), "the output: No space left"),
        (MemoryError(), "not enough memory"),
        (RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried"), "not enough memory"),
    ],
)
def test_what_the_machine_refuses_is_said_without_a_traceback(
    dca: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, part: str
):
    monkeypatch.setattr(cli.MainGroup, "get_command", lambda *_: raising(error))
    said = dca("doctor")
    assert said.code == 2
    assert part in said.err
    assert "Traceback" not in said.err


def test_a_bug_keeps_its_traceback(dca: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli.MainGroup, "get_command", lambda *_: raising(ZeroDivisionError("ours")))
    with pytest.raises(ZeroDivisionError):
        dca("doctor")


def test_traceback_shows_where_an_error_comes_from(dca: Any, tmp_path: Path):
    (tmp_path / "x.jpg").touch()
    said = dca("--traceback", "predict", tmp_path / "nowhere", tmp_path / "x.jpg")
    assert said.code == 2, "it is still the user's to change"
    assert "Traceback" in said.err
    assert "no such model folder" in said.err


@pytest.mark.parametrize("place", ["/proc/m.dca", "/proc/self/m.dca", "file/m.dca"])
def test_an_output_where_nothing_can_be_created_is_not_called_busy(
    dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path, place: str
):
    (tmp_path / "file").touch()
    said = dca("fit", photos, "--shots", 1, "--method", "zero_shot", "--backbone", tiny_folder, "-o", tmp_path / place)
    assert said.code == 2
    assert "cannot be written" in said.err
    assert "another fit" not in said.err


def test_the_command_line_is_told_flags_and_python_arguments(dca: Any, tmp_path: Path):
    from dca import UserError, load_dataset

    said = dca("fit", "eurosat", "-o", tmp_path / "m.dca")
    assert said.code == 2
    assert "--root DIR" in said.err
    assert "root=DIR" not in said.err
    with pytest.raises(UserError) as caught:
        load_dataset("eurosat")
    assert "root=DIR" in str(caught.value)
    assert "--root" not in str(caught.value)


def test_examples_in_docstrings_are_true():
    found = doctest.testmod(pointers)
    assert found.attempted > 0
    assert found.failed == 0
