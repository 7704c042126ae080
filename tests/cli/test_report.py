from __future__ import annotations

import json
import webbrowser
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses that a browser was asked to open."""
    found: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: not found.append(address))
    return found


def test_report_writes_into_the_model_folder(
    dca: Callable[..., object], tmp_path: Path, photos: Path, tiny_folder: Path, opened: list[str]
) -> None:
    model = tmp_path / "photos.dca"
    done = dca("fit", photos, "-o", model, "--backbone", tiny_folder, "--open", "--json", "-q")
    assert done.code == 0, done.err
    assert json.loads(done.out)["accuracy"] is not None
    page = model / "report.html"
    assert opened == [page.resolve().as_uri()]
    assert "30 test images of photos" in page.read_text(encoding="utf-8")
    done = dca("report", model, "--backbone", tiny_folder)
    assert done.code == 0, done.err
    assert f"wrote {page} (" in done.out
    assert "each predicted without it (4-fold cross-validation)" in page.read_text(encoding="utf-8")
    other = tmp_path / "deep" / "page.html"
    assert dca("report", model, photos, "-o", other, "--open", "--backbone", tiny_folder).code == 0
    assert "test/" in other.read_text(encoding="utf-8")
    assert len(opened) == 2
    done = dca("remove-class", model, "fish", "--backbone", tiny_folder)
    assert done.code == 0, done.err
    assert not page.exists(), "a page about the model before the change is not kept"


def test_report_without_a_browser_says_where_the_page_is(
    dca: Callable[..., object], fitted: Path, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    done = dca("report", fitted, "-o", tmp_path / "a.html", "--open", "--backbone", tiny_folder)
    assert done.code == 0, done.err
    assert "no browser found; open" in done.err


def test_mistakes_of_the_user_are_named(dca: Callable[..., object], tmp_path: Path) -> None:
    done = dca("report", tmp_path / "nothing")
    assert done.code == 2
    assert "nothing is no folder of a model" in done.err
    assert "dca fit" in done.err
    assert "dca study report" in done.err
    (tmp_path / "empty").mkdir()
    done = dca("report", tmp_path / "empty")
    assert done.code == 2
    assert "empty holds no model" in done.err


def test_compare_prints_and_writes_a_page(
    dca: Callable[..., object], fitted: Path, photos: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "zero.dca"
    fit = dca("fit", photos, "--method", "zero_shot", "-o", other, "--backbone", tiny_folder, "--shots", 2, "-q")
    assert fit.code == 0, fit.err
    places = (fitted, other, photos, "--backbone", tiny_folder)
    page = tmp_path / "page.html"
    done = dca("compare", *places, "-o", page)
    assert done.code == 0, done.err
    assert "difference to photos.dca on the same images (95 % interval, Tango" in done.out
    assert "Where they disagree" in page.read_text(encoding="utf-8")
    told = json.loads(dca("compare", *places, "--json").out)
    assert [row["name"] for row in told["models"]] == ["photos.dca", "zero.dca"]
    assert told["models"][1]["difference"]["n"] == told["n"] == 30
    same = json.loads(dca("compare", fitted, fitted, photos, "--backbone", tiny_folder, "--json").out)
    assert [row["name"] for row in same["models"]] == [str(fitted)] * 2
    assert same["disagreements"] == []


def test_compare_needs_two_models(dca: Callable[..., object], fitted: Path, photos: Path) -> None:
    done = dca("compare", fitted, photos)
    assert done.code == 2
    assert "two models and labelled images are needed" in done.err
