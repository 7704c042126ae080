"""dca cache: the stored image features."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict

import click

from dca.cli.common import Group, emit, json_flag, print_lines
from dca.cli.tables import format_table
from dca.core.text import format_bytes


@click.group(cls=Group, invoke_without_command=True)
@json_flag
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Show the stored image features, one space per backbone and precision; `dca cache clear` deletes them.

    They are stored in the folder DCA_CACHE, or else in the system's cache folder. Deleting them loses
    no result: missing features are computed again.

    \b
    dca cache                                which features are stored
    dca cache clear 74079b095841260e         delete one space, by the name in the first column
    DCA_CACHE_GB=1 dca fit photos/           keep at most one gigabyte
    """
    if ctx.invoked_subcommand is not None:
        return
    from dca.features.store import FeatureStore

    store = FeatureStore()
    spaces = store.list_spaces()
    total = sum(space.bytes for space in spaces)
    if as_json:
        values = [asdict(space) for space in spaces]
        emit({"folder": str(store.folder), "bytes": total, "limit_bytes": store.limit, "spaces": values})
        return
    print_lines(f"{store.folder}: {format_bytes(total)} of at most {format_bytes(store.limit)}")
    rows = [
        [
            space.name,
            f"{space.features:,} features",
            format_bytes(space.bytes),
            f"used {time.strftime('%Y-%m-%d', time.localtime(space.used))}",
            describe_space(space.about),
        ]
        for space in spaces
    ]
    for line in format_table(rows, align="lrr", indent=2):
        print_lines(line)


def describe_space(about: Mapping[str, object]) -> str:
    """Describe in words which features a space holds.

    >>> describe_space({"display": {"source": "mini"}, "backbone": "c620a0f01b44", "precision": "torch.float32"})
    'mini c620a0f0, float32'
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
    """Delete all stored features, or only the spaces NAMES that `dca cache` lists.

    \b
    dca cache clear
    dca cache clear 74079b095841260e 124f63c9a34a8f02
    """
    from dca.core.errors import unknown_name
    from dca.features.store import FeatureStore

    store = FeatureStore()
    known = [space.name for space in store.list_spaces()]
    for name in names:
        if name not in known:
            raise unknown_name("space", name, known, hint="`dca cache` lists them")
    freed = store.clear(names or None)
    if as_json:
        emit({"folder": str(store.folder), "freed_bytes": freed})
    else:
        print_lines(f"freed {format_bytes(freed)} in {store.folder}")
