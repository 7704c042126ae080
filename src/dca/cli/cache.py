"""dca cache: the stored image features."""

from __future__ import annotations

import time
from collections.abc import Mapping

import click

from dca.cli.common import Group, bytes_text, emit, json_flag


@click.group(cls=Group, invoke_without_command=True)
@json_flag
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Show what is stored, per backbone; `dca cache clear` removes it.

    The place is DCA_CACHE, or the system's cache folder. Nothing in it is needed: what is missing
    is computed again.

    \b
    dca cache                                what is stored, and of what
    dca cache clear 74079b095841260e         forget one space, by the name in the first column
    DCA_CACHE_GB=1 dca fit photos/           keep at most so many gigabytes
    """
    if ctx.invoked_subcommand is not None:
        return
    from dca.data.feature_store import FeatureCache

    cache = FeatureCache()
    spaces = cache.spaces()
    total = sum(space.bytes for space in spaces)
    if as_json:
        rows = [
            {"name": s.name, "features": s.features, "bytes": s.bytes, "used": s.used, "about": s.about} for s in spaces
        ]
        emit({"folder": str(cache.folder), "bytes": total, "limit_bytes": cache.limit, "spaces": rows})
        return
    click.echo(f"{cache.folder}: {bytes_text(total)} of at most {bytes_text(cache.limit)}")
    for space in spaces:
        day = time.strftime("%Y-%m-%d", time.localtime(space.used))
        size = f"{space.features:>9,} features  {bytes_text(space.bytes):>9}"
        click.echo(f"  {space.name}  {size}  used {day}  {contents(space.about)}")


def contents(about: Mapping[str, object]) -> str:
    """What a space holds: features of which images, by which backbone, in which precision."""
    images = f"training images of seed {about['seed']}" if "seed" in about else "images"
    precision = str(about.get("precision", "unknown precision")).removeprefix("torch.")
    return f"{about.get('source', 'unknown backbone')}, {precision}, {images}"


@command.command("clear")
@click.argument("names", nargs=-1)
@json_flag
def clear(names: tuple[str, ...], as_json: bool) -> None:
    """Remove the stored features, or only those of the spaces NAMES.

    \b
    dca cache clear
    dca cache clear 74079b095841260e 124f63c9a34a8f02
    """
    from dca.core.errors import unknown_name
    from dca.data.feature_store import FeatureCache

    cache = FeatureCache()
    known = [space.name for space in cache.spaces()]
    for name in names:
        if name not in known:
            raise unknown_name("space", name, known, hint="`dca cache` lists them")
    freed = cache.clear(names or None)
    if as_json:
        emit({"folder": str(cache.folder), "freed_bytes": freed})
    else:
        click.echo(f"freed {bytes_text(freed)} in {cache.folder}")
