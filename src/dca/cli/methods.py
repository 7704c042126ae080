"""dca methods: list the methods, show one, check one, or begin a new one."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dca.cli.common import Group, emit, json_flag, print_lines
from dca.cli.completion import complete_method
from dca.core.errors import nearest

if TYPE_CHECKING:
    from dca.methods.compatibility import Compatibility
    from dca.methods.summary import MethodSummary

WIDEST = 100
# Reason of `methods.summary.recommend` -> words.
REASONS = {
    "default": "what `dca fit` uses",
    "seconds": "the most accurate of those that take seconds",
    "minutes": "the most accurate of those trained on images",
}


class Methods(Group):
    """The group; suggests `show` if a method's name is given as a command."""

    def way_out(self, name: str) -> str:
        """`dca methods coop` -> dca methods show coop."""
        from dca.methods.registry import all_methods

        return f"dca methods show {nearest(name.lower(), all_methods()) or 'NAME'}"


@click.group(cls=Methods, invoke_without_command=True)
@click.option("--backbone", default=None, metavar="NAME", help="Say which methods run on this backbone.")
@json_flag
@click.pass_context
def command(ctx: click.Context, backbone: str | None, as_json: bool) -> None:
    """List the methods by speed and measured accuracy; `dca methods show NAME` explains one and its options.

    \b
    dca methods                              which one to choose, and all of them
    dca methods --backbone siglip2-b-16      which of them run on a backbone
    dca methods show coop                    its equations, options, limits and paper
    dca methods new my_method                write a package with a method of your own, and its test
    dca methods check my_method              whether it does what every method must
    dca fit photos/ --method coop            train with it
    """
    if ctx.invoked_subcommand is not None:
        return
    from dca.methods.registry import all_methods

    if backbone is not None:
        from dca.methods.compatibility import abilities_of, check_method

        abilities = abilities_of(backbone)
        found = [check_method(method, abilities) for method in all_methods().values() if not method.fits_others]
        if as_json:
            emit({"backbone": backbone, "methods": [asdict(one) for one in found]})
        else:
            print_lines(*format_compatibility(backbone, found))
        return
    from dca.methods.summary import sort_rows, summarize

    rows = sort_rows(summarize(method) for method in all_methods().values())
    if as_json:
        emit([asdict(row) for row in rows])
    else:
        print_lines(*format_methods(rows, shutil.get_terminal_size((WIDEST, 24)).columns))


def format_compatibility(backbone: str, found: Sequence[Compatibility]) -> list[str]:
    """The methods that run on a backbone, those that need an option for it, and the others with what is missing."""
    columns = max(min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST), 40)
    style: Any = {"initial_indent": "  ", "subsequent_indent": "    ", "break_on_hyphens": False}
    running = [one.method for one in found if one.runs and not one.settings]
    lines = [f"on {backbone} run {len([one for one in found if one.runs])} of {len(found)} methods:"]
    lines += textwrap.wrap(", ".join(running), columns, **style)
    for one in found:
        if one.runs and one.settings:
            lines += textwrap.wrap(f"{one.method}, with --set {' or --set '.join(one.settings)}", columns, **style)
    others = [one for one in found if not one.runs]
    lines += ["not on it:"] if others else []
    for one in others:
        lines += textwrap.wrap(f"{one.method}: needs {' and '.join(one.missing)}", columns, **style)
    return lines


def format_methods(rows: Sequence[MethodSummary], columns: int) -> list[str]:
    """Which method to choose, then all of them by speed: accuracy, summary, and what each learns from."""
    from dca.methods.summary import SPEEDS, describe_measurements, load_measurements, sort_rows

    margin = max(len(row.name) for row in rows) + 12
    width = max(min(columns, WIDEST), margin + 30)
    lines = format_advice(rows, width)
    for speed, words in SPEEDS.items():
        lines += ["", f"{words}:"]
        for row in sort_rows(rows):
            if row.speed == speed:
                lines += format_method(row, margin, width)
    notes = [f"%: {describe_measurements()}", "values: trained parameters on ViT-B/16 with 100 classes"]
    if tuned := [row.name for row in rows if row.measured_with]:
        notes.insert(
            1,
            f"{', '.join(tuned)}: measured with options that were chosen on validation images for "
            f"{load_measurements().backbone} and are not the defaults; see `dca methods show NAME`",
        )
    lines += ["", *(line for note in notes for line in textwrap.wrap(note, width))]
    return [*lines, "dca methods show NAME: paper and options"]


def format_advice(rows: Sequence[MethodSummary], width: int) -> list[str]:
    """The methods to choose, each with the reasons."""
    from dca.methods.summary import SPEEDS, recommend

    lines, reasons = ["Which method to choose:"], dict[str, list[str]]()
    by_name = {row.name: row for row in rows}
    for reason, row in recommend(rows):
        reasons.setdefault(row.name, []).append(reason)
    for name, why in reasons.items():
        row = by_name[name]
        text = f"{name}: {' and '.join(REASONS[reason] for reason in why)}"
        if row.mean_accuracy is not None:
            text += f", {row.mean_accuracy:.1f} %"
        text += f"; {SPEEDS[row.speed]}" if "default" in why else ""
        lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    return lines


def format_method(row: MethodSummary, margin: int, width: int) -> list[str]:
    """One method: name, accuracy and summary; below them what it learns from, and the number of trained values."""
    figure = "" if row.mean_accuracy is None else f"{row.mean_accuracy:.1f} %"
    start = f"  {row.name:<{margin - 10}}{figure:>6}  "
    trained, learns = row.trained_parameters, row.learns_from
    source = f"learns from {learns}: {trained:,} values" if trained else learns
    style: Any = {"subsequent_indent": " " * margin, "break_on_hyphens": False}
    about = textwrap.wrap(row.summary.rstrip("."), width, initial_indent=start, **style)
    return about + textwrap.wrap(source, width, initial_indent=" " * margin, **style)


@command.command("show")
@click.argument("name", shell_complete=complete_method)
@json_flag
@click.pass_context
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """Explain one method: its equations, its options, their limits and defaults.

    \b
    dca methods show dca
    dca methods show tip-adapter --json
    """
    from dca.core.options import describe_options
    from dca.methods.registry import get_method
    from dca.methods.summary import SPEEDS, describe_measurements, summarize

    method = get_method(name)
    listed = [option for option in describe_options(method.Options) if option.name not in method.unused_options()]
    published = {p: {"options": dict(r.options), "source": r.source} for p, r in method.protocol_options.items()}
    row, explanations = summarize(method), method.explain_options()
    if as_json or (ctx.parent and ctx.parent.params["as_json"]):
        records = [asdict(option) for option in listed]
        emit({**asdict(row), "options": records, "protocol_options": published, "explanations": explanations})
        return
    print_lines(*(sys.modules[method.__module__].__doc__ or method.__doc__ or "").splitlines())
    print_lines(f"paper: {row.paper}")
    print_lines(f"takes: {SPEEDS[row.speed]}")
    if row.mean_accuracy is not None:
        options = "".join(f" --set {name}={value}" for name, value in row.measured_with.items())
        print_lines(
            f"accuracy: {row.mean_accuracy:.1f} %{f' with{options}' if options else ''}, {describe_measurements()}"
        )
    print_lines(f"learns from: {row.learns_from}")
    print_lines(f"trained parameters on ViT-B/16 with 100 classes: {row.trained_parameters:,}", "")
    print_lines("options, for --set NAME=VALUE:")
    for option in listed:
        allowed = option.format_limits()
        print_lines(f"  {option.name} = {option.format_default()}{f'  [{allowed}]' if allowed else ''}")
        print_lines(f"      {option.help} ({option.source})")
    if method.unused_options():
        print_lines("  (no epochs, batch size or learning rate: it is not trained in steps)")
    for heading, lines in explanations.items():
        print_lines("", f"{heading}:")
        for line in lines:
            print_lines(*textwrap.wrap(line, WIDEST, initial_indent="  ", subsequent_indent="      "))


# As `dca eval --min-accuracy`: what was asked for was measured, and is not met.
FAILED = 3


@command.command("check")
@click.argument("name", shell_complete=complete_method)
@json_flag
@click.pass_context
def check(ctx: click.Context, name: str, as_json: bool) -> int:
    """Check that a method, of this package or another, does what every method must.

    Fits it a dozen times on drawn images with a tiny random backbone, and once with the embedded one; takes half a
    minute for most methods. Exits with code 3 if a check fails.

    \b
    dca methods check coop
    dca methods check my_method --json
    """
    from dca.core.text import pluralize
    from dca.model.conformance import check_method

    as_json = as_json or bool(ctx.parent and ctx.parent.params["as_json"])
    results = []
    for result in check_method(name):
        results.append(result)
        if not as_json:
            print_lines(f"{'FAILED' if result.problem else 'ok':<7}{result.promise} ({result.seconds:.1f} s)")
            if result.problem:
                print_lines(*textwrap.indent(result.problem, " " * 9).splitlines())
    failed = sum(bool(result.problem) for result in results)
    if as_json:
        emit([asdict(result) for result in results])
    else:
        checks = pluralize(len(results), "check")
        print_lines(f"{failed} of {checks} failed" if failed else f"all {len(results)} passed")
    return FAILED if failed else 0


@command.command("new")
@click.argument("name")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Folder of the package, which must not exist.  [default: dca-NAME]",
)
def new(name: str, output: Path | None) -> None:
    """Write a small package with a method of your own: the method, its entry point and its test.

    The method is complete: once the package is installed, `dca methods check NAME` passes. Replace its equations.

    \b
    dca methods new my_method
    pip install -e dca-my-method
    dca methods check my_method
    """
    from dca.methods.new_package import write_package

    folder = write_package(name, output)
    print_lines(f"wrote {folder}", f"next:  pip install -e {folder}", f"       dca methods check {name}")
