"""A default fit opens every image file once and decodes it once."""

from __future__ import annotations

import builtins
import io
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageFile

from dca import Classifier

Counts = tuple[Counter[str], Counter[int]]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Counter[str], list[int]]]:
    """How often each image file is opened, and one entry per image that is decoded."""
    opened, decoded = Counter[str](), list[int]()
    true_open, true_load = io.open, ImageFile.ImageFile.load

    def count_open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, str | os.PathLike) and str(file).endswith(".png") and "r" in mode:
            opened[str(file)] += 1
        return true_open(file, mode, *args, **kwargs)

    def count_load(self: ImageFile.ImageFile) -> Any:
        if self.tile:  # its pixels are not decoded yet
            decoded.append(id(self))
        return true_load(self)

    monkeypatch.setattr(io, "open", count_open)
    monkeypatch.setattr(builtins, "open", count_open)
    monkeypatch.setattr(ImageFile.ImageFile, "load", count_load)
    return opened, decoded


def test_the_counters_count(tmp_path: Path, counts: tuple[Counter[str], list[int]]) -> None:
    opened, decoded = counts
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    for _ in range(2):
        with Image.open(tmp_path / "a.png") as image:
            image.convert("L")
    assert opened == {str(tmp_path / "a.png"): 2}
    assert len(decoded) == 2


@pytest.mark.parametrize("more", ["", ",efficientnet-lite0"])
@pytest.mark.parametrize("part", ["train", "."])
def test_a_default_fit_from_the_shell_opens_and_decodes_every_image_once(
    part: str,
    more: str,
    photos: Path,
    tiny_folder: Path,
    tmp_path: Path,
    counts: tuple[Counter[str], list[int]],
    dca: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without and with test images, one encoder and two, from an empty cache of features, with gallery and estimate."""
    monkeypatch.setenv("DCA_CACHE", str(tmp_path / "cache"))
    opened, decoded = counts
    images = sorted((photos / part).rglob("*.png"))
    said = dca("fit", photos / part, "-o", tmp_path / "m.dca", "--backbone", f"{tiny_folder}{more}", "--device", "cpu")
    assert said.code == 0, said.err
    assert opened == {str(image): 1 for image in images}
    assert len(decoded) == len(images)


def test_a_fit_from_python_opens_and_decodes_every_image_once(
    photos: Path,
    tiny_folder: Path,
    tmp_path: Path,
    counts: tuple[Counter[str], list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DCA_CACHE", str(tmp_path / "cache"))
    opened, decoded = counts
    images = sorted((photos / "train").rglob("*.png"))
    model = Classifier(backbone=tiny_folder, device="cpu").fit(photos / "train")
    model.save_pretrained(tmp_path / "m.dca")
    assert opened == {str(image): 1 for image in images}
    assert len(decoded) == len(images)
