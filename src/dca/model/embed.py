"""Features of any number of images in one file or in shards, and the images that are most like one, in blocks.

Features are unit vectors of the frozen backbone. A file of features is a Parquet table with the columns path, feature
and error; its metadata names the backbone by its hash, so that features of different backbones are never compared.
Images are encoded batch after batch, and files are written and read in row groups: memory is that of one block and of
what is kept, however many images there are. The search is exact.

Until a file is complete, its rows are in a journal, as those of predictions are, with the vectors in base64.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.encoder import Encoder
from dca.core.errors import UserError
from dca.core.files import atomic_write, exclusive_lock
from dca.core.hints import write_features
from dca.core.progress import Progress, silent
from dca.images.decode import ImageLike, Unreadable
from dca.model.predict import Tally, refuse_finished, write_output
from dca.model.prediction_files import Journal, Row, batch_rows, require_writer_package, to_valid_text
from dca.model.shards import PER_SHARD, make_shards_on_ray
from dca.training.pipeline import Source, encode_batches
from dca.training.session import Session

if TYPE_CHECKING:
    import pyarrow

SUFFIX = ".parquet"
# Rows of a row group: with 1,792 numbers, 29 MB.
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
    """What was written.

    backbone: its name. images: rows. encoded: how many of them are of this call. unreadable: how many of all cannot be
    read. size: D. seconds: this call took.
    """

    backbone: str
    images: int
    encoded: int
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

    Until then the rows are in `output` + ".partial". A call with the same arguments continues a killed one: images
    that have a row are not opened again.

    Args:
        encoder: The backbone.
        images: Paths of files; one that is given twice has one row.
        output: A .parquet file.
        overwrite: Replace an existing file, and drop unfinished rows of another backbone.
        progress: Receives the progress, with the rate.

    Returns:
        How many images were encoded, and how many cannot be read.

    Raises:
        UserError: If the file cannot be written, or pyarrow is not installed.
    """
    if output.suffix.lower() != SUFFIX:
        raise UserError(f"{output}: features are written as {SUFFIX}", hint=f"use {output.with_suffix(SUFFIX)}")
    require_writer_package(SUFFIX)
    refuse_finished(output, overwrite=overwrite)
    paths = list(dict.fromkeys(str(Path(image)) for image in images))
    about = feature_identity(encoder)
    with exclusive_lock(output, "command"), Journal(output, about, fresh=overwrite) as journal:
        before, seconds = journal.extend(feature_rows(encoder, paths, journal.paths), paths, progress)
        tally = write_output(journal, paths, output, lambda rows, path: write_feature_rows(rows, encoder, path))
    return _summarize(about, tally, tally.rows - before, seconds)


def embed_on_ray(
    source: SharedBackbone,
    images: Sequence[str],
    folder: Path,
    *,
    per_shard: int = PER_SHARD,
    overwrite: bool = False,
    progress: Progress = silent,
) -> EmbeddingSummary:
    """Encode images on a Ray cluster into a folder of shards, whose rows are those of `embed_to_file`, in its order.

    A call with the same arguments continues an interrupted one: shards whose files are there are not made again.

    Args:
        source: The backbone.
        images: Paths of files; one that is given twice has one row.
        folder: Where part-00000.parquet, part-00001.parquet, ... are written.
        per_shard: Images per shard.
        overwrite: Replace shards of another call that are in the folder, when all of the new ones are there.
        progress: Receives the progress, with the rate.

    Returns:
        How many images were encoded, and how many cannot be read.

    Raises:
        UserError: As for `make_shards_on_ray`, or if pyarrow is not installed.
    """
    require_writer_package(SUFFIX)
    done = make_shards_on_ray(
        source, images, folder, kind=SUFFIX, per_shard=per_shard, overwrite=overwrite, progress=progress
    )
    return _summarize(done.identity, done.tally, done.made, done.seconds)


@dataclass(frozen=True)
class SharedBackbone:
    """The backbone of an embedding on a cluster, which all nodes can load: the work of its shards.

    Attributes:
        backbone: As for `Session.load_backbone`.
        device: "auto" takes the GPUs of the cluster if it has some; "cpu" none.
        precision: "auto", "fp32" or "bf16".
    """

    backbone: str = "auto"
    device: str = "auto"
    precision: str = "auto"

    def load(self, device: str) -> Encoder:
        """The backbone on a device."""
        return Session(device=device).load_backbone(self.backbone, self.precision)

    def identify(self, loaded: Encoder) -> dict[str, Any]:
        """Plain values that decide the rows."""
        return feature_identity(loaded)

    def make(self, loaded: Encoder, images: Sequence[str], output: Path) -> Tally:
        """Encode the images of one shard; its file appears when it is complete."""
        tally = Tally()
        with atomic_write(output) as unfinished:
            write_feature_rows(tally.count(chain.from_iterable(feature_rows(loaded, images))), loaded, unfinished)
        return tally


def feature_identity(encoder: Encoder) -> dict[str, Any]:
    """Plain values that decide the rows of an encoder."""
    about = {"backbone": encoder.source, "backbone_sha256": encoder.digest, "precision": str(encoder.precision)}
    return {**about, "size": encoder.feature_dim}


def _summarize(identity: dict[str, Any], tally: Tally, encoded: int, seconds: float) -> EmbeddingSummary:
    return EmbeddingSummary(identity["backbone"], tally.rows, encoded, tally.unreadable, identity["size"], seconds)


def feature_rows(encoder: Encoder, paths: Sequence[str], known: Collection[str] = ()) -> Iterator[list[Row]]:
    """Rows of the images that are not known, batch after batch: path, and feature in base64 or error."""
    # A list of its own: `known` grows while the images are encoded.
    new = [path for path in paths if path not in known]
    names = iter(new)
    for outcomes in stream_features(encoder, map(Path, new)):
        yield [_feature_row(next(names), outcome) for outcome in outcomes]


def _feature_row(path: str, outcome: Tensor | Unreadable) -> Row:
    if isinstance(outcome, Unreadable):
        return {"path": path, "error": outcome.reason}
    return {"path": path, "feature": base64.b64encode(outcome.float().numpy().tobytes()).decode()}


def feature_schema(encoder: Encoder) -> pyarrow.Schema:
    """The columns of a file of features, and whose they are."""
    import pyarrow as pa

    vector = pa.list_(pa.float32(), encoder.feature_dim)
    metadata = {DIGEST: encoder.digest.encode(), BACKBONE: encoder.source.encode()}
    return pa.schema([("path", pa.string()), ("feature", vector), ("error", pa.string())], metadata=metadata)


def write_feature_rows(rows: Iterable[Row], encoder: Encoder, path: Path) -> None:
    """Write rows into a Parquet file, a row group at a time."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    schema, size = feature_schema(encoder), encoder.feature_dim
    with ParquetWriter(path, schema) as writer:
        for group in batch_rows(rows, BLOCK):
            missing, values = [row.get("feature") is None for row in group], np.zeros((len(group), size), np.float32)
            for value, row, none in zip(values, group, missing, strict=True):
                if not none:
                    value[:] = np.frombuffer(base64.b64decode(row["feature"]), np.float32)
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), size, mask=pa.array(missing))
            texts = [[to_valid_text(row.get(name)) for row in group] for name in ("path", "error")]
            paths, errors = (pa.array(text, pa.string()) for text in texts)
            writer.write_batch(pa.RecordBatch.from_arrays([paths, vectors, errors], schema=schema))


class FeatureTable:
    """Files of features, one after the other, in row groups of which one is read at a time.

    Args:
        files: Files that `dca embed` has written.
        encoder: The backbone.

    Raises:
        UserError: If one is no file of features, or of another backbone.
    """

    def __init__(self, files: Iterable[Path], encoder: Encoder) -> None:
        require_writer_package(SUFFIX)
        self._groups = [(path, n) for path in files for n in range(_count_groups(path, encoder))]

    def __len__(self) -> int:
        """Number of row groups."""
        return len(self._groups)

    def read(self, number: int) -> FeatureBlock:
        """A row group, without the images that could not be read."""
        from pyarrow.parquet import ParquetFile

        path, group = self._groups[number]
        with ParquetFile(path) as file:
            table = file.read_row_group(group, columns=["path", "feature"]).combine_chunks()
        known = table.filter(table.column("feature").is_valid())
        values = known.column("feature").combine_chunks().flatten().to_numpy(zero_copy_only=False)
        features = torch.from_numpy(values.copy()).view(known.num_rows, -1) if known.num_rows else torch.zeros(0, 0)
        return FeatureBlock(known.column("path").to_pylist(), features)

    def blocks(self) -> Iterator[FeatureBlock]:
        """All row groups that have an image."""
        return (block for block in map(self.read, range(len(self))) if block.paths)


def _count_groups(path: Path, encoder: Encoder) -> int:
    """How many row groups a file of features has."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            about, groups = file.schema_arrow.metadata or {}, file.num_row_groups
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if DIGEST not in about:
        raise UserError(f"{path} holds no features", hint=write_features(str(path)))
    if about[DIGEST].decode() != encoder.digest:
        raise UserError(
            f"{path} holds features of {about[BACKBONE].decode()}, and {encoder.source} is another backbone",
            hint=write_features(str(path)),
        )
    return int(groups)


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
