"""dca cache: the stored image features."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict

import click

from dca.cli.common import Group, emit, json_flag
from dca.core.text import format_bytes


@click.group(cls=Group, invoke_without_command=True)
@json_flag
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Show the stored image features, by backbone and precision; `dca cache clear` deletes them.

    They are in the folder DCA_CACHE, or in the system's cache folder. Deleting them loses no result:
    missing features are computed again.

    \b
    dca cache                                which features are stored
    dca cache clear 74079b095841260e         delete those of one space, by the name in the first column
    DCA_CACHE_GB=1 dca fit photos/           keep at most one gigabyte
    """
    if ctx.invoked_subcommand is not None:
        return
    from dca.features.store import FeatureStore

    store = FeatureStore()
    spaces = store.spaces()
    total = sum(space.bytes for space in spaces)
    if as_json:
        rows = [asdict(space) for space in spaces]
        emit({"folder": str(store.folder), "bytes": total, "limit_bytes": store.limit, "spaces": rows})
        return
    click.echo(f"{store.folder}: {format_bytes(total)} of at most {format_bytes(store.limit)}")
    for space in spaces:
        day = time.strftime("%Y-%m-%d", time.localtime(space.used))
        size = f"{space.features:>9,} features  {format_bytes(space.bytes):>9}"
        click.echo(f"  {space.name}  {size}  used {day}  {contents(space.about)}")


def contents(about: Mapping[str, object]) -> str:
    """What a space holds, in words.

    >>> contents({"display": {"source": "mini"}, "backbone": "c620a0f01b44", "precision": "torch.float32", "crop": 64})
    'mini c620a0f0, float32, crop 64'
    """
    facts = dict(about)
    display = facts.pop("display", {})
    source = display.get("source", "") if isinstance(display, Mapping) else display
    backbone = f"{source} {str(facts.pop('backbone', ''))[:8]}".strip()
    precision = str(facts.pop("precision", "")).removeprefix("torch.")
    return ", ".join(filter(None, [backbone, precision, *(f"{name} {value}" for name, value in facts.items())]))


@command.command("clear")
@click.argument("names", nargs=-1)
@json_flag
def clear(names: tuple[str, ...], as_json: bool) -> None:
    """Delete all stored features, or only those of the spaces NAMES.

    \b
    dca cache clear
    dca cache clear 74079b095841260e 124f63c9a34a8f02
    """
    from dca.core.errors import unknown_name
    from dca.features.store import FeatureStore

    store = FeatureStore()
    known = [space.name for space in store.spaces()]
    for name in names:
        if name not in known:
            raise unknown_name("space", name, known, hint="`dca cache` lists them")
    freed = store.clear(names or None)
    if as_json:
        emit({"folder": str(store.folder), "freed_bytes": freed})
    else:
        click.echo(f"freed {format_bytes(freed)} in {store.folder}")
