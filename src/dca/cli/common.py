"""Options and printing that several commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dca.core.errors import unknown_name

if TYPE_CHECKING:
    from dca.core.progress import Progress

F = TypeVar("F", bound=Callable[..., Any])

json_flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON value on stdout, nothing else there.")
quiet_flag = click.option("-q", "--quiet", is_flag=True, help="No progress bars, nor lines in their place.")
overwrite_flag = click.option("--overwrite", is_flag=True, help="Replace a model that is already at the output.")


class Group(click.Group):
    """A group that suggests the nearest of its commands for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command named by the first argument."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            raise unknown_name("command", args[0], known, hint=self.way_out(args[0]))
        return super().resolve_command(ctx, args)

    def way_out(self, name: str) -> str:
        """What an unknown command probably meant, where that is no other command of the group."""
        return ""


def running(function: F) -> F:
    """Where and how exactly to run."""
    function = click.option(
        "--precision",
        default="auto",
        show_default=True,
        help="auto, fp32 or bf16: what the towers calculate in. auto is bf16 on a GPU, fp32 elsewhere.",
    )(function)
    return click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, ...")(function)


def backbone_of_model(function: F) -> F:
    """Another place for the backbone of a saved model."""
    return click.option(
        "--backbone", default=None, help="Where the model's backbone lies now, if not where it was when fitted."
    )(function)


@contextmanager
def showing(*, quiet: bool) -> Iterator[Progress]:
    """How a command shows its progress on stderr: bars on a terminal, a line now and then elsewhere."""
    from dca.core.progress import bars, lines, silent

    if quiet:
        yield silent
    elif sys.stderr.isatty():
        with bars() as drawn:
            yield drawn
    else:
        yield lines()


def emit(value: Any) -> None:
    """One JSON value on stdout."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    # A file name that is no valid text becomes a JSON escape.
    click.echo(text.encode("utf-8", "backslashreplace").decode())


def percent(fraction: float | None) -> str:
    """A fraction for people."""
    return "-" if fraction is None else f"{100 * fraction:.1f} %"


def columns(texts: Iterable[str]) -> int:
    """How many columns of a terminal the widest of them takes; 大 and 🐶 take two."""
    from rich.cells import cell_len

    return max(map(cell_len, texts))


def padded(text: str, width: int) -> str:
    """The text and spaces, as many columns wide as that."""
    return text + " " * (width - columns([text]))


def bytes_text(count: float) -> str:
    """A size for people."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def seconds_text(seconds: float) -> str:
    """A duration for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
