"""Memory and time of `dca similar` over an archive of a million images, with and without --copies.

    python benchmarks/similar_archive.py [--rows 1000000] [--copies-of 100000] [--folder DIR] [--json]

Fits a model with the default backbone on drawn images, and writes a file of features of its size: random unit vectors
whose variance falls off by direction as that of real features does (with the power -1), of which every thousandth is a
near-copy of an earlier one. Then it runs the commands, each in a process of its own, and checks what they find: the
image most similar to a photo whose features are the last row, and all groups of copies among the first
--copies-of rows (the time of this grows with the square of the number). The file is removed afterwards; it takes 4
bytes per number: 7 GB for a million rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn import functional as F

from dca.datasets.sample import load_sample
from dca.model.classifier import Classifier
from dca.model.embed import BLOCK, feature_schema

# One row of so many is a near-copy of an earlier one.
EVERY = 1000
# Runs a command, and prints the most memory that it took, in MiB.
WATCH = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=open("said.json", "w")).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
sys.exit(code)
"""


def draw_rows(rows: int, size: int) -> Iterator[NDArray[np.float32]]:
    """Unit vectors, block after block; row n is a near-copy of row n - 1 where n + 1 is a multiple of EVERY."""
    rng = torch.Generator().manual_seed(0)
    spread = torch.arange(1, size + 1).pow(-0.5)
    for start in range(0, rows, BLOCK):
        block = torch.randn(min(BLOCK, rows - start), size, generator=rng) * spread
        block[:, 0] += 1.5  # features of real images have a common mean
        copies = [n for n in range(1, len(block)) if (start + n + 1) % EVERY == 0]
        before = [n - 1 for n in copies]
        block[copies] = block[before] + 0.05 * torch.randn(len(copies), size, generator=rng) * spread
        yield F.normalize(block, dim=-1).numpy()


def draw_photo() -> Image.Image:
    """The photo that is looked for."""
    values = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(values).resize((240, 240), Image.Resampling.BICUBIC)


def write_archive(path: Path, encoder: Any, rows: int, last: NDArray[np.float32]) -> None:
    """Write features of `rows` images, the last of which is `last`, (D,)."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    schema, written = feature_schema(encoder), 0
    with ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for values in draw_rows(rows, encoder.feature_dim):
            if written + len(values) == rows:
                values[-1] = last
            paths = pa.array([f"archive/{n:08}.jpg" for n in range(written, written + len(values))])
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), encoder.feature_dim)
            columns = [paths, vectors, pa.nulls(len(values), pa.string())]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            written += len(values)


def run_similar(folder: Path, *arguments: str) -> tuple[Any, dict[str, float]]:
    """What `dca similar` prints, and its seconds and memory."""
    command = [sys.executable, "-m", "dca", "similar", "model.dca", *arguments, "--json", "--quiet"]
    began = time.perf_counter()
    said = subprocess.run([sys.executable, "-c", WATCH, *command], cwd=folder, check=True, capture_output=True)
    figures = {"seconds": time.perf_counter() - began, "peak_mib": float(said.stdout)}
    return json.loads((folder / "said.json").read_text()), figures


def measure(folder: Path, rows: int, copies_of: int) -> dict[str, Any]:
    """All figures; raises where a command does not find what is there."""
    sample = load_sample(per_class_train=2, per_class_test=1, size=64)
    model = Classifier(device="cpu").fit(sample)
    model.save_pretrained(folder / "model.dca")
    draw_photo().save(folder / "photo.png")
    feature, encoder = model.transform(str(folder / "photo.png")), model.method_.encoder
    write_archive(folder / "few.parquet", encoder, BLOCK, feature)
    _, least = run_similar(folder, "photo.png", "few.parquet")
    write_archive(folder / "archive.parquet", encoder, rows, feature)
    size = (folder / "archive.parquet").stat().st_size
    found, one = run_similar(folder, "photo.png", "archive.parquet", "--top", "3")
    if found[0]["path"] != f"archive/{rows - 1:08}.jpg" or found[0]["similarity"] < 0.999:
        raise SystemExit(f"not found: {found}")
    (folder / "archive.parquet").unlink()
    write_archive(folder / "copies.parquet", encoder, copies_of, feature)
    groups, copies = run_similar(folder, "--copies", "copies.parquet")
    names = {tuple(row["path"] for row in group["images"]) for group in groups}
    # Where a block begins with a copy, the row before it is in another block, and there is none.
    expected = {
        (f"archive/{n - 1:08}.jpg", f"archive/{n:08}.jpg") for n in range(EVERY - 1, copies_of - 1, EVERY) if n % BLOCK
    }
    if names != expected:
        raise SystemExit(f"{len(names - expected)} groups that are none, {len(expected - names)} not found")
    return {
        "rows": rows,
        "numbers": encoder.feature_dim,
        "file_gb": size / 1e9,
        f"similar, {BLOCK} rows": least,
        f"similar, {rows} rows": one,
        f"similar --copies, {copies_of} rows": {**copies, "groups": len(groups)},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="images of the archive")
    parser.add_argument("--copies-of", type=int, default=100_000, help="images among which copies are found")
    parser.add_argument("--folder", type=Path, default=None, help="a folder on the disk to use")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="dca-") as folder:
        found = measure(Path(folder), given.rows, given.copies_of)
    if given.json:
        click.echo(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        figures = value.items() if isinstance(value, dict) else [("", value)]
        click.echo(f"{name}: " + ", ".join(f"{number:,.1f} {unit}".strip() for unit, number in figures))


if __name__ == "__main__":
    main()
