"""Write the tables of docs/methods.md: the methods as they are, and their accuracies in a study.

    python benchmarks/method_table.py
    python benchmarks/method_table.py experiments/few-shot.toml RUNS    first make methods/measured.json of these runs

The second form also writes the table of accuracies at every number of shots.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from dca.core.files import write_json
from dca.datasets.catalog import title_of
from dca.methods.registry import all_methods
from dca.methods.summary import table
from dca.study.measured import measured_accuracies
from dca.study.report.means import average_entry, cell_entry
from dca.study.report.subject import subject_of
from dca.study.report.tables import MISSING, TableCell
from dca.study.results import PARAMETERS
from dca.study.specification import load_specification

ROOT = Path(__file__).resolve().parents[1]
PAGE, MEASURED = ROOT / "docs" / "methods.md", ROOT / "src" / "dca" / "methods" / "measured.json"
BEGIN, END = "<!-- methods: benchmarks/method_table.py -->\n", "\n<!-- end of methods -->"
STUDY_BEGIN, STUDY_END = "<!-- study: benchmarks/method_table.py -->\n", "\n<!-- end of study -->"
MOST = 16


def filled(page: str) -> str:
    """The page with the table of the methods in this package between its marks."""
    ours = [method for method in all_methods().values() if method.__module__.startswith("dca.methods.")]
    return between(page, BEGIN, END, table(ours))


def between(page: str, begin: str, end: str, text: str) -> str:
    """The page with another text between two marks."""
    before, rest = page.split(begin)
    return before + begin + text + end + rest.split(end, 1)[1]


def study_table(specification: str, runs: Path) -> str:
    """Mean accuracy over the datasets by shots, then each dataset with most shots; the best method first."""
    subject = subject_of(runs, specifications=[specification])
    (block,) = subject.of_protocol("few-shot")
    datasets = [dataset for dataset in block.datasets if dataset in block.averaged]
    rows = []
    for variant in subject.methods(block):
        means = [average_entry(block, variant, shots, datasets) for shots in block.shots]
        cells = [cell_entry(block, variant, name, MOST) for name in datasets]
        trained = average_entry(block, variant, MOST, datasets[:1], PARAMETERS)
        values = "–" if trained is None else f"{trained.value:,.0f}"
        last = means[-1].value if means[-1] and means[-1].value else 0.0
        rows.append((-last, f"| `{variant.method}` | {' | '.join(map(shown, [*means, *cells]))} | {values} |"))
    titles = [f"K={shots}" for shots in block.shots]
    titles += [*map(title_of, datasets), f"trained values, {title_of(datasets[0])}"]
    head = [f"| method | {' | '.join(titles)} |", "|---|" + "---:|" * len(titles)]
    return "\n".join([*head, *(row for _, row in sorted(rows))])


def shown(entry: TableCell | None) -> str:
    """One accuracy with its standard deviation."""
    if entry is None or entry.value is None:
        return MISSING
    return f"{entry.value:.1f}" + ("" if entry.std is None else f" ± {entry.std:.1f}")


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    if len(sys.argv) == 3:
        specification, runs = sys.argv[1], Path(sys.argv[2])
        found = measured_accuracies(load_specification(specification), runs)
        write_json(MEASURED, found)
        click.echo(f"left out, not finished: {', '.join(found['not_finished']) or 'none'}")
        page = between(page, STUDY_BEGIN, STUDY_END, study_table(specification, runs))
    PAGE.write_text(filled(page), encoding="utf-8")
