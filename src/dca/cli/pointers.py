"""What a mistyped command line probably meant: other programs' command names, methods, method options."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dca.core.choices import DEFAULT_METHOD
from dca.core.errors import UserError, nearest
from dca.core.hints import show_method

if TYPE_CHECKING:
    from dca.methods.base import Method

# Command names of other programs -> ours.
SYNONYMS = {
    "train": "fit",
    "learn": "fit",
    "finetune": "fit",
    "fine-tune": "fit",
    "adapt": "fit",
    "test": "eval",
    "evaluate": "eval",
    "score": "eval",
    "measure": "eval",
    "classify": "predict",
    "infer": "predict",
    "inference": "predict",
    "check": "datasets check",
    "add": "add-class",
    "remove": "remove-class",
    "rename": "rename-class",
    # Commands of the study.
    "sweep": "study sweep",
    "select": "study select",
    "collect": "study collect",
    "bench": "study bench",
    "benchmark": "study bench",
}
# Flags of `dca study run` that `dca fit` does not have.
STUDY_FLAGS = ("--protocol", "--target", "--rules", "--measured-on", "--draw", "--track")
# Usual short names of method options.
ALIASES = {
    "lr": "learning_rate",
    "bs": "batch_size",
    "batch": "batch_size",
    "epoch": "epochs",
    "wd": "weight_decay",
    "warmup": "warmup_epochs",
    "optim": "optimizer",
}


def unknown_command(args: Sequence[str]) -> UserError | None:
    """The error for a first word that is no command, where it is clear what was meant; else None."""
    name, rest = args[0], args[1:]
    if name.lower() in SYNONYMS:
        return UserError(f"unknown command '{name}'", hint=_line(SYNONYMS[name.lower()], rest))
    if (method := _method(name)) is not None:
        data = [] if rest and not rest[0].startswith("-") else ["DATA"]
        hint = _line("fit", [*data, *rest, "--method", method.name])
        return UserError(f"'{name}' is a method, not a command", hint=hint)
    if Path(name).exists():
        return UserError(f"'{name}' is a file or folder, not a command", hint=_line("fit", args))
    return None


def unknown_option(error: click.NoSuchOption, args: Sequence[str]) -> UserError | None:
    """The error for a flag that is an option of a method, or of experiments; None for any other unknown flag.

    Only commands with --method and --set take all options of a method. args: the whole command line.
    """
    named = _value(args, "--with") or _value(args, "--method") or DEFAULT_METHOD
    context, method = error.ctx, _method(named)
    if context is not None and context.info_name == "fit" and error.option_name in STUDY_FLAGS:
        problem = f"{context.command_path} has no option {error.option_name}, which is one of experiments"
        return UserError(problem, hint=_line("study run", args[args.index("fit") + 1 :]))
    if context is None or method is None or not {"--method", "--set"} <= set(_flags(context)):
        return None
    typed = error.option_name.lstrip("-").replace("-", "_")
    name = ALIASES.get(typed, typed)
    problem = f"{context.command_path} has no option {error.option_name}"
    if name in method.unused_options():
        setting = shlex.quote(f"{name}={_value(args, error.option_name) or 'VALUE'}")
        return UserError(
            f"{problem}, and {method.name} has no {name}: it is not trained in steps",
            hint=["leave it out", f"choose a trained method: --method dca --set {setting}"],
        )
    if name not in _options(method) and (others := _list_methods_with(name)):
        problem += f"; {name} is an option of {', '.join(others)}, not of {method.name}"
        return UserError(problem, hint=show_method(method.name))
    flags = {flag.lstrip("-").replace("-", "_") for flag in _flags(context)}
    close = nearest(name, _options(method) | flags)
    if close not in _options(method):
        return None
    setting = f"{close}={_value(args, error.option_name) or 'VALUE'}"
    return UserError(
        f"{problem}; {close} is an option of the method {method.name}", hint=f"--set {shlex.quote(setting)}"
    )


def only_nearest(error: click.NoSuchOption) -> click.NoSuchOption:
    """The same error, which suggests at most the one flag that is most similar."""
    known = _flags(error.ctx) if error.ctx is not None else error.possibilities or []
    close = nearest(error.option_name, known)
    return click.NoSuchOption(error.option_name, possibilities=[close] if close else None, ctx=error.ctx)


def _flags(context: click.Context) -> list[str]:
    """All flags of a command."""
    return [flag for parameter in context.command.get_params(context) for flag in parameter.opts if flag[0] == "-"]


def _list_methods_with(option: str) -> list[str]:
    """Names of the methods that have this option."""
    from dca.methods.registry import all_methods

    return [method.name for method in all_methods().values() if option in _options(method)]


def _method(name: str) -> type[Method] | None:
    """The method of this name, if there is one."""
    from dca.methods.registry import get_method

    try:
        return get_method(name)
    except UserError:
        return None


def _options(method: type[Method]) -> set[str]:
    """Names of the options that a method uses."""
    from dca.core.options import describe_options

    return {option.name for option in describe_options(method.Options)} - set(method.unused_options())


def _value(args: Sequence[str], flag: str) -> str:
    """The value given to a flag, as `--flag VALUE` or `--flag=VALUE`; empty if there is none.

    >>> _value(["fit", "photos/", "--lr", "0.1"], "--lr"), _value(["--lr=0.1"], "--lr"), _value(["--lr"], "--lr")
    ('0.1', '0.1', '')
    """
    for place, word in enumerate(args):
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
        if word == flag and place + 1 < len(args) and not args[place + 1].startswith("--"):
            return args[place + 1]
    return ""


def _line(command: str, args: Sequence[str]) -> str:
    """A whole command line."""
    return " ".join(["dca", command, *map(shlex.quote, args)])
