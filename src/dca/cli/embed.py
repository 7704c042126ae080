"""dca embed and dca similar: features of many images, and the images that are most like one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click

from dca.cli.common import backbone_of_model, device_flags, emit, json_flag, print_lines, quiet_flag, showing
from dca.cli.predict import list_images
from dca.core.errors import UserError
from dca.core.text import format_seconds, pluralize


@click.command()
@click.argument("images", nargs=-1, required=True)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), required=True, metavar="FILE", help="A .parquet file to write."
)
@click.option("--backbone", default="auto", show_default=True, help="Backbone, as for dca fit.")
@click.option("--overwrite", is_flag=True, help="Replace the file.")
@device_flags
@quiet_flag
@json_flag
def embed(
    images: tuple[str, ...],
    output: Path,
    backbone: str,
    overwrite: bool,
    device: str,
    precision: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write the features of IMAGES: files, folders (with all images below them), or - for paths on stdin.

    FILE gets one row per image: its path, a vector of length 1, and why an image cannot be read. Memory does
    not grow with the number of images.

    \b
    dca embed photos/ -o features.parquet
    """
    from dca.model.embed import embed_to_file
    from dca.training.session import Session

    paths = list_images(images, allow_missing=True)
    encoder = Session(device=device).load_backbone(backbone, precision)
    with showing(quiet=quiet) as progress:
        done = embed_to_file(encoder, paths, output, overwrite=overwrite, progress=progress)
    if as_json:
        counts = {"images": done.images, "unreadable": done.unreadable, "size": done.size}
        emit({"output": str(output), "backbone": encoder.source, **counts, "seconds": round(done.seconds, 2)})
    elif not quiet:
        rate = f"{format_seconds(done.seconds)} ({done.images / max(done.seconds, 1e-9):.1f} images/s)"
        print_lines(f"{pluralize(done.images, 'image')}, {done.size} numbers each, in {output}; {rate}")
        if done.unreadable:
            print_lines(f"{pluralize(done.unreadable, 'image')} cannot be read: the column error says why")
    if done.unreadable == done.images:
        raise click.exceptions.Exit(2)


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("image", type=click.Path())
@click.argument("archive", nargs=-1, required=True)
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="How many images to name.")
@backbone_of_model
@device_flags
@quiet_flag
@json_flag
def similar(
    model: Path,
    image: str,
    archive: tuple[str, ...],
    top: int,
    backbone: str | None,
    device: str,
    precision: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Find the images of ARCHIVE that are most like IMAGE, by the backbone of MODEL.

    ARCHIVE is files, folders (with all images below them), or the features of dca embed. Copies have a
    similarity of 1.

    \b
    dca similar photos.dca new.jpg holiday/
    """
    from dca.images.decode import Unreadable, unreadable_error
    from dca.model.classifier import Classifier
    from dca.model.embed import SUFFIX, FeatureBlock, encode_blocks, find_similar, read_features, stream_features

    encoder = Classifier.from_pretrained(model, backbone=backbone, device=device, precision=precision).method_.encoder
    (outcome,) = next(stream_features(encoder, [Path(image)]))
    if isinstance(outcome, Unreadable):
        raise unreadable_error([outcome], 1)
    tables = [Path(name) for name in archive if name.endswith(SUFFIX)]
    if tables and len(tables) < len(archive):
        raise UserError("files of features and images cannot go together", hint="give one kind of them")
    unreadable = list[Unreadable]()
    blocks: Iterator[FeatureBlock]
    if tables:
        blocks = chain.from_iterable(read_features(table, encoder) for table in tables)
    else:
        blocks = encode_blocks(encoder, list_images(archive), unreadable)
    found = find_similar(outcome, blocks, top)
    if not quiet:
        print_lines(*(f"skipped {one}" for one in unreadable), err=True)
    if as_json:
        emit([{"path": one.path, "similarity": one.similarity} for one in found])
    else:
        print_lines(*(f"{one.similarity:.3f}  {one.path}" for one in found))
