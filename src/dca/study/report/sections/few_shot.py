"""Few-shot accuracy: one table per number of shots, every method by every dataset."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from dca.study.report.means import build_lines, dataset_entries, shots_title, with_average
from dca.study.report.subject import Subject
from dca.study.report.tables import Part, RunsSection, Table, mark_best
from dca.study.results import Block

NOTE = (
    "Test accuracy in percent, mean ± standard deviation over seeds. The best of a column is bold, the second "
    "underlined; "
    "– was not run. An average needs all of its datasets; its deviation is that of the average over seeds. Each "
    "method is shown with the settings that it was run with most; other settings are below, under Variants."
)


def build(subject: Subject) -> Part | str:
    """One table per number of shots and block."""
    tables = [
        table
        for block in subject.of_protocol("few-shot")
        for table in accuracy_tables(subject, block, "few-shot", "Few-shot accuracy")
    ]
    return Part(notes=(NOTE,), tables=tuple(tables)) if tables else "No few-shot runs."


def accuracy_tables(subject: Subject, block: Block, stem: str, title: str) -> Iterator[Table]:
    """Every method by every dataset, one table per number of shots; stem: of the file names."""
    variants = subject.methods(block)
    for shots in block.shots:
        datasets = [name for name in block.datasets if any(block.runs(v, name, shots) for v in variants)]
        averaged = [name for name in datasets if name in block.averaged]
        entries = partial(dataset_entries, block, shots=shots, datasets=datasets, averaged=averaged)
        lines = build_lines(variants, subject.names, entries)
        notes = () if averaged in ([], datasets) else (f"The average is over {', '.join(map(block.title, averaged))}.",)
        name = f"{stem}-{shots if shots is not None else 'all'}{subject.file_suffix(block)}"
        where = f"{shots_title(shots)}{subject.where(block)}"
        yield Table(name, f"{title}, {where}", ("method",), with_average(block, datasets), mark_best(lines), notes)


SECTION = RunsSection("few_shot", "Few-shot accuracy", build)
