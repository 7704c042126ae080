"""`dca predict --backend ray` on many images: the rows of this machine, although a node of the cluster is lost.

    python benchmarks/ray_predict.py [--images 20000] [--nodes 2] [--per-shard 256] [--json]

Starts a Ray cluster with one CPU per node on this machine, predicts with one command, kills one node when half of the
shards are there, and compares all rows with those of `dca predict -o FILE`: every image once, and the same text.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from bulk_predict import make_images

from dca.datasets.sample import load_sample
from dca.model.classifier import Classifier


def predict_command(output: str, *more: str) -> list[str]:
    """The command that predicts all images into a file or a folder."""
    return [sys.executable, "-m", "dca", "predict", "model.dca", "images", "-o", output, "--json", *more]


def predict_locally(folder: Path) -> float:
    """Predict into one file; returns the seconds."""
    began = time.perf_counter()
    subprocess.run(predict_command("whole.csv"), check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def predict_on_cluster(folder: Path, nodes: int, per_shard: int, shards: int) -> dict[str, float]:
    """Predict on a cluster that loses a node half-way; returns the seconds and the shards that were there then."""
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    others = [cluster.add_node(num_cpus=1) for _ in range(nodes - 1)]
    parts, began = folder / "parts", time.perf_counter()
    try:
        line = predict_command("parts", "--backend", "ray", "--per-shard", str(per_shard))
        environment = {**os.environ, "RAY_ADDRESS": cluster.address}
        process = subprocess.Popen(line, cwd=folder, env=environment, stdout=subprocess.PIPE)
        while len(list(parts.glob("part-*"))) < shards // 2 and process.poll() is None:
            time.sleep(0.05)
        there, running = len(list(parts.glob("part-*"))), process.poll() is None
        cluster.remove_node(others[0], allow_graceful=False)
        text, _ = process.communicate()
    finally:
        cluster.shutdown()
    return {
        "cluster_seconds": time.perf_counter() - began,
        "images_per_second": (facts := json.loads(text))["images"] / facts["seconds"],
        "shards_when_a_node_was_lost": there if running else -1,
    }


def read_rows(path: Path) -> list[str]:
    """The rows of a CSV file as text, without its header."""
    return path.read_text(encoding="utf-8").splitlines()[1:]


def measure(given: argparse.Namespace, folder: Path) -> dict[str, float | bool]:
    """All figures."""
    (folder / "images").mkdir()
    make_images(folder / "images", given.images, (256, 256))
    Classifier(backbone=given.backbone).fit(load_sample(per_class_train=16)).save_pretrained(folder / "model.dca")
    shards = -(-given.images // given.per_shard)
    here = predict_locally(folder)
    cluster = predict_on_cluster(folder, given.nodes, given.per_shard, shards)
    found = [row for path in sorted((folder / "parts").glob("part-*.csv")) for row in read_rows(path)]
    return {
        "images": given.images,
        "shards": shards,
        "local_seconds": here,
        **cluster,
        "every_image_once": len(found) == given.images == len({row.split(",")[0] for row in found}),
        "same_rows_as_this_machine": found == read_rows(folder / "whole.csv"),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000, help="files to predict")
    parser.add_argument("--nodes", type=int, default=2, help="nodes of the cluster, each with one CPU")
    parser.add_argument("--per-shard", type=int, default=256)
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(given, Path(folder))
    if given.json:
        click.echo(json.dumps(result, indent=1))
        return
    for name, value in result.items():
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        click.echo(f"{name.replace('_', ' '):<30} {text:>12}")


if __name__ == "__main__":
    main()
