"""`dca methods new`: the package that it writes is installed, found and passes every check."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dca as library
from dca.core.errors import UserError
from dca.methods.new_package import write_package


def run(*arguments: object, folder: Path, path: list[Path]) -> str:
    """What a command prints; modules of `path` can be imported by it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_it_is_installed_found_and_passes_every_check(tmp_path: Path, dca: Any) -> None:
    pytest.importorskip("setuptools", "70.1", reason="needs setuptools 70.1, which builds the package")
    package, site = tmp_path / "dca-my-own", tmp_path / "site"
    said = dca("methods", "new", "my_own", "-o", package)
    assert said.code == 0, said.err
    assert "dca methods check my_own" in said.out
    assert sorted(path.name for path in package.iterdir()) == [
        "README.md",
        "dca_my_own.py",
        "pyproject.toml",
        "test_dca_my_own.py",
    ]
    install = ["-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-index", "--target", site]
    run(*install, package, folder=tmp_path, path=[])
    path = [Path(library.__file__).parents[1], site]
    told = run("-m", "dca", "methods", "show", "my_own", folder=tmp_path, path=path)
    assert told.startswith("MyOwn: one learned vector per class")
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_dca_my_own.py", folder=package, path=path)


def test_what_it_writes_is_formatted_as_this_package_is(tmp_path: Path) -> None:
    pytest.importorskip("ruff", reason="needs ruff")
    package = write_package("my_own", tmp_path / "package")
    settings = Path(__file__).resolve().parents[2] / "pyproject.toml"
    run("-m", "ruff", "format", "--check", "--config", settings, package, folder=tmp_path, path=[])
    run("-m", "ruff", "check", "--config", settings, package / "dca_my_own.py", folder=tmp_path, path=[])


@pytest.mark.parametrize("name", ["My Method", "1st", "", "class", "a-b", "../x", "é"])
def test_a_name_that_cannot_be_one_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be the name of a method"):
        write_package(name, tmp_path / "package")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["dca", "zero_shot", "zeroshot_"])
def test_the_name_of_another_method_is_refused(name: str, tmp_path: Path) -> None:
    if name == "zeroshot_":
        assert write_package(name, tmp_path / "package").exists()
        return
    with pytest.raises(UserError, match=f"there is a method called {name}"):
        write_package(name, tmp_path / "package")


def test_a_folder_that_exists_is_not_touched(tmp_path: Path, dca: Any) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "mine.py").write_text("x = 1\n")
    said = dca("methods", "new", "my_own", "-o", tmp_path / "package")
    assert said.code == 2
    assert "exists" in said.err
    assert [path.name for path in (tmp_path / "package").iterdir()] == ["mine.py"]
