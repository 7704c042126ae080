"""The site of the documentation: it builds without a warning, lists every page, and its notebook runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

import dca
from dca import estimators
from dca.study import protocols

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# The notebooks, and a part of what each of them prints.
NOTEBOOKS = {"photos": "of 20 images", "arrays": "of 40 new images", "research": "of 200 images"}


def nav_pages(nav: Any) -> Iterator[str]:
    """The pages of a navigation, sections included."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from nav_pages(part)


def test_every_page_is_in_the_navigation_once() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = list(nav_pages(config["nav"]))
    assert len(set(listed)) == len(listed)
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert sorted(pages - {*listed}) == [], "add a line for each to `nav` in mkdocs.yml"
    assert sorted({*listed} - pages) == [], "these are in `nav` of mkdocs.yml, but not in docs/"


def test_the_pages_of_a_navigation_are_found() -> None:
    assert list(nav_pages([{"A": "a.md"}, {"Part": [{"B": "b.md"}, "c.md"]}])) == ["a.md", "b.md", "c.md"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning fails the build."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(target)]
    # The variable silences an advertisement of mkdocs-material for its successor, no warning about these pages.
    built = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    assert built.stderr == ""
    return target


def test_every_page_is_built(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        inside = page.relative_to(DOCS).with_suffix("")
        folder = site / (inside.parent if inside.name == "index" else inside)
        assert "</html>" in (folder / "index.html").read_text(encoding="utf-8"), page
    for notebook in NOTEBOOKS:
        assert (site / "notebooks" / f"{notebook}.ipynb").is_file()


def test_no_page_asks_for_anything_from_elsewhere(site: Path) -> None:
    loaded = r"<(?:script|img|iframe)[^>]+src=\"?https?:"
    linked = r"<link[^>]+rel=\"?(?:stylesheet|preconnect)[^>]+https?:"
    pattern = re.compile(f"{loaded}|{linked}")
    assert [page.name for page in site.rglob("*.html") if pattern.search(page.read_text(encoding="utf-8"))] == []


def test_the_api_reference_has_every_public_name(site: Path) -> None:
    page = (site / "api" / "index.html").read_text(encoding="utf-8")
    for name in dca.__all__:
        if name not in ("__version__", "protocols"):
            assert f'id="dca.{name}"' in page, name
    for name in estimators.__all__:
        assert f'id="dca.estimators.{name}"' in page, name
    for name in protocols.__all__:
        assert f'id="dca.study.protocols.{name}"' in page, name
    assert 'id="dca.Classifier.predict_proba"' in page
    # Examples are code, not text with brackets.
    assert "&gt;&gt;&gt; " in page


def test_versions_agree() -> None:
    assert f"{{{dca.__version__}}}" in (DOCS / "cite.md").read_text(encoding="utf-8")
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == dca.__version__


def test_every_notebook_is_run() -> None:
    assert {path.stem for path in (DOCS / "notebooks").glob("*.ipynb")} == {*NOTEBOOKS}


def read_notebook(name: str) -> nbformat.NotebookNode:
    """A notebook of docs/."""
    return nbformat.read(DOCS / "notebooks" / f"{name}.ipynb", as_version=4)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_no_outputs(name: str) -> None:
    notebook = read_notebook(name)
    nbformat.validate(notebook)
    assert [c for c in notebook.cells if c.cell_type == "code" and (c.outputs or c.execution_count)] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = read_notebook(name)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    monkeypatch.setenv("DCA_CACHE", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    texts = [out.get("text", "") or out.get("data", {}).get("text/plain", "") for c in cells for out in c.outputs]
    printed = "".join(texts)  # what a cell prints may come in several parts
    assert NOTEBOOKS[name] in printed
    if name == "photos":
        assert "fish/house.png: is it house?" in printed  # the photo in the wrong folder
        assert "'none of these'" in printed
        assert "'cactus'" in texts  # the saved model
    if name == "arrays":
        assert re.search(r"most doubtful: \[ ?0 ", printed)
