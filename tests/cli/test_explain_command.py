from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, photos: Path, tiny_folder: Path) -> Path:
    """A closed form with a gallery on the tiny backbone."""
    from dca.runs.run import run
    from dca.runs.spec import FitSpec

    spec = FitSpec(data=str(photos), backbone=str(tiny_folder))
    return run(spec, tmp_path_factory.mktemp("explain") / "photos.dca", gallery=True).folder


def first(photos: Path) -> Path:
    return sorted((photos / "test").rglob("*.png"))[0]


def test_explain_prints_classes_and_neighbours_and_draws(
    dca: Callable[..., object], model: Path, photos: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "why.png"
    done = dca("explain", model, first(photos), "-o", target, "--backbone", tiny_folder)
    assert done.code == 0, done.err
    assert "nearest training images" in done.out
    assert done.out.count("cosine") == 5
    assert f"wrote {target}" in done.out
    with Image.open(target) as picture:
        assert picture.width > 1000
    told = json.loads(dca("explain", model, first(photos), "-o", target, "--backbone", tiny_folder, "--json").out)
    assert told["explained"] == told["top"][0]["label"]
    assert len(told["relevance"]) == 4
    assert sum(row["probability"] for row in told["top"]) <= 1 + 1e-9


def test_explain_writes_beside_the_user_by_default(
    dca: Callable[..., object], model: Path, photos: Path, tiny_folder: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    image = first(photos)
    done = dca("explain", model, image, "--class", "fish", "--backbone", tiny_folder)
    assert done.code == 0, done.err
    assert (tmp_path / f"{image.stem}.explain.png").is_file()


def test_a_model_without_gallery_says_so(
    dca: Callable[..., object], fitted: Path, photos: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    done = dca("explain", fitted, first(photos), "-o", tmp_path / "a.png", "--backbone", tiny_folder)
    assert done.code == 0, done.err
    assert "no gallery" in done.out


def test_prompts_are_printed_in_words(dca: Callable[..., object], fitted: Path, tiny_folder: Path) -> None:
    done = dca("explain", fitted, "--prompts", "--backbone", tiny_folder)
    assert done.code == 0, done.err
    assert "prompt 4:" in done.out
    assert "angles between prompts" in done.out
    told = json.loads(dca("explain", fitted, "--prompts", "--backbone", tiny_folder, "--json").out)
    assert len(told["angles"]) == len(told["prompts"]) == 4


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "either an image or --prompts"),
        (["a.png", "--prompts"], "either an image or --prompts"),
        (["a.png", "-o", "a.gif"], "charts are written as"),
        (["a.png"], "a.png"),
    ],
)
def test_mistakes_are_named(
    dca: Callable[..., object], model: Path, tiny_folder: Path, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    done = dca("explain", model, *arguments, "--backbone", tiny_folder)
    assert done.code == 2
    assert problem in done.err


def test_a_model_without_prompts_says_so(dca: Callable[..., object], model: Path, tiny_folder: Path) -> None:
    done = dca("explain", model, "--prompts", "--backbone", tiny_folder)
    assert done.code == 2
    assert "learns no prompts" in done.err
