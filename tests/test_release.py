"""The files of a release: built, checked, and installed where nothing else is.

Only the package index is used. `make release-check` runs them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import dca

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow


def call(*command: object, cwd: Path, **more: str) -> str:
    """Run a program that sees nothing of this checkout; returns its stdout."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    found = subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**env, **more}, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, f"{command}\n{found.stdout[-2000:]}\n{found.stderr[-2000:]}"
    return found.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that is built from it by files with known hashes."""
    folder, builder = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("builder")
    call(sys.executable, "-m", "venv", builder, cwd=folder)
    python, needed = builder / "bin" / "python", ROOT / ".ci" / "build-requirements.txt"
    call(python, "-m", "pip", "install", "-q", "--require-hashes", "-r", needed, cwd=folder)
    call(python, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def sources() -> set[str]:
    """Every file under src, as a wheel names it."""
    files = (path for path in (ROOT / "src").rglob("*") if path.is_file())
    return {
        path.relative_to(ROOT / "src").as_posix()
        for path in files
        if "__pycache__" not in path.parts and ".egg-info" not in str(path)
    }


def test_the_wheel_has_every_file_and_no_other(wheel: Path) -> None:
    """The embedded weights, class names, pages and scripts among them."""
    names = set(zipfile.ZipFile(wheel).namelist())
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == sources()
    assert {name.split("/")[0] for name in inside} == {"dca"}
    assert inside >= {"dca/py.typed", "dca/backbones/mini/model.safetensors", "dca/export/web/index.html"}
    assert f"dca_prompt-{dca.__version__}.dist-info/licenses/LICENSE" in names


def test_the_sdist_has_what_the_tests_and_the_site_need(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    wanted = {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "Makefile", "mkdocs.yml"}
    wanted |= {"pyproject.toml", "docs/index.md", "docs/notebooks/photos.ipynb", "tests/conftest.py"}
    assert names >= wanted | {
        "study/results/study.jsonl",
        "scripts/pages.py",
        "pretrain/mini.toml",
        ".ci/constraints.txt",
    }
    # The weights are in the wheel and in src; nothing else may be large.
    assert path.stat().st_size < 60e6


def test_twine_finds_nothing(built: Path) -> None:
    call(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir(), cwd=built)


def test_the_citation_is_of_this_version() -> None:
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert found["cff-version"] == "1.2.0"
    assert {"title", "message", "authors", "license", "version", "references"} <= found.keys()
    assert found["version"] == dca.__version__


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """An empty environment with the wheel and what it requires; the versions are those of the tests."""
    folder = tmp_path_factory.mktemp("place")
    call(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    call(python, "-m", "pip", "install", "-q", "-c", ROOT / ".ci" / "constraints.txt", wheel, cwd=folder)
    return folder


def test_the_installed_package_is_the_wheel_s(place: Path) -> None:
    code = "import dca; print(dca.__version__, dca.__file__)"
    version, path = call(place / "venv" / "bin" / "python", "-c", code, cwd=place).split()
    assert version == dca.__version__
    assert Path(path).is_relative_to(place)


def test_the_demonstration_runs_where_only_the_wheel_is_installed(place: Path) -> None:
    said = call(place / "venv" / "bin" / "dca", "demo", cwd=place, DCA_CACHE=str(place / "cache"))
    assert "accuracy on 200 test images" in said
    assert "no plots: charts need matplotlib" in said
    assert (place / "dca-demo" / "model.safetensors").is_file()
