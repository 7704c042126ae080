"""Features of any number of images in one file, and the images that are most like others, in blocks.

Features are unit vectors of the frozen backbone. A file of features is a Parquet table with the columns path, feature
and error; its metadata names the backbone by its hash, so that features of different backbones are never compared.
Images are encoded batch after batch, and files are written and read in row groups: memory is that of one block and of
what is kept, however many images there are. The search is exact.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.encoder import Encoder
from dca.core.errors import UserError
from dca.core.files import atomic_write
from dca.core.hints import allow_overwrite, write_features
from dca.core.progress import Progress, silent
from dca.images.decode import ImageLike, Unreadable
from dca.model.prediction_files import require_writer_package
from dca.training.pipeline import Source, encode_batches

SUFFIX = ".parquet"
# Rows of a row group: with 1,536 numbers, 25 MB.
BLOCK = 4096
# Keys of the metadata of a file.
DIGEST, BACKBONE = b"dca_backbone_sha256", b"dca_backbone"


@dataclass(frozen=True)
class FeatureBlock:
    """Some images: their paths, and unit features (n, D), float32."""

    paths: Sequence[str]
    features: Tensor


@dataclass(frozen=True)
class EmbeddingSummary:
    """What was written. images: rows. unreadable: how many of them cannot be read. size: D. seconds: it took."""

    images: int
    unreadable: int
    size: int
    seconds: float


def stream_features(encoder: Encoder, images: Iterable[ImageLike]) -> Iterator[list[Tensor | Unreadable]]:
    """Encode images in batches; every image has one outcome, in the order given: a unit feature (D,), or why not."""
    batches = encode_batches(
        (Source(image, encoder.preprocess.crop) for image in images),
        lambda pixels: F.normalize(encoder.encode_image(pixels), dim=-1).cpu(),
        encoder,
    )
    for done in batches:
        rows = iter(() if done.result is None else done.result)
        yield [outcome if isinstance(outcome, Unreadable) else next(rows) for outcome in done.outcomes]


def embed_to_file(
    encoder: Encoder,
    images: Sequence[str],
    output: Path,
    *,
    overwrite: bool = False,
    progress: Progress = silent,
) -> EmbeddingSummary:
    """Encode images and write one row per image; the file appears when it is complete.

    Args:
        encoder: The backbone.
        images: Paths of files; one that is given twice has one row.
        output: A .parquet file.
        overwrite: Replace an existing file.
        progress: Receives the progress, with the rate.

    Returns:
        How many images were encoded, and how many cannot be read.

    Raises:
        UserError: If the file cannot be written, or pyarrow is not installed.
    """
    if output.suffix.lower() != SUFFIX:
        raise UserError(f"{output}: features are written as {SUFFIX}", hint=f"use {output.with_suffix(SUFFIX)}")
    require_writer_package(SUFFIX)
    if output.exists() and not overwrite:
        raise UserError(f"{output} exists", hint=[allow_overwrite(), "choose another file"])
    paths = list(dict.fromkeys(str(Path(image)) for image in images))
    began, unreadable, done = time.monotonic(), 0, 0
    with atomic_write(output) as unfinished, _FeatureWriter(unfinished, encoder) as writer:
        for outcomes in stream_features(encoder, map(Path, paths)):
            writer.add(paths[done : done + len(outcomes)], outcomes)
            done += len(outcomes)
            unreadable += sum(isinstance(outcome, Unreadable) for outcome in outcomes)
            progress("images", done, len(paths), f"{done / (time.monotonic() - began):.1f} images/s")
    return EmbeddingSummary(len(paths), unreadable, encoder.feature_dim, time.monotonic() - began)


class _FeatureWriter:
    """Writes rows into a Parquet file, a row group at a time."""

    def __init__(self, path: Path, encoder: Encoder) -> None:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter

        vector = pa.list_(pa.float32(), encoder.feature_dim)
        fields = [("path", pa.string()), ("feature", vector), ("error", pa.string())]
        metadata = {DIGEST: encoder.digest.encode(), BACKBONE: encoder.source.encode()}
        self._schema = pa.schema(fields, metadata=metadata)
        self._writer, self._rows = ParquetWriter(path, self._schema), list[dict[str, Any]]()

    def add(self, paths: Sequence[str], outcomes: Sequence[Tensor | Unreadable]) -> None:
        """Add a batch."""
        for path, outcome in zip(paths, outcomes, strict=True):
            name = path.encode("utf-8", "backslashreplace").decode()
            if isinstance(outcome, Unreadable):
                self._rows.append({"path": name, "feature": None, "error": outcome.reason})
            else:
                self._rows.append({"path": name, "feature": outcome.numpy(), "error": None})
        if len(self._rows) >= BLOCK:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        self._writer.write_batch(pa.RecordBatch.from_pylist(self._rows, schema=self._schema))
        self._rows.clear()

    def __enter__(self) -> _FeatureWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._rows:
            self._flush()
        self._writer.close()


def read_features(path: Path, encoder: Encoder) -> Iterator[FeatureBlock]:
    """Read a file of features in blocks, without the images that could not be read.

    Raises:
        UserError: If it is no file of features, or of another backbone.
    """
    require_writer_package(SUFFIX)
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        file = ParquetFile(path)
        about = file.schema_arrow.metadata or {}
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if DIGEST not in about:
        raise UserError(f"{path} holds no features", hint=write_features(str(path)))
    if about[DIGEST].decode() != encoder.digest:
        raise UserError(
            f"{path} holds features of {about[BACKBONE].decode()}, and {encoder.source} is another backbone",
            hint=write_features(str(path)),
        )
    for batch in file.iter_batches(batch_size=BLOCK):
        known = batch.filter(batch.column("feature").is_valid())
        if known.num_rows:
            values = torch.from_numpy(known.column("feature").flatten().to_numpy(zero_copy_only=False).copy())
            yield FeatureBlock(known.column("path").to_pylist(), values.view(known.num_rows, -1))


def encode_blocks(encoder: Encoder, images: Sequence[str], unreadable: list[Unreadable]) -> Iterator[FeatureBlock]:
    """Features of images, block after block; images that cannot be read are put into `unreadable`."""
    done = 0
    for outcomes in stream_features(encoder, map(Path, images)):
        paths = images[done : done + len(outcomes)]
        done += len(outcomes)
        unreadable += [outcome for outcome in outcomes if isinstance(outcome, Unreadable)]
        kept = [(p, one) for p, one in zip(paths, outcomes, strict=True) if isinstance(one, Tensor)]
        if kept:
            yield FeatureBlock([path for path, _ in kept], torch.stack([feature for _, feature in kept]))


@dataclass(frozen=True)
class SimilarImage:
    """An image that is like another one. similarity: cosine of their features."""

    path: str
    similarity: float


def find_similar(query: Tensor, blocks: Iterable[FeatureBlock], top: int) -> list[SimilarImage]:
    """The images most like one, the most similar first. query: unit feature (D,). Exact; one block is in memory."""
    best = list[SimilarImage]()
    for block in blocks:
        values, rows = (block.features @ query).topk(min(top, len(block.paths)))
        best += [SimilarImage(block.paths[n], v) for n, v in zip(rows.tolist(), values.tolist(), strict=True)]
        best = sorted(best, key=lambda one: -one.similarity)[:top]
    return best
