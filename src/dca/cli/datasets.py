"""dca datasets: list and explain public datasets, check data, make few-shot draws."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dca.cli.common import Group, emit, json_flag, print_lines, quiet_flag, showing
from dca.cli.tables import format_table
from dca.core.errors import UserError
from dca.core.hints import render_hint, set_data_root
from dca.core.text import pluralize

if TYPE_CHECKING:
    from dca.datasets.catalog import CatalogEntry
    from dca.datasets.check import CheckReport

root_option = click.option(
    "--root",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder that holds the public datasets.  [default: DCA_DATA]",
)


class Datasets(Group):
    """The group; suggests `show` if a dataset's name is given as a command."""

    def way_out(self, name: str) -> str:
        """`dca datasets eurosat` -> dca datasets show eurosat."""
        from dca.datasets import catalog

        entry = catalog.find(name)
        return f"dca datasets show {entry.name}" if entry else super().way_out(name)


@click.group(cls=Datasets, invoke_without_command=True)
@root_option
@json_flag
@click.pass_context
def command(ctx: click.Context, root: Path | None, as_json: bool) -> None:
    """List the public datasets; `show` explains one, `check` checks one, or your own images.

    \b
    dca datasets check photos/                         before the first fit
    dca datasets check eurosat --root data/            what is there, what is missing
    dca datasets draw eurosat --root data/ --shots 16  which images a seed takes
    """
    if ctx.invoked_subcommand is not None:
        return
    from dca.datasets import catalog

    entries = [(entry, _find_folder(entry, root)) for entry in catalog.entries().values()]
    if as_json:
        emit([{**entry.describe(), "found": folder} for entry, folder in entries])
        return
    rows = [["name", "classes", "train", "val", "test", "found"]]
    for entry, folder in entries:
        rows.append([entry.name, *(f"{count:,}" for count in (entry.classes, *entry.sizes)), folder or "-"])
    print_lines(*format_table(rows, align="lrrrr"))
    print_lines("", "your own images need no entry here: dca datasets check photos/", err=True)


@command.command("show")
@click.argument("name")
@json_flag
def show(name: str, as_json: bool) -> None:
    """Explain one public dataset: split, class names, prompt template, folders, where to get it.

    \b
    dca datasets show eurosat
    dca datasets show stanford_cars --json
    """
    from dca.datasets import catalog

    entry = catalog.get(name)
    classes = [{"key": key, "name": words} for key, words in entry.class_list()]
    if as_json:
        emit({**entry.describe(), "class_names": classes})
        return
    train, val, test = entry.sizes
    print_lines(f"{entry.title} ({entry.name}): {entry.classes:,} classes; {train:,} train, {val:,} val, {test:,} test")
    for label, text in (("split", entry.split), ("template", entry.template), ("note", entry.notes)):
        if text:
            print_lines(f"{label:<9} {text}")
    print_lines(f"{'home':<9} {entry.home}", f"{'licence':<9} {entry.licence}", f"{'cite':<9} {entry.citation}")
    print_lines(f"{'layout':<9} ROOT/{entry.folder}/")
    for line in entry.layout.expected_files():
        print_lines(f"{'':<11} {line}")
    names = ", ".join(row["name"] for row in classes[:8])
    print_lines(f"{'classes':<9} {names}{', ...' * (len(classes) > 8)}")


@command.command("get")
@click.argument("name")
@root_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only list the files: addresses, sizes, checksums.")
@quiet_flag
@json_flag
def get_dataset(name: str, root: Path | None, yes: bool, dry_run: bool, quiet: bool, as_json: bool) -> None:
    """Fetch a public dataset into its folder, as far as a program can, and list what is left to do by hand.

    Files are checked against published checksums where there are any. A call that was interrupted goes on where it was.

    \b
    dca datasets get eurosat --dry-run
    dca datasets get eurosat --root data/ --yes
    """
    from dca.core.progress import silent
    from dca.core.questions import ask_user
    from dca.datasets import catalog
    from dca.datasets.check import check_source
    from dca.datasets.downloads import fetch_all, list_missing, sources_of
    from dca.datasets.load import find_root

    entry = catalog.get(name)
    base = find_root(root)
    if base is None:
        raise UserError(f"where is {entry.title} to go?", hint=set_data_root(entry.folder))
    folder, sources = base / entry.folder, sources_of(entry.name)
    missing = list_missing(folder, sources)
    wanted, by_hand = [one for one in missing if not one.by_hand], [one for one in missing if one.by_hand]
    if not as_json:
        print_lines(f"{entry.title}: {folder}/", f"licence  {entry.licence}", f"home     {entry.home}", err=True)
        for one in missing:
            print_lines(f"{one.file}: {one.size}, {one.checksum}", f"  {one.url}", err=True)
            if one.by_hand:
                print_lines(f"  by hand: {one.by_hand}", err=True)
    found: dict[str, str] = {}
    if wanted and not dry_run:
        if not yes and not ask_user(f"fetch {pluralize(len(wanted), 'file')} into {folder}?"):
            problem = f"{entry.title}: nothing was fetched, since nobody said yes"
            raise UserError(problem, hint=["add --yes", "--dry-run lists the files"])
        with showing(quiet=quiet or as_json) as progress:
            found = fetch_all(folder, sources, progress or silent)
    if as_json:
        listed = {"missing": [one.describe() for one in missing], "fetched": found}
        emit({"dataset": entry.name, "folder": str(folder), "licence": entry.licence, **listed})
        return
    for file, digest in found.items():
        print_lines(f"fetched {file}  sha256 {digest}")
    if dry_run or by_hand:
        return
    print_report(check_source(str(folder), None, open_images=False))


@command.command("check")
@click.argument("data", type=click.Path())
@root_option
@click.option(
    "--images/--no-images",
    default=None,
    help="Open every image, or check names and counts only.  [default: open your own, not public ones]",
)
@quiet_flag
@json_flag
@click.pass_context
def check(ctx: click.Context, data: str, root: Path | None, images: bool | None, quiet: bool, as_json: bool) -> None:
    """Report what is wrong with DATA (a folder, an image list or a public name), and what to do.

    The exit code is 2 if something must be changed before training.

    \b
    dca datasets check photos/
    dca datasets check labels.csv --no-images          names and counts only
    dca datasets check eurosat --root data/ --images   open every image too
    """
    from dca.core.progress import stage_progress
    from dca.datasets.check import check_source

    with showing(quiet=quiet) as progress:
        report = check_source(data, root, open_images=images, progress=stage_progress(progress, "images"))
    if as_json:
        emit(report.describe("cli"))
    else:
        print_report(report)
    if not report.ok:
        ctx.exit(2)


@command.command("draw")
@click.argument("data", type=click.Path())
@root_option
@click.option("--shots", type=click.IntRange(min=1), required=True, help="K, number of training images per class.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the draw.")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=None, help="Write the draw to this file.")
@json_flag
def draw(data: str, root: Path | None, shots: int, seed: int, output: Path | None, as_json: bool) -> None:
    """Draw K images per class of DATA as in published work, and print the hash of the draw.

    Equal hashes mean the same images of the same classes in the same order, wherever the files
    are. A class with fewer than K images gives all of them.

    \b
    dca datasets draw photos/ --shots 4
    dca datasets draw eurosat --root data/ --shots 16 --seed 2 -o draw.json
    dca study run data/eurosat/ --draw draw.json             train on exactly these
    """
    from dca.datasets import load_dataset
    from dca.datasets.draws import draw_few_shot, export_draw, record_draw, short_classes

    dataset = load_dataset(data, root=root)
    drawn = draw_few_shot(dataset, shots, seed)
    for name, count in short_classes(dataset, shots):
        print_lines(f"warning: class '{name}' has only {pluralize(count, 'image')}; all are drawn", err=True)
    if output is not None:
        export_draw(drawn, shots, seed, output)
    record = record_draw(drawn, shots, seed)
    if as_json:
        emit(record.to_dict())
        return
    print_lines(f"{dataset.name} K={shots} seed={seed}: {len(drawn.train):,} train, {len(drawn.val):,} val images")
    print_lines(f"hash {record.hash}")
    if output is not None:
        print_lines(f"wrote {output}")


def _find_folder(entry: CatalogEntry, root: Path | None) -> str | None:
    """The folder of the dataset below the root; None if it is not there."""
    from dca.core.errors import UserError
    from dca.datasets.load import find_dataset_folder

    try:
        return str(find_dataset_folder(entry, root))
    except UserError:
        return None


def print_report(report: CheckReport) -> None:
    """Print a report: counts first, then the findings, worst first."""
    print_lines(f"{report.name} at {report.path}")
    for key, value in report.facts.items():
        print_lines(f"  {key.replace('_', ' ')}: {_format_fact(value)}")
    for finding in report.findings:
        print_lines(f"{finding.level}: {finding.what}")
        for example in finding.examples:
            print_lines(f"  {example}")
        if finding.count > len(finding.examples) > 0:
            print_lines(f"  ... and {finding.count - len(finding.examples):,} more")
        if finding.advice:
            print_lines(f"  do: {render_hint(finding.advice, 'cli')}")
    if not report.findings:
        print_lines("nothing wrong found")


def _format_fact(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {count:,}" for key, count in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
