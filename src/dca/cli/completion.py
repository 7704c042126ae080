"""dca completion: the script that completes commands, options and names in a shell."""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.resources import files

import click

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete dca's commands, options, methods and files with the Tab key.

    \b
    eval "$(dca completion bash)"                       in ~/.bashrc (bash 4.4 or newer)
    eval "$(dca completion zsh)"                        in ~/.zshrc, after compinit
    dca completion fish > ~/.config/fish/completions/dca.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, "dca", "_DCA_COMPLETE")
    # Not `source()`, which for bash starts the bash of this machine to ask for its version.
    click.echo(script.source_template % script.source_vars())


def complete_method(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of methods, for the options that take one."""
    return [name for name in method_names() if name.startswith(incomplete)]


def method_names() -> list[str]:
    """All methods, known by their files and entry points: importing them would import torch, which takes seconds."""
    modules = (file for file in files("dca.methods").iterdir() if file.name.endswith(".py"))
    own = [file.name.removesuffix(".py") for file in modules if "\nMETHOD = " in file.read_text(encoding="utf-8")]
    return sorted({*own, *(point.name for point in entry_points(group="dca.methods"))})
