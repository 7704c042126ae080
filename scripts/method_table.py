"""Write the tables about methods in docs/: the methods as they are, and their accuracies in the study.

    python scripts/method_table.py
    python scripts/method_table.py --results study/results/study.jsonl [--spec study/few-shot.toml]

The first form writes the table of the methods. The second also makes src/dca/methods/measured.json, which `dca methods`
shows, from a results file or a folder of runs, and writes the table of accuracies at every number of shots.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import click
import pages

from dca.core.files import read_json, write_json
from dca.datasets.catalog import title_of
from dca.methods.registry import all_methods
from dca.methods.summary import markdown_table
from dca.study.measured import measured_accuracies
from dca.study.report.means import mean_over_datasets, mean_over_seeds
from dca.study.report.subject import read_subject
from dca.study.report.tables import MISSING, TableCell
from dca.study.results import PARAMETERS, Variant
from dca.study.specification import load_specification

ROOT = Path(__file__).resolve().parents[1]
SELECTION = ROOT / "study" / "selection.json"
MEASURED = ROOT / "src" / "dca" / "methods" / "measured.json"
METHODS, STUDY = "methods: scripts/method_table.py", "study: scripts/method_table.py"
MOST = 16


def make_method_table() -> str:
    """The table of the methods in this package."""
    return markdown_table([method for method in all_methods().values() if method.__module__.startswith("dca.methods.")])


def make_study_table(specification: str, runs: Path) -> str:
    """Mean accuracy over the datasets by shots, then each dataset with most shots; the best method first."""
    subject = read_subject(runs, specifications=[specification])
    (block,) = subject.of_protocol("few-shot")
    datasets = [dataset for dataset in block.datasets if dataset in block.averaged]
    main, rows = subject.methods(block), []
    chosen = list_chosen(read_json(SELECTION))
    shown = [*dict.fromkeys([*main, *(variant for variant in chosen if variant in block.variants)])]
    methods = [variant.method for variant in shown]
    for variant in shown:
        means = [mean_over_datasets(block, variant, shots, datasets) for shots in block.shots]
        cells = [mean_over_seeds(block, variant, name, MOST) for name in datasets]
        trained = mean_over_datasets(block, variant, MOST, datasets[:1], PARAMETERS)
        values = "–" if trained is None else f"{trained.value:,.0f}"
        last = means[-1].value if means[-1] and means[-1].value else 0.0
        changed = ", ".join(f"`{name}={value}`" for name, value in variant.options)
        chosen_apart = changed and methods.count(variant.method) > 1
        title = f"`{variant.method}`" + (f", {changed}, as chosen" if chosen_apart else "")
        rows.append((-last, f"| {title} | {' | '.join(map(format_accuracy, [*means, *cells]))} | {values} |"))
    titles = [f"K={shots}" for shots in block.shots]
    titles += [*map(title_of, datasets), f"trained values, {title_of(datasets[0])}"]
    head = [f"| method | {' | '.join(titles)} |", "|---|" + "---:|" * len(titles)]
    return "\n".join([*head, *(row for _, row in sorted(rows))])


def list_chosen(selection: dict[str, Any]) -> list[Variant]:
    """What the rule chose for methods of which an option keeps another default (`kept_defaults`)."""
    found = []
    for name, method in all_methods().items():
        if method.kept_defaults and name in selection["methods"]:
            chosen, default = selection["methods"][name]["chosen"], method.parse_options({})
            found.append(Variant.of(name, {k: v for k, v in chosen.items() if getattr(default, k) != v}, {}))
    return found


def format_accuracy(entry: TableCell | None) -> str:
    """One accuracy with its standard deviation."""
    if entry is None or entry.value is None:
        return MISSING
    return f"{entry.value:.1f}" + ("" if entry.std is None else f" ± {entry.std:.1f}")


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="results file or folder of runs")
    parser.add_argument("--spec", default=str(ROOT / "study" / "few-shot.toml"), help="specification of the cells")
    arguments = parser.parse_args()
    if arguments.results:
        measured = measured_accuracies(load_specification(arguments.spec), arguments.results)
        write_json(MEASURED, measured)
        click.echo(f"left out, not finished: {', '.join(measured['not_finished']) or 'none'}")
        pages.write_part(STUDY, make_study_table(arguments.spec, arguments.results))
    pages.write_part(METHODS, make_method_table())


if __name__ == "__main__":
    main()
