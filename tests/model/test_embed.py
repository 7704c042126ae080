"""Features in a file, and the most similar images, against a literal search."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from conftest import Said, make_clip
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset
from dca.model import embed
from dca.model.classifier import Classifier
from dca.model.embed import FeatureBlock, embed_to_file, find_similar, read_features


def saved(folder: Path, count: int = 7) -> list[str]:
    rng = np.random.default_rng(0)
    for n in range(count):
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(folder / f"{n}.png")
    (folder / "broken.png").write_bytes(b"no image")
    return sorted(map(str, folder.glob("*.png")))


def test_a_file_holds_the_unit_features_of_all_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(embed, "BLOCK", 3)
    (tmp_path / "photos").mkdir()
    clip, paths = make_clip(), saved(tmp_path / "photos")
    done = embed_to_file(clip, paths, tmp_path / "a.parquet")
    assert (done.images, done.unreadable, done.size) == (8, 1, clip.feature_dim)
    blocks = list(read_features(tmp_path / "a.parquet", clip))
    assert len(blocks) > 1
    assert [path for block in blocks for path in block.paths] == [path for path in paths if "broken" not in path]
    with torch.no_grad():
        expected = F.normalize(clip.encode_image([Image.open(p) for p in paths if "broken" not in p]), dim=-1)
    assert torch.allclose(torch.cat([block.features for block in blocks]), expected, atol=1e-5)
    with pytest.raises(UserError, match="exists"):
        embed_to_file(clip, paths, tmp_path / "a.parquet")
    with pytest.raises(UserError, match="is another backbone"):
        list(read_features(tmp_path / "a.parquet", make_clip(seed=5)))


@pytest.mark.parametrize("size", [1, 4, 100])
def test_the_most_similar_images_are_those_of_a_whole_search(size: int) -> None:
    rng = torch.Generator().manual_seed(0)
    features = F.normalize(torch.randn(50, 8, generator=rng), dim=-1)
    names = [f"{n}" for n in range(50)]
    blocks = (FeatureBlock(names[n : n + size], features[n : n + size]) for n in range(0, 50, size))
    found = find_similar(features[17], blocks, 5)
    cosines = [float(sum(a * b for a, b in zip(row, features[17], strict=True))) for row in features]
    expected = sorted(range(50), key=lambda n: -cosines[n])[:5]
    assert [one.path for one in found] == [names[n] for n in expected]
    assert [one.similarity for one in found] == pytest.approx([cosines[n] for n in expected], abs=1e-5)
    assert found[0].path == "17"


def test_transform_gives_the_features_that_predict_takes(sample: Dataset) -> None:
    model = Classifier(shots=2, backbone=make_clip(), device="cpu").fit(sample)
    images = [item.image for item in sample.test[:4]]
    features = model.transform(images)
    assert features.shape == (4, model.method_.encoder.feature_dim)
    found = model.predict_features(torch.from_numpy(features)).probabilities
    np.testing.assert_allclose(found, model.predict_proba(images), atol=1e-6)
    assert model.transform(images[0]).shape == (model.method_.encoder.feature_dim,)


def test_the_commands_find_a_copy(tmp_path: Path, fitted: Path, tiny_folder: Path, dca: Callable[..., Said]) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "photos").mkdir()
    paths = saved(tmp_path / "photos")
    table = tmp_path / "a.parquet"
    said = dca("embed", tmp_path / "photos", "-o", table, "--backbone", tiny_folder, "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["images"] == 8
    for archive in (tmp_path / "photos", table):
        said = dca("similar", fitted, paths[2], archive, "--backbone", tiny_folder, "--top", 2, "--json")
        assert said.code == 0, said.err
        first, second = json.loads(said.out)
        assert (first["path"], first["similarity"]) == (paths[2], pytest.approx(1, abs=1e-5))
        assert second["similarity"] < first["similarity"]
