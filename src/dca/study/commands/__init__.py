"""dca study: one file per command, loaded when it is called."""

from __future__ import annotations

import click

from dca.cli.common import LazyGroup

# name -> (module with an attribute `command`; what it does)
COMMANDS = {
    "run": ("dca.study.commands.run", "Run one experiment: a fit under a protocol."),
    "sweep": ("dca.study.commands.sweep", "Run all experiments of a specification."),
    "collect": ("dca.study.commands.collect", "Collect the results of many runs into one file."),
    "select": ("dca.study.commands.select", "Choose the options of every method on validation images."),
    "report": ("dca.study.commands.report", "Write a report about finished runs: tables, figures, claims."),
    "bench": ("dca.study.commands.bench", "Measure speed and memory beside a plain reference."),
}


@click.group(cls=LazyGroup, commands_table=COMMANDS)
def group() -> None:
    """Compare methods as papers do.

    An experiment is a fit under a protocol: few-shot, base-to-new, cross-dataset or domain-shift. A specification
    (TOML) is a grid of experiments, which a sweep runs, each in a folder of its own.

    \b
    dca study run eurosat/ --method coop --shots 16 --protocol base-to-new
    dca study sweep paper/few-shot --data ~/datasets --runs runs
    dca study report runs -o report/
    """
