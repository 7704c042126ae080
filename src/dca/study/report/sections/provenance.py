"""How the report was made: the runs, the versions and the file of the selection."""

from __future__ import annotations

import platform
from collections import Counter

import numpy

import dca
from dca.core.files import json_digest
from dca.core.text import pluralize
from dca.methods.registry import get_method
from dca.study.index import is_results_file
from dca.study.report.subject import Subject
from dca.study.report.tables import Part, RunsSection

OF_FOLDER = (
    "Every number comes from the files result.json of the runs. A number with one run links to its file; one with "
    "several links to the list of its runs at the end of the page. The files tables/*.csv have a column with their ids."
)
OF_FILE = (
    "Every number comes from lines of the results file, one per run. It links to the list of its runs at the end of "
    "the page. The files tables/*.csv have a column with their ids."
)


def build(subject: Subject) -> Part:
    """Facts about the folder and this page."""
    protocols = Counter(row.protocol for row in subject.rows)
    facts = [
        ("runs", f"{len(subject.rows):,} measured on test images"),
        ("protocols", ", ".join(f"{name}: {number:,}" for name, number in sorted(protocols.items()))),
        ("backbone, rules", "; ".join(context.label for context in subject.contexts)),
        ("ids of the runs (sha256)", json_digest(sorted(row.id for row in subject.rows))),
        ("this report", f"dca {dca.__version__}, numpy {numpy.__version__}, Python {platform.python_version()}"),
    ]
    if subject.validation:
        words = pluralize(subject.validation, "run", "are")
        facts.insert(1, ("left out", f"{words} measured on validation images"))
    if subject.failed:
        facts.insert(1, ("failed", f"{pluralize(len(subject.failed), 'cell')}, see above"))
    if subject.studies:
        facts.append(("specifications", ", ".join(study.name for study in subject.studies)))
    if subject.selection is not None:
        name, digest = subject.selection
        facts.append(("selection of the options", f"{name}, sha256 {digest}"))
        facts += [("not as selected", line) for line in _list_kept_defaults(subject)]
    return Part(notes=(OF_FILE if is_results_file(subject.runs) else OF_FOLDER,), facts=tuple(facts))


def _list_kept_defaults(subject: Subject) -> list[str]:
    """The rows of methods that keep a default where another value was selected, with the reason."""
    rows = dict.fromkeys(variant for block in subject.blocks for variant in block.main.values())
    return [
        f"the row {subject.names(variant)} has the default of {option}: {why}"
        for variant in rows
        for option, why in get_method(variant.method).kept_defaults.items()
        if option not in dict(variant.options)
    ]


SECTION = RunsSection("provenance", "How it was made", build)
