"""dca embed and dca similar: features of many images, the images that are most like one, and copies among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from dca.cli.common import (
    backbone_of_model,
    device_flags,
    emit,
    json_flag,
    only_results_on_stdout,
    print_lines,
    quiet_flag,
    showing,
)
from dca.cli.predict import (
    Backend,
    backend_flag,
    check_shard_options,
    explaining_interrupts,
    list_images,
    per_shard_flag,
    require_folder,
)
from dca.core.errors import UserError
from dca.core.text import format_seconds, pluralize

if TYPE_CHECKING:
    from dca.backbones.encoder import Encoder
    from dca.core.progress import Progress
    from dca.model.archive_copies import CopyGroup
    from dca.model.embed import EmbeddingSummary, FeatureTable, SharedBackbone, SimilarImage


@click.command()
@click.argument("images", nargs=-1, required=True)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="A .parquet file to write. If interrupted, the same command continues. With --backend ray: a folder of such "
    "files.",
)
@click.option("--backbone", default="auto", show_default=True, help="Backbone, as for dca fit.")
@click.option("--overwrite", is_flag=True, help="Replace the file, and drop unfinished rows of another command.")
@backend_flag
@per_shard_flag
@device_flags
@quiet_flag
@json_flag
def embed(
    images: tuple[str, ...],
    output: Path,
    backbone: str,
    overwrite: bool,
    backend: Backend,
    per_shard: int | None,
    device: str,
    precision: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write the features of IMAGES: files, folders (with all images below them), or - for paths on stdin.

    FILE gets one row per image: its path, a vector of length 1, and why an image cannot be read. Memory is
    that of the paths and of one block. If the command is interrupted, give it again: images that have a row are
    not opened twice, and the file appears when it is complete.

    \b
    dca embed photos/ -o features.parquet
    dca embed archive/ --backend ray -o features/
    """
    from dca.model.embed import SharedBackbone

    if backend == "ray":
        require_folder(output)
    else:
        check_shard_options(None, per_shard)
    paths, source = list_images(images, allow_missing=True), SharedBackbone(backbone, device, precision)
    with showing(quiet=quiet) as progress, explaining_interrupts(output, backend):
        done = write_features(source, paths, output, backend, per_shard, progress, overwrite=overwrite)
    if as_json:
        counts = {"images": done.images, "encoded": done.encoded, "unreadable": done.unreadable, "size": done.size}
        emit({"output": str(output), "backbone": done.backbone, **counts, "seconds": round(done.seconds, 2)})
    elif not quiet:
        rate = f"{format_seconds(done.seconds)} ({done.encoded / max(done.seconds, 1e-9):.1f} images/s)"
        print_lines(f"{pluralize(done.images, 'image')}, {done.size} numbers each, in {output}; {rate}")
        if done.unreadable:
            print_lines(f"{pluralize(done.unreadable, 'image')} cannot be read: the column error says why")
    if done.unreadable == done.images:
        raise click.exceptions.Exit(2)


def write_features(
    source: SharedBackbone,
    paths: Sequence[str],
    output: Path,
    backend: Backend,
    per_shard: int | None,
    progress: Progress,
    *,
    overwrite: bool,
) -> EmbeddingSummary:
    """Encode into one file on this machine, or into the files of a folder on a Ray cluster."""
    from dca.core.device import keep_freed_memory
    from dca.model.embed import embed_on_ray, embed_to_file
    from dca.model.shards import PER_SHARD

    if backend == "ray":
        with only_results_on_stdout():
            return embed_on_ray(
                source, paths, output, per_shard=per_shard or PER_SHARD, overwrite=overwrite, progress=progress
            )
    keep_freed_memory()
    return embed_to_file(source.load(source.device), paths, output, overwrite=overwrite, progress=progress)


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("names", nargs=-1, required=True, metavar="[IMAGE] ARCHIVE...")
@click.option("--top", type=click.IntRange(min=1), default=None, help="How many images to name.  [default: 10]")
@click.option("--copies", is_flag=True, help="List the groups of copies and near-copies in ARCHIVE; takes no IMAGE.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1, min_open=True),
    default=None,
    metavar="COSINE",
    help="Least similarity of two copies.  [default: 0.95]",
)
@backbone_of_model
@device_flags
@quiet_flag
@json_flag
def similar(
    model: Path,
    names: tuple[str, ...],
    top: int | None,
    copies: bool,
    threshold: float | None,
    backbone: str | None,
    device: str,
    precision: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Find the images of ARCHIVE that are most like IMAGE, or its copies, by the backbone of MODEL.

    ARCHIVE is files, folders (with all images below them), or the features of dca embed. Copies have a
    similarity of 1. With --copies, images are in one group if pairs of at least the threshold connect them;
    the similarities that are printed are those to the first image of the group.

    \b
    dca similar photos.dca new.jpg holiday/
    dca similar photos.dca --copies holiday/
    """
    from dca.model.archive_copies import THRESHOLD
    from dca.model.classifier import Classifier

    if copies and top is not None:
        raise UserError("--top is for the images most like one", hint="leave out --top or --copies")
    if threshold is not None and not copies:
        raise UserError("--threshold is for copies", hint="add --copies, or leave out --threshold")
    if len(names) == 1 and not copies:
        hint = [f"dca similar {model} IMAGE {names[0]}", f"dca similar {model} --copies {names[0]}"]
        raise UserError("an image, or what to search, is missing", hint=hint)
    encoder = Classifier.from_pretrained(model, backbone=backbone, device=device, precision=precision).method_.encoder
    if copies:
        groups = find_copies(encoder, names, threshold or THRESHOLD, quiet=quiet)
        if as_json:
            emit([{"images": [as_row(image) for image in group.images]} for group in groups])
        else:
            print_copies(groups)
        return
    found = search(encoder, names[0], names[1:], top or 10, quiet=quiet)
    if as_json:
        emit([as_row(image) for image in found])
    else:
        print_lines(*map(as_line, found))


def as_row(image: SimilarImage) -> dict[str, str | float]:
    """An image for `--json`."""
    return {"path": image.path, "similarity": image.similarity}


def as_line(image: SimilarImage) -> str:
    """An image on a line."""
    return f"{image.similarity:.3f}  {image.path}"


def search(encoder: Encoder, image: str, archive: Sequence[str], top: int, *, quiet: bool) -> list[SimilarImage]:
    """The images of an archive that are most like one."""
    from dca.images.decode import Unreadable, unreadable_error
    from dca.model.embed import encode_blocks, find_similar, stream_features

    (outcome,) = next(stream_features(encoder, [Path(image)]))
    if isinstance(outcome, Unreadable):
        raise unreadable_error([outcome], 1)
    table, unreadable = open_table(encoder, archive), list[Unreadable]()
    if table is None:
        found = find_similar(outcome, encode_blocks(encoder, list_images(archive), unreadable), top)
    else:
        found = find_similar(outcome, table.blocks(), top)
    if not quiet:
        print_lines(*(f"skipped {one}" for one in unreadable), err=True)
    return found


def find_copies(encoder: Encoder, archive: Sequence[str], threshold: float, *, quiet: bool) -> list[CopyGroup]:
    """The groups of copies in an archive; the features of images are in a file that is removed."""
    from dca.model.archive_copies import find_archive_copies

    with showing(quiet=quiet) as progress, feature_table(encoder, archive, progress, quiet=quiet) as table:
        return find_archive_copies(table, threshold, progress=progress)


@contextmanager
def feature_table(
    encoder: Encoder, archive: Sequence[str], progress: Progress, *, quiet: bool
) -> Iterator[FeatureTable]:
    """The features of an archive, in files."""
    from dca.model.embed import FeatureTable, embed_to_file

    if (table := open_table(encoder, archive)) is not None:
        yield table
        return
    with TemporaryDirectory(prefix="dca-") as folder:
        file = Path(folder) / "features.parquet"
        done = embed_to_file(encoder, list_images(archive), file, progress=progress)
        if done.unreadable and not quiet:
            print_lines(f"{pluralize(done.unreadable, 'image')} cannot be read, and left out", err=True)
        yield FeatureTable([file], encoder)


def open_table(encoder: Encoder, archive: Sequence[str]) -> FeatureTable | None:
    """The features that dca embed has written; None where an archive is of images."""
    from dca.model.embed import SUFFIX, FeatureTable
    from dca.model.shards import holds_shards, list_shard_files

    folders = [name for name in archive if holds_shards(Path(name))]
    tables = [name for name in archive if name in folders or name.endswith(SUFFIX)]
    if not tables:
        return None
    if len(tables) < len(archive):
        raise UserError("files of features and images cannot go together", hint="give one kind of them")
    files = chain.from_iterable(list_shard_files(Path(n)) if n in folders else [Path(n)] for n in tables)
    return FeatureTable(files, encoder)


def print_copies(groups: Sequence[CopyGroup]) -> None:
    """Print groups, with an empty line between them, and how many there are."""
    for group in groups:
        print_lines(*map(as_line, group.images), "")
    more = sum(len(group.images) - 1 for group in groups)
    if groups:
        print_lines(f"{pluralize(len(groups), 'group')}; without copies, {pluralize(more, 'image')} fewer")
    else:
        print_lines("no copies")
