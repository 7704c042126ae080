"""Test images classified together: accuracy, and what that adds to the same models on one image at a time."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dca.study.report.means import build_lines, shots_title, with_average
from dca.study.report.sections.few_shot import accuracy_tables
from dca.study.report.subject import Subject
from dca.study.report.tables import Part, RunsSection, Table, TableCell, mean_entry
from dca.study.results import ACCURACY, Block, Run, Shots, Variant

NOTE = (
    "All test images are classified together, without their labels: from the predictions of each method for one image "
    "at a time, by Gaussians over all images (transduction). Such accuracies depend on which images come together, and "
    "stand in no table beside those of models that see one image at a time. Test accuracy in percent, mean ± standard "
    "deviation over seeds."
)
GAINS = "The model on all test images together minus the same on one image at a time, in points, by pairs of runs."


def build(subject: Subject) -> Part | str:
    """One table per number of shots and block, and one of differences where the few-shot runs are there, too."""
    tables: list[Table] = []
    for block in subject.of_protocol("transductive"):
        tables += accuracy_tables(subject, block, "transductive", "All test images together")
        alone = next((one for one in subject.of_protocol("few-shot") if one.context == block.context), None)
        if alone is not None:
            tables += _gains(subject, block, alone)
    return Part(notes=(NOTE,), tables=tuple(tables)) if tables else "No transductive runs."


def _gains(subject: Subject, together: Block, alone: Block) -> Iterator[Table]:
    """What classifying together adds, one table per number of shots."""
    for shots in together.shots:
        pairs = {
            (variant, name): _pairs(together, alone, variant, name, shots)
            for variant in subject.methods(together)
            for name in together.datasets
        }
        datasets = [name for name in together.datasets if any(pairs[v, name] for v in subject.methods(together))]

        def entries(
            variant: Variant,
            pairs: dict[tuple[Variant, str], list[tuple[Run, Run]]] = pairs,
            datasets: Sequence[str] = datasets,
        ) -> list[TableCell | None]:
            cells = [_mean_difference(pairs[variant, name]) for name in datasets]
            return [*cells, _average(cells)] if len(datasets) > 1 else cells

        if lines := build_lines(subject.methods(together), subject.names, entries):
            name = f"together-minus-alone-{shots if shots is not None else 'all'}{subject.file_suffix(together)}"
            title = f"What classifying together adds, {shots_title(shots)}{subject.where(together)}"
            yield Table(name, title, ("method",), with_average(together, datasets), tuple(lines), notes=(GAINS,))


def _pairs(together: Block, alone: Block, variant: Variant, dataset: str, shots: Shots) -> list[tuple[Run, Run]]:
    """Runs of both protocols with the same training and test images."""
    found = ((run, alone.run(variant, dataset, shots, run.seed)) for run in together.runs(variant, dataset, shots))
    return [(run, other) for run, other in found if other is not None and other.test_images == run.test_images]


def _mean_difference(pairs: Sequence[tuple[Run, Run]]) -> TableCell | None:
    """Mean and deviation over pairs of runs; None without any."""
    differences = [run.figures[ACCURACY] - other.figures[ACCURACY] for run, other in pairs]
    entry = mean_entry(differences, [run.id for pair in pairs for run in pair])
    return entry and replace(entry, signed=True)


def _average(cells: Sequence[TableCell | None]) -> TableCell | None:
    """Mean over datasets; None unless all were run."""
    values = [cell.value for cell in cells if cell is not None and cell.value is not None]
    if len(values) < len(cells):
        return None
    runs = tuple(id for cell in cells if cell is not None for id in cell.runs)
    return TableCell(statistics.fmean(values), runs=runs, signed=True)


SECTION = RunsSection("transductive", "All test images together", build)
