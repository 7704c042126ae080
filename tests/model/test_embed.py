"""Features in a file or in shards, and the most similar images, against a literal search."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from conftest import Said, make_clip
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset
from dca.model import embed, shards
from dca.model.classifier import Classifier
from dca.model.embed import FeatureBlock, FeatureTable, SharedBackbone, embed_on_ray, embed_to_file, find_similar
from helpers.processes import DCA, PATIENCE, start_process, wait_until
from helpers.ray_stand_in import StandIn


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
    blocks = list(FeatureTable([tmp_path / "a.parquet"], clip).blocks())
    assert len(blocks) > 1
    assert [path for block in blocks for path in block.paths] == [path for path in paths if "broken" not in path]
    with torch.no_grad():
        expected = F.normalize(clip.encode_image([Image.open(p) for p in paths if "broken" not in p]), dim=-1)
    assert torch.allclose(torch.cat([block.features for block in blocks]), expected, atol=1e-5)
    with pytest.raises(UserError, match="exists"):
        embed_to_file(clip, paths, tmp_path / "a.parquet")
    with pytest.raises(UserError, match="is another backbone"):
        FeatureTable([tmp_path / "a.parquet"], make_clip(seed=5))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The images that are opened to be encoded."""
    names = list[str]()
    stream = embed.stream_features

    def watch(encoder: Any, images: Any) -> Any:
        for image in images:
            names.append(str(image))
            yield from stream(encoder, [image])

    monkeypatch.setattr(embed, "stream_features", watch)
    return names


def stop_after(count: int) -> Callable[..., None]:
    def progress(what: str, done: int, total: int, note: str) -> None:
        if done == count:
            raise KeyboardInterrupt

    return progress


def test_an_interrupted_command_continues(tmp_path: Path, opened: list[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "photos").mkdir()
    clip, paths = make_clip(), saved(tmp_path / "photos")
    whole, table = tmp_path / "whole.parquet", tmp_path / "a.parquet"
    embed_to_file(clip, paths, whole)
    opened.clear()
    with pytest.raises(KeyboardInterrupt):
        embed_to_file(clip, paths, table, progress=stop_after(3))
    assert not table.exists()
    journal = tmp_path / "a.parquet.partial"
    journal.write_bytes(journal.read_bytes() + b'{"path": "cut o')  # killed in the middle of a row
    with pytest.raises(UserError, match="holds unfinished rows of another command"):
        embed_to_file(make_clip(seed=5), paths, table)
    done = embed_to_file(clip, paths, table)
    assert opened == paths
    assert (done.images, done.encoded, done.unreadable) == (8, 5, 1)
    assert parquet.read_table(table).equals(parquet.read_table(whole), check_metadata=True)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[0] != ".") == [
        *("a.parquet", "photos", "whole.parquet")
    ]


def test_overwrite_drops_unfinished_rows_of_another_backbone(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "photos").mkdir()
    clip, paths, table = make_clip(), saved(tmp_path / "photos"), tmp_path / "a.parquet"
    with pytest.raises(KeyboardInterrupt):
        embed_to_file(make_clip(seed=5), paths, table, progress=lambda *_: stop_after(8)("", 8, 8, ""))
    assert embed_to_file(clip, paths, table, overwrite=True).encoded == 8
    assert next(FeatureTable([table], clip).blocks()).paths[0] == paths[0]


@pytest.fixture
def on_ray(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    pytest.importorskip("pyarrow")
    (tmp_path / "photos").mkdir()
    paths = saved(tmp_path / "photos")
    monkeypatch.setattr(shards, "_load_once", shards._load_once.__wrapped__)  # not kept for other tests

    def encode(ray: StandIn) -> Any:
        monkeypatch.setattr(shards, "connect_ray", lambda: ray)
        return embed_on_ray(SharedBackbone(str(tiny_folder)), paths, tmp_path / "parts", per_shard=3)

    return encode


def test_the_shards_of_a_cluster_are_the_rows_of_one_file(
    on_ray: Callable[..., Any], tiny_folder: Path, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    with pytest.raises(UserError, match="the task was lost"):
        on_ray(StandIn(lost=(2,)))
    with pytest.raises(UserError, match=r"parts is not complete: 2 files of 3 missing"):
        shards.list_shard_files(tmp_path / "parts")
    done = on_ray(ray := StandIn())
    encoder = SharedBackbone(str(tiny_folder)).load("cpu")
    assert (ray.done, done.images, done.unreadable, done.size) == (2, 8, 1, encoder.feature_dim)
    assert done.encoded < 8
    embed_to_file(encoder, saved(tmp_path / "photos"), tmp_path / "whole.parquet")
    files = shards.list_shard_files(tmp_path / "parts")
    whole = parquet.read_table(tmp_path / "whole.parquet")
    parts = parquet.read_table(tmp_path / "parts")
    assert len(files) == 3
    for name in ("path", "error"):
        assert parts.column(name).to_pylist() == whole.column(name).to_pylist()
    here, there = (FeatureTable(some, encoder).blocks() for some in ([tmp_path / "whole.parquet"], files))
    features = [torch.cat([block.features for block in blocks]) for blocks in (here, there)]
    torch.testing.assert_close(*features, atol=1e-5, rtol=0)


def test_the_command_writes_shards_that_are_searched(
    dca: Callable[..., Said], fitted: Path, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(shards, "connect_ray", StandIn)
    monkeypatch.setattr(shards, "_load_once", shards._load_once.__wrapped__)
    (tmp_path / "photos").mkdir()
    paths, parts = saved(tmp_path / "photos"), tmp_path / "parts"
    arguments = ["embed", tmp_path / "photos", "-o", parts, "--backbone", tiny_folder, "--backend", "ray"]
    assert dca(*arguments, "--per-shard", 4, "--json").code == 0
    assert sorted(path.name for path in parts.iterdir()) == [
        *("_manifest.jsonl", "part-00000.parquet", "part-00001.parquet")
    ]
    said = dca("similar", fitted, paths[2], parts, "--backbone", tiny_folder, "--json")
    assert json.loads(said.out)[0]["path"] == paths[2]
    assert "--per-shard is for --backend ray" in dca("embed", paths[0], "-o", "a.parquet", "--per-shard", 4).err
    said = dca("embed", paths[0], "-o", "a.parquet", "--backend", "ray")
    assert (said.code, "give a folder" in said.err) == (2, True)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_a_cluster_that_loses_a_node_encodes_every_image_once(tmp_path: Path, tiny_folder: Path) -> None:
    from ray.cluster_utils import Cluster

    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "photos").mkdir()
    found, folder, parts = saved(tmp_path / "photos"), tmp_path / "images", tmp_path / "parts"
    folder.mkdir()
    for n in range(3000):
        (folder / f"{n:05}.png").symlink_to(found[n % len(found)])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    node = cluster.add_node(num_cpus=1)
    try:
        arguments = ["embed", "images", "--backend", "ray", "-o", "parts", "--per-shard", "64", "--json"]
        command = [*DCA, *arguments, "--backbone", str(tiny_folder)]
        environment = {**os.environ, "RAY_ADDRESS": cluster.address}
        with start_process(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE) as process:
            wait_until(lambda: len(list(parts.glob("part-*"))) >= 47 // 2, process)
            cluster.remove_node(node, allow_graceful=False)
            said, _ = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0
    finally:
        cluster.shutdown()
    facts, rows = json.loads(said), parquet.read_table(parts)
    assert (facts["images"], facts["unreadable"]) == (3000, 375)
    assert rows.column("path").to_pylist() == [f"images/{n:05}.png" for n in range(3000)]
    clip = SharedBackbone(str(tiny_folder)).load("cpu")
    features = torch.cat([block.features for block in FeatureTable(shards.list_shard_files(parts), clip).blocks()])
    with torch.no_grad():
        images = [Image.open(path) for path in found if "broken" not in path]
        expected = F.normalize(clip.encode_image(images), dim=-1)
    torch.testing.assert_close(features, expected.repeat(375, 1), atol=1e-5, rtol=0)


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
    expected = model.predict_proba(images)
    for form in (features, features.astype(np.float64), torch.from_numpy(features)):
        np.testing.assert_allclose(model.predict_features(form).probabilities, expected, atol=1e-6)
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
