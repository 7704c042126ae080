"""dca app on the command line: what it says, and what it refuses; `dca serve` without a model is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dca.serve.options import ServeOptions


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, str, ServeOptions]]:
    """What would be served: nothing is, and the page is said to be at http://here/#token=t."""
    found: list[tuple[Path, str, ServeOptions]] = []

    def serve(workspace: Path, session: Any, backbone: str, options: ServeOptions, **rest: Any) -> None:
        found.append((workspace, backbone, options))
        rest["on_ready"]("http://here/#token=t")

    monkeypatch.setattr("dca.serve.server.serve_projects", serve)
    return found


def test_the_folder_is_a_workspace_or_a_project(dca, served: list[Any], photos: Path, tmp_path: Path):
    told = dca("app", tmp_path / "work")
    assert "http://here/#token=t   Ctrl-C" in told.out
    told = dca("app", photos / "train", "--max-photos", 7, "--backbone", "mini")
    assert f"http://here/#token=t&project={quote('train')}" in told.out
    assert [(workspace, backbone) for workspace, backbone, _ in served] == [
        (tmp_path / "work", "auto"), (photos.resolve(), "mini"),
    ]  # fmt: skip
    assert served[1][2].project_photos == 7


def test_serve_without_a_model_is_the_app(dca, served: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert dca("serve", "--port", 0).code == 0
    assert served[0][0] == tmp_path / "dca-projects"
    told = dca("serve", "--tray", tmp_path)
    assert (told.code, "a tray needs a model" in told.err) == (2, True)


def test_a_file_or_a_missing_package_is_named(dca, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "x").write_text("x")
    assert "is a file" in dca("app", tmp_path / "x").err
    monkeypatch.setattr("dca.serve.find_spec", lambda name: None)
    assert "pip install 'dca-prompt[serve]'" in dca("app", tmp_path).err
