"""Options and printing that several commands share."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from dca.core.errors import UserError, unknown_name
from dca.core.text import invisible_characters, make_visible

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from dca.core.progress import Progress

F = TypeVar("F", bound=Callable[..., Any])

json_flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON value on stdout and nothing else.")
quiet_flag = click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
overwrite_flag = click.option("--overwrite", is_flag=True, help="Replace a model that is already at the output.")


plots_flag = click.option(
    "--plots/--no-plots",
    default=True,
    envvar="DCA_PLOTS",
    help="Draw how the model did into MODEL/plots, or leave it out. Needs matplotlib. [on; DCA_PLOTS=0: off]",
)


class Group(click.Group):
    """A group that suggests the most similar of its commands for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command named by the first argument."""
        known = self.list_commands(ctx)
        # Words that are being completed are not answered with an error.
        if args and args[0] not in known and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise self.unknown(args)
        return super().resolve_command(ctx, args)

    def unknown(self, args: list[str]) -> UserError:
        """The error for a first word that is not a command of the group."""
        known = self.list_commands(click.Context(self))
        return unknown_name("command", args[0], known, hint=self.way_out(args[0]))

    def way_out(self, name: str) -> str:
        """The command that `name` probably stands for; empty if unclear."""
        return ""


class LazyGroup(Group):
    """A group that lists its commands with their one-line help without importing them.

    commands_table: name -> (module with an attribute `command`, or module:attribute; what the command does).
    """

    def __init__(self, *args: Any, commands_table: Mapping[str, tuple[str, str]], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.table = commands_table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command itself, imported now."""
        if name not in self.table:
            return None
        module, _, attribute = self.table[name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute or "command")
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completions of a first word, without importing a command."""
        from click.shell_completion import CompletionItem

        names = [name for name in self.table if name.startswith(incomplete)]
        own = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=self.table[name][1]) for name in names), *own]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of commands, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in self.table.items()])


def _limit_pixels(ctx: click.Context, _: click.Parameter, millions: float | None) -> None:
    """Change the largest image that is opened until the command ends."""
    if millions is not None:
        from dca.images.decode import pixel_limit

        ctx.with_resource(pixel_limit(millions))


def device_flags(function: F) -> F:
    """Add --device, --precision and --max-megapixels."""
    function = click.option(
        "--max-megapixels",
        type=click.FloatRange(min=0, min_open=True),
        default=None,
        metavar="N",
        expose_value=False,
        callback=_limit_pixels,
        help="Largest image to open, in million pixels; JPEGs may have three times as many.  [default: 89]",
    )(function)
    function = click.option(
        "--precision",
        default="auto",
        show_default=True,
        help="auto, fp32 or bf16: precision of the CLIP towers. auto is bf16 on a GPU, and for frozen features of "
        "full-size towers on a CPU with instructions for it; fp32 elsewhere.",
    )(function)
    return click.option(
        "--device",
        default="auto",
        show_default=True,
        help="auto, cpu, cuda, cuda:1, mps (Apple's GPU, for frozen features), ...",
    )(function)


def architecture_flag(function: F) -> F:
    """Add --architecture, which becomes a part of the backbone's name."""

    @wraps(function)
    def call(*arguments: Any, architecture: str | None, backbone: str, **more: Any) -> Any:
        if architecture is not None:
            from dca.backbones.architectures import join_architecture

            backbone = join_architecture(architecture, backbone)
        return function(*arguments, backbone=backbone, **more)

    return click.option(
        "--architecture",
        default=None,
        metavar="NAME",
        help="Sizes of a --backbone FILE of tensors that does not say them: ViT-B-16 for open_clip's, "
        "ViT-B-16-quickgelu for OpenAI's, DFN's and MetaCLIP's, RN50, ...",
    )(cast(F, call))


def backbone_of_model(function: F) -> F:
    """Add --backbone, for a model whose backbone was moved."""
    return click.option(
        "--backbone", default=None, help="Where the backbone of the model is now, if it was moved since the fit."
    )(function)


@contextmanager
def showing(*, quiet: bool) -> Iterator[Progress]:
    """Show progress on stderr: bars on a terminal, a line every 30 seconds elsewhere."""
    from dca.core.progress import log_lines, progress_bars, silent

    if quiet:
        yield silent
    elif sys.stderr.isatty():
        with progress_bars() as drawn:
            yield drawn
    else:
        yield log_lines()


@contextmanager
def only_results_on_stdout() -> Iterator[None]:
    """Send to stderr what libraries print on stdout, as Ray does when a node is lost."""
    with redirect_stdout(sys.stderr):
        yield


def format_plots(plots: Sequence[str]) -> str:
    """Plots of one folder on one line. plots: their paths, at least one."""
    folder = os.path.commonpath([os.path.dirname(path) for path in plots])
    return f"plots  {folder}/: {', '.join(os.path.relpath(path, folder) for path in plots)}"


def say_how_to_plot() -> None:
    """Say what is needed for plots, if it is not installed."""
    from dca.plots.style import can_draw

    if not can_draw():
        print_lines("no plots of the mistakes and the accuracy: pip install 'dca-prompt[report]' draws them", err=True)


def print_warnings(warnings: Iterable[str]) -> None:
    """Print warnings on stderr, one per line."""
    for warning in warnings:
        print_lines(f"warning: {warning}", err=True)


def print_lines(*lines: str, err: bool = False) -> None:
    """Print lines on stdout, or on stderr; what a terminal would obey in a name or a path is written as an escape."""
    for line in lines:
        click.echo(make_visible(line), err=err)


class VisibleFormatter(logging.Formatter):
    """Messages of the log as `print_lines` prints them, with tracebacks as they are."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The message of a record."""
        return make_visible(super().formatMessage(record))


def emit(value: Any) -> None:
    """Print one JSON value on stdout; characters that a terminal would obey, or not show, are JSON escapes."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    for character in invisible_characters(text) - {"\n"}:  # those of names only: JSON has no others
        text = text.replace(character, json.dumps(character)[1:-1])
    click.echo(text)
