from __future__ import annotations

import csv
import importlib.util
import json
import os
import subprocess
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dca.core.errors import UserError
from dca.model import predict_ray, shards
from dca.model.classifier import Classifier
from dca.model.predict import PredictionOptions, predict_to_file
from dca.model.predict_ray import SharedModel, predict_on_ray
from dca.model.shards import MANIFEST, RETRIES
from helpers.processes import DCA, PATIENCE, start_process, wait_until
from helpers.ray_stand_in import RayTaskError, StandIn

HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.fixture
def source(fitted: Path, tiny_folder: Path) -> SharedModel:
    return SharedModel(str(fitted), str(tiny_folder))


@pytest.fixture
def images(photos: Path, tmp_path: Path) -> list[str]:
    (tmp_path / "bad.jpg").write_text("hello")
    found = sorted(str(path) for path in (photos / "test").rglob("*.png"))
    return [*found[:10], str(tmp_path / "bad.jpg"), *found[10:]]


@pytest.fixture
def on_ray(
    source: SharedModel, images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    monkeypatch.setattr(shards, "_load_once", shards._load_once.__wrapped__)  # not kept for other tests

    def predict(ray: StandIn, wanted: PredictionOptions | None = None, **more: Any) -> Any:
        monkeypatch.setattr(shards, "connect_ray", lambda: ray)
        return predict_on_ray(source, images, tmp_path / "parts", wanted, per_shard=8, **more)

    return predict


def rows(folder: Path) -> list[str]:
    return [line for path in sorted(folder.glob("part-*.csv")) for line in path.read_text().splitlines()[1:]]


def test_the_rows_are_those_of_this_machine(
    on_ray: Callable[..., Any], source: SharedModel, images: list[str], tmp_path: Path
):
    seen: list[tuple[Any, ...]] = []
    done = on_ray(ray := StandIn(), PredictionOptions(top=3), progress=lambda *tick: seen.append(tick))
    local = predict_to_file(source.load("cpu"), images, tmp_path / "whole.csv", PredictionOptions(top=3))
    assert rows(tmp_path / "parts") == (tmp_path / "whole.csv").read_text().splitlines()[1:]
    assert (done.images, done.predicted, done.unreadable, done.listed) == (31, 31, 1, local.listed)
    assert len(seen) == 4
    assert seen[-1][:3] == ("images", 31, 31)
    assert seen[-1][3].endswith("images/s")
    assert ray.given == [{"num_cpus": 1, "num_gpus": 0, "max_retries": RETRIES}]
    assert (ray.most, ray.ended) == (2, 1)


def test_finished_shards_are_not_made_again(on_ray: Callable[..., Any], tmp_path: Path):
    with pytest.raises(UserError, match=r"the task was lost \(RayError: the node died\)") as raised:
        on_ray(StandIn(lost=(3,)))
    assert "same command" in raised.value.hint
    there = {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").glob("part-*")}
    assert len(there) == 2
    done = on_ray(ray := StandIn())
    assert ray.done == 2
    assert (done.images, done.unreadable) == (31, 1)
    assert done.predicted == 31 - sum(len(path.read_text().splitlines()) - 1 for path in there)
    assert {path: path.stat().st_mtime_ns for path in there} == there
    assert on_ray(again := StandIn()).predicted == again.done == 0


def test_shards_that_are_to_replace_others_are_continued(on_ray: Callable[..., Any], tmp_path: Path):
    on_ray(StandIn())
    before = rows(tmp_path / "parts")
    with pytest.raises(UserError, match="the task was lost"):
        on_ray(StandIn(lost=(3,)), PredictionOptions(top=2), overwrite=True)
    assert rows(tmp_path / "parts") == before
    done = on_ray(ray := StandIn(), PredictionOptions(top=2), overwrite=True)
    assert ray.done == 2
    assert (done.images, done.unreadable) == (31, 1)
    assert rows(tmp_path / "parts") != before
    assert not (tmp_path / "parts.partial").exists()
    assert on_ray(again := StandIn(), PredictionOptions(top=2)).predicted == again.done == 0


def test_an_error_of_a_task_is_that_of_this_machine(on_ray: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    def refuse(*arguments: Any) -> None:
        raise UserError("disk full")

    monkeypatch.setattr(predict_ray, "predict_shard", refuse)
    with pytest.raises(UserError, match="disk full"):
        on_ray(StandIn())
    monkeypatch.setattr(predict_ray, "predict_shard", lambda *arguments: 1 / 0)
    with pytest.raises(RayTaskError):
        on_ray(StandIn())


def test_tasks_have_the_limit_of_pixels_of_the_command(on_ray: Callable[..., Any], tmp_path: Path):
    before = Image.MAX_IMAGE_PIXELS
    try:
        Image.MAX_IMAGE_PIXELS = 100
        assert on_ray(StandIn()).unreadable == 31
    finally:
        Image.MAX_IMAGE_PIXELS = before


def test_a_model_without_p_values_is_refused_before_anything_is_written(on_ray: Callable[..., Any], tmp_path: Path):
    with pytest.raises(UserError, match="cannot tell images of none"):
        on_ray(ray := StandIn(), PredictionOptions(reject=0.1))
    assert not (tmp_path / "parts").exists()
    assert ray.ended == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "ray"], "needs a folder"),
        (["--backend", "ray", "-o", "labels.csv"], "-o labels/"),
        (["--backend", "ray", "-o", "labels", "--csv"], "--csv and --backend ray"),
        (["--backend", "ray", "-o", "labels", "--copy-to", "sorted"], "--copy-to and --backend ray"),
        (["-o", "labels.csv", "--format", "csv"], "--format is for --backend ray"),
        (["-o", "labels.csv", "--per-shard", "9"], "--per-shard is for --backend ray"),
    ],
)
def test_options_that_do_not_go_together(
    dca: Callable[..., Any], fitted: Path, photos: Path, arguments: list[str], words: str
):
    said = dca("predict", fitted, photos / "test", *arguments)
    assert (said.code, said.out) == (2, "")
    assert words in said.err


def test_the_command_writes_shards(
    dca: Callable[..., Any], fitted: Path, tiny_folder: Path, photos: Path, tmp_path: Path, monkeypatch: Any
):
    monkeypatch.setattr(shards, "connect_ray", StandIn)
    monkeypatch.setattr(shards, "_load_once", shards._load_once.__wrapped__)
    parts = tmp_path / "parts"
    arguments = ["predict", fitted, photos / "test", "--backend", "ray", "-o", parts, "--backbone", tiny_folder]
    said = dca(*arguments, "--format", "parquet", "--per-shard", "20", "--json")
    assert said.code == 0
    assert json.loads(said.out)["images"] == 30
    assert sorted(path.name for path in parts.iterdir()) == [MANIFEST, "part-00000.parquet", "part-00001.parquet"]
    said = dca(*arguments)
    assert said.code == 2
    assert "kind: .parquet there, .csv here" in said.err


@pytest.mark.slow
@pytest.mark.skipif(not HAS_RAY, reason="ray is not installed")
def test_a_cluster_that_loses_a_node_predicts_every_image_once(tmp_path: Path, photos: Path, tiny_folder: Path):
    from ray.cluster_utils import Cluster

    model = Classifier(backbone=str(tiny_folder), device="cpu").fit(photos / "train")
    model.save_pretrained(tmp_path / "photos.dca")
    folder, parts = tmp_path / "images", tmp_path / "parts"
    folder.mkdir()
    found = sorted((photos / "test").rglob("*.png"))
    for n in range(6000):
        (folder / f"{n:05}.png").symlink_to(found[n % len(found)])
    (folder / "03000a.png").write_text("hello")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    node = cluster.add_node(num_cpus=1)
    try:
        arguments = ["predict", "photos.dca", "images", "--backend", "ray", "-o", "parts", "--per-shard", "64"]
        command = [*DCA, *arguments, "--backbone", str(tiny_folder), "--skip-bad", "--json"]
        environment = {**os.environ, "RAY_ADDRESS": cluster.address}
        with start_process(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE) as process:
            wait_until(lambda: len(list(parts.glob("part-*"))) >= 94 // 2, process)
            cluster.remove_node(node, allow_graceful=False)
            said, _ = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0
    finally:
        cluster.shutdown()
    here = [os.path.relpath(path, tmp_path) for path in sorted(folder.iterdir())]
    with chdir(tmp_path):
        predict_to_file(model, here, tmp_path / "whole.csv")
    assert rows(parts) == (tmp_path / "whole.csv").read_text().splitlines()[1:]
    assert len(rows(parts)) == json.loads(said)["images"] == 6001
    with (parts / "part-00046.csv").open(newline="") as file:
        assert [row["path"] for row in csv.DictReader(file) if row["error"]] == ["images/03000a.png"]
    assert sorted(path.name for path in parts.iterdir())[0] == MANIFEST
