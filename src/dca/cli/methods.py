"""dca methods: what there is to choose from."""

from __future__ import annotations

from typing import Any

import click

from dca.cli.common import Group, emit, json_flag


@click.group(cls=Group, invoke_without_command=True)
@json_flag
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the methods; `dca methods show NAME` explains one and its options."""
    if ctx.invoked_subcommand is not None:
        return
    from dca.methods.base import all_methods
    from dca.methods.shape import summary

    rows = [summary(method) for method in all_methods().values()]
    if as_json:
        emit(rows)
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        click.echo(f"{row['name']:<{width}}  {row['trains_on']:<8}  {row['trained_parameters']:>10,}  {row['paper']}")
    click.echo("\ncolumns: name, what it trains on, trained parameters on ViT-B/16 with 100 classes, paper")


@command.command("show")
@click.argument("name")
@json_flag
@click.pass_context
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """Explain one method: its equations, its options and their defaults."""
    import sys

    from dca.methods.base import get_method
    from dca.methods.shape import summary
    from dca.options import describe

    method = get_method(name)
    row: dict[str, Any] = {**summary(method), "options": describe(method.Options)}
    if as_json or (ctx.parent and ctx.parent.params["as_json"]):
        emit(row)
        return
    click.echo(sys.modules[method.__module__].__doc__ or method.__doc__)
    click.echo(f"paper: {row['paper']}")
    click.echo(f"trains on: {row['trains_on']}")
    click.echo(f"trained parameters on ViT-B/16 with 100 classes: {row['trained_parameters']:,}\n")
    click.echo("options, for --set NAME=VALUE:")
    for option in row["options"]:
        choices = f" [{'|'.join(option['choices'])}]" if option["choices"] else ""
        default = "auto" if option["default"] is None else option["default"]
        click.echo(f"  {option['name']} = {default}{choices}\n      {option['help']} ({option['source']})")
