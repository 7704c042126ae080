"""One file per command: parse, call, print.

Commands are loaded when they are called, so that `dca --help` loads neither torch nor rich.
"""

from __future__ import annotations

import io
import logging
import sys
from traceback import format_exc

import click

import dca
from dca.cli.common import LazyGroup, VisibleFormatter, print_lines
from dca.cli.pointers import only_nearest, unknown_command, unknown_option
from dca.core.errors import UserError
from dca.core.hints import Hint, set_option
from dca.core.questions import asking
from dca.core.text import make_visible

# name -> (module with an attribute `command`, or module:attribute; what it does)
COMMANDS = {
    "app": ("dca.cli.app", "Make a classifier in the browser, from an empty page."),
    "fit": ("dca.cli.fit", "Train a classifier on a folder of photos."),
    "eval": ("dca.cli.eval", "Measure a model on labelled images."),
    "predict": ("dca.cli.predict", "Predict the classes of images."),
    "report": ("dca.cli.report", "Write a page about a model: accuracy, mistakes, what to do next."),
    "compare": ("dca.cli.compare", "Compare models on the same images."),
    "explain": ("dca.cli.explain", "Show why a model says what it says about an image."),
    "embed": ("dca.cli.embed:embed", "Write the features of any number of images."),
    "similar": ("dca.cli.embed:similar", "Find the images of an archive that are most like one, or its copies."),
    "serve": ("dca.cli.serve", "Look at a model in the browser, correct it, refit it."),
    "check-labels": ("dca.cli.check_labels", "Find images whose labels look wrong."),
    "add-class": ("dca.cli.class_commands:add", "Add a class to a model, without the images of the others."),
    "remove-class": ("dca.cli.class_commands:remove", "Remove a class from a model."),
    "rename-class": ("dca.cli.class_commands:rename", "Rename a class of a model."),
    "export": ("dca.cli.export", "Write a model as ONNX, for programs without torch and for the browser."),
    "push": ("dca.cli.push", "Send a model to the Hugging Face hub."),
    "methods": ("dca.cli.methods", "List the methods, or show one with its options."),
    "datasets": ("dca.cli.datasets", "List the public datasets; check one, or your own images."),
    "cache": ("dca.cli.cache", "Show the stored image features, or clear them."),
    "doctor": ("dca.cli.doctor", "Show what is installed and what will be used."),
    "completion": ("dca.cli.completion", "Print the script that completes dca in bash, zsh or fish."),
    "demo": ("dca.cli.demo", "See it work on built-in images, in a minute or two."),
    "study": ("dca.study.commands:group", "Compare methods as papers do: protocols, sweeps, reports, benchmarks."),
}


class MainGroup(LazyGroup):
    """The commands of `dca`, which knows what words of other programs probably mean."""

    def unknown(self, args: list[str]) -> UserError:
        """The error for a first word that is not a command, with a suggestion."""
        return unknown_command(args) or super().unknown(args)


@click.group(
    cls=MainGroup,
    commands_table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(dca.__version__, prog_name="dca")
@click.option("--traceback", is_flag=True, help="Show the Python traceback of an error.")
def group(traceback: bool) -> None:
    """Teach CLIP new classes from a few images.

    \b
    dca app                                  make a classifier in the browser
    dca demo                                 see it work on built-in images
    dca fit photos/ --shots 16               photos/cat/*.jpg  photos/dog/*.jpg ...
    dca check-labels photos/                 are photos in the wrong folder?
    dca predict photos.dca new.jpg           which class is it?
    dca eval photos.dca more_photos/         how good is it?
    dca serve photos.dca                     look, correct and refit in the browser
    """


def main(args: list[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0: done. 2: an error that the user can solve. 3: below --min-accuracy. 130: interrupted. Anything
    else is a bug and shows its traceback.
    """
    arguments = sys.argv[1:] if args is None else args
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(VisibleFormatter())
    try:
        with asking(ask_on_terminal):
            code = group.main(args=arguments, prog_name="dca", standalone_mode=False)
    except click.ClickException as error:
        show_usage_error(error, arguments)
        return 2
    except (click.Abort, KeyboardInterrupt):
        print_lines("interrupted", err=True)
        return 130
    except Exception as error:
        message = message_of(error)
        if message is None:
            raise
        text = format_exc() if "--traceback" in arguments else f"error: {message}"
        print_lines(*text.splitlines(), err=True)
        return 2
    return code if isinstance(code, int) else 0


def ask_on_terminal(question: str) -> bool:
    """Ask the user on the terminal; False where there is none."""
    return sys.stdin.isatty() and sys.stderr.isatty() and click.confirm(make_visible(question), err=True)


def show_usage_error(error: click.ClickException, arguments: list[str]) -> None:
    """Print an error about the command line itself, with a suggestion."""
    if isinstance(error, click.NoSuchOption):
        if pointer := unknown_option(error, arguments):
            print_lines(*f"error: {pointer.render('cli')}".splitlines(), err=True)
            return
        error = only_nearest(error)
    shown = io.StringIO()
    error.show(shown)
    print_lines(*shown.getvalue().rstrip("\n").split("\n"), err=True)


def message_of(error: Exception) -> str | None:
    """The text for an error that the user can solve; None for a bug of this program."""
    if isinstance(error, UserError):
        return error.render("cli")
    if isinstance(error, OSError):
        return make_visible(f"{error.filename or 'the output'}: {error.strerror or error}")
    # By name: torch may not have been imported, and some of its allocators raise a plain RuntimeError.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "t allocate mem" in str(error):
        reason = str(error).partition("\n")[0] or "the system gave no reason"
        advice: Hint = [set_option("batch_size", 8), "give fewer images", "choose another --device"]
        return UserError(f"not enough memory ({reason})", hint=advice).render("cli")
    return None
