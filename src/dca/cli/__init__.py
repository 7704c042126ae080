"""One file per command: parse, call, print.

Commands are loaded when they are called, so that `dca --help` loads neither torch nor rich.
"""

from __future__ import annotations

import sys
from importlib import import_module
from traceback import format_exc

import click

import dca
from dca.cli.common import Group
from dca.core.errors import UserError

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


class Lazy(Group):
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

    0 done, 2 something for the user to change, 3 below --min-accuracy, 130 interrupted; anything
    else is a bug and shows its traceback.
    """
    arguments = sys.argv[1:] if args is None else args
    try:
        code = group.main(args=arguments, prog_name="dca", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except Exception as error:
        message = said(error)
        if message is None:
            raise
        click.echo(format_exc() if "--traceback" in arguments else f"error: {message}", err=True)
        return 2
    return code if isinstance(code, int) else 0


def said(error: Exception) -> str | None:
    """What to tell the user about an error that is theirs to mend; None for a bug of ours."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or 'the output'}: {error.strerror or error}"
    # torch says it with errors of its own, and may not have been loaded at all.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "t allocate mem" in str(error):
        reason = str(error).partition("\n")[0] or "the system gave none"
        advice = "smaller steps, e.g. --set batch_size=8, fewer images, or another --device"
        return str(UserError(f"not enough memory ({reason})", hint=advice))
    return None
