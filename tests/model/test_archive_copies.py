"""Groups of copies over an archive, against a literal comparison of all pairs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from conftest import Said
from dca.model import archive_copies
from dca.model.archive_copies import find_archive_copies
from dca.model.embed import FeatureBlock
from oracles.archive_copies import group_copies


class Blocks:
    """Features in memory, as a table of files. sizes: images of each row group. reads: how often one was read."""

    def __init__(self, features: Tensor, sizes: list[int]) -> None:
        self.features, self.sizes, self.reads = features, sizes, 0

    def __len__(self) -> int:
        return len(self.sizes)

    def read(self, number: int) -> FeatureBlock:
        self.reads += 1
        start, size = sum(self.sizes[:number]), self.sizes[number]
        return FeatureBlock([str(n) for n in range(start, start + size)], self.features[start : start + size])


def archive(seed: int, *, dimensions: int, mean: float) -> Tensor:
    """120 features, some of them copies of others with noise of several strengths, in random order."""
    rng = torch.Generator().manual_seed(seed)
    features = torch.randn(80, dimensions, generator=rng) + mean
    noise = torch.logspace(-7, 0, 40)[:, None] * torch.randn(40, dimensions, generator=rng)
    features = torch.cat([features, features[torch.randint(0, 12, (40,), generator=rng)] + noise])
    return F.normalize(features[torch.randperm(120, generator=rng)], dim=-1)


def found(table: Any, threshold: float) -> list[list[int]]:
    return [[int(image.path) for image in group.images] for group in find_archive_copies(table, threshold)]


@pytest.mark.parametrize("threshold", [0.3, 0.9, 0.98, 0.9999])
@pytest.mark.parametrize(("dimensions", "mean", "frame"), [(40, 0.0, 3), (40, 2.0, 8), (6, 0.5, 64)])
def test_groups_are_those_of_all_pairs(
    threshold: float, dimensions: int, mean: float, frame: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_copies, "TILE", 16)
    monkeypatch.setattr(archive_copies, "FRAME", frame)
    for seed in range(3):
        features = archive(seed, dimensions=dimensions, mean=mean)
        expected = group_copies(features.double().tolist(), threshold)
        assert expected
        assert found(Blocks(features, [50, 0, 7, 63]), threshold) == expected


def test_similarities_are_those_to_the_first_image() -> None:
    features = archive(0, dimensions=40, mean=0.0)
    for group in find_archive_copies(Blocks(features, [120]), 0.9):  # type: ignore[arg-type]
        rows = [int(image.path) for image in group.images]
        expected = (features[rows] @ features[rows[0]]).tolist()
        assert [image.similarity for image in group.images] == pytest.approx(expected, abs=1e-6)
        assert expected[0] == pytest.approx(1, abs=1e-6)


def test_pairs_that_are_far_apart_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_copies, "TILE", 8)
    monkeypatch.setattr(archive_copies, "KEPT", 1)
    features = F.normalize(torch.eye(64) + 0.01, dim=-1)
    features[60] = features[3]
    table = Blocks(features, [8] * 8)
    assert found(table, 0.98) == [[3, 60]]
    # The sample and the coordinates are of all 8; then the two images are compared, described and named.
    assert table.reads <= 8 + 8 + 6


def test_images_that_are_all_the_same_are_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_copies, "TILE", 8)
    same = F.normalize(torch.ones(50, 4), dim=-1)
    assert found(Blocks(same, [50]), 1.0) == [list(range(50))]
    assert found(Blocks(same[:0], [0, 0]), 0.9) == []
    assert found(Blocks(same[:0], []), 0.9) == []


@pytest.mark.parametrize("kind", ["photos", "a.parquet"])
def test_the_command_lists_copies(
    kind: str, tmp_path: Path, fitted: Path, photos: Path, tiny_folder: Path, dca: Callable[..., Said]
) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "photos").mkdir()
    for n, path in enumerate(sorted((photos / "test").rglob("*.png"))):
        Image.open(path).save(tmp_path / "photos" / f"{n:02}.png")
    Image.open(tmp_path / "photos" / "03.png").save(tmp_path / "photos" / "copy.png")
    (tmp_path / "photos" / "bad.png").write_text("hello")
    if kind == "a.parquet":
        said = dca("embed", tmp_path / "photos", "-o", tmp_path / kind, "--backbone", tiny_folder)
        assert said.code == 0, said.err
    command = ["similar", fitted, "--copies", tmp_path / kind, "--backbone", tiny_folder, "--threshold", "0.999999"]
    said = dca(*command, "--json")
    assert said.code == 0, said.err
    (group,) = json.loads(said.out)
    assert [Path(row["path"]).name for row in group["images"]] == ["03.png", "copy.png"]
    assert "1 group; without copies, 1 image fewer" in dca(*command).out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--copies", "a", "--top", "3"], "--top is for the images most like one"),
        (["a", "b", "--threshold", "0.9"], "--threshold is for copies"),
        (["a"], "an image, or what to search, is missing"),
    ],
)
def test_options_that_do_not_go_together(
    arguments: list[str], words: str, fitted: Path, dca: Callable[..., Said]
) -> None:
    said = dca("similar", fitted, *arguments)
    assert (said.code, said.out) == (2, "")
    assert words in said.err
