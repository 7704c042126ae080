"""One file per command: parse, call, print.

Commands are loaded when they are called, so that `dca --help` loads neither torch nor rich.
"""

from __future__ import annotations

import sys
from importlib import import_module

import click

import dca
from dca.errors import UserError

# name -> (module with an attribute `command`, what it does)
COMMANDS = {
    "fit": ("dca.cli.fit", "Learn a classifier from a folder of photos."),
    "eval": ("dca.cli.eval", "Measure a model on labelled images."),
    "predict": ("dca.cli.predict", "Name what is on images."),
    "methods": ("dca.cli.methods", "List the methods, or show one with its options."),
    "datasets": ("dca.cli.datasets", "List the public datasets; check one, or your own images."),
    "cache": ("dca.cli.cache", "Look at the stored image features, or clear them."),
    "doctor": ("dca.cli.doctor", "Say what is installed and what will be used."),
    "demo": ("dca.cli.demo", "See it work on built-in pictures, in a minute or two."),
}


class Lazy(click.Group):
    """A group that knows its commands' names and one-line helps without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command itself, imported now."""
        if name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of commands, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the nearest command for an unknown one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from dca.errors import unknown_name

            raise unknown_name("command", args[0], COMMANDS)
        return super().resolve_command(ctx, args)


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(dca.__version__, prog_name="dca")
@click.option("--traceback", is_flag=True, help="Show the whole Python traceback of an error.")
def group(traceback: bool) -> None:
    """Teach CLIP new classes from a few images.

    \b
    dca demo                                 see it work, nothing to prepare
    dca fit photos/ --shots 16               photos/cat/*.jpg  photos/dog/*.jpg ...
    dca predict photos.dca new.jpg           what is on it?
    dca eval photos.dca more_photos/         how good is it?
    """


def main(args: list[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0 done, 2 something for the user to change, 130 interrupted, anything else a bug.
    """
    arguments = sys.argv[1:] if args is None else args
    try:
        code = group.main(args=arguments, prog_name="dca", standalone_mode=False)
    except UserError as error:
        if "--traceback" in arguments:
            raise
        click.echo(f"error: {error}", err=True)
        return 2
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted; the same command continues where it stopped", err=True)
        return 130
    return code if isinstance(code, int) else 0
