"""What the report about a folder of runs shows: its finished cells, arranged, and what they are called."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from dca.core.errors import UserError, unknown_name
from dca.core.hints import finish_sweep
from dca.study.claims import JudgedClaim, claims, evaluate_claim
from dca.study.index import FailedCell, RunRecord, read_results
from dca.study.results import OURS, ZERO_SHOT, Block, Context, RowNames, Variant, build_blocks, list_rows, name_rows
from dca.study.specification import Specification, load_specification

SELECTION = "selection.json"


@dataclass(frozen=True)
class Subject:
    """A folder of runs, or a results file.

    Attributes:
        runs: The folder or the file.
        rows: Finished cells that were measured on test images, sorted by id.
        validation: Number of finished cells that were measured on validation images; they are in no table.
        names: What rows are called.
        studies: The specifications that were given; they also give the names.
        reference: Name of a row, or of a method, that the others are compared with; empty for the best one, or DCA in a
            study of its paper.
        selection: Name and sha256 of the file with the frozen options, if one was given.
        failed: Cells that failed in the last sweep.
    """

    runs: Path
    rows: Sequence[RunRecord]
    validation: int = 0
    names: RowNames = field(default_factory=RowNames)
    studies: tuple[Specification, ...] = ()
    reference: str = ""
    selection: tuple[str, str] | None = None
    failed: tuple[FailedCell, ...] = ()

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Runs whose numbers may stand in one table."""
        return build_blocks(self.rows, self._listed)

    @cached_property
    def contexts(self) -> tuple[Context, ...]:
        """The backbones and rules."""
        return tuple(dict.fromkeys(block.context for block in self.blocks))

    def of_protocol(self, *protocols: str) -> list[Block]:
        """The blocks of these protocols."""
        return [block for block in self.blocks if block.protocol in protocols]

    @cached_property
    def judged(self) -> Mapping[Context, tuple[JudgedClaim, ...]]:
        """Every claim of the paper with its outcome, by context."""
        own = {context: [block for block in self.blocks if block.context == context] for context in self.contexts}
        return {context: tuple(evaluate_claim(claim, blocks) for claim in claims()) for context, blocks in own.items()}

    @property
    def is_of_paper(self) -> bool:
        """Whether this is a study of the DCA paper: one of the specifications says so."""
        return any(study.paper for study in self.studies)

    @cached_property
    def _rows_of_studies(self) -> tuple[tuple[Variant, ...], ...]:
        """Of each specification the variants that are rows of their own, in its order."""
        return tuple(map(list_rows, self.studies))

    @cached_property
    def _listed(self) -> tuple[Variant, ...]:
        """The variants that are rows of their own, in the order of the specifications."""
        return tuple(dict.fromkeys(row for study in self._rows_of_studies for row in study))

    def methods(self, block: Block) -> list[Variant]:
        """The rows of tables that compare methods.

        A method has one row, its main variant; where a specification gives a grid of its own to that variant and to
        others of the method, it has all of these. They are in the order of the specifications; what these do not name,
        and everything without a specification, has zero-shot CLIP first, DCA last in a study of its paper, and is
        otherwise sorted by name.
        """
        rows: list[Variant] = []
        for main in block.main.values():
            home = next((study for study in self._rows_of_studies if main in study), (main,))
            rows += [row for row in home if row.method == main.method and (row == main or row in block.variants)]
        listed = {row: n for n, row in enumerate(self._listed)}

        def order(row: Variant) -> tuple[int, bool, bool, str]:
            last = self.is_of_paper and row.method == OURS
            return listed.get(row, len(listed)), row.method != ZERO_SHOT, last, self.names(row).casefold()

        return sorted(rows, key=order)

    def is_reference(self, variant: Variant) -> bool:
        """Whether this is the row that others are compared with, where one was given or DCA is it."""
        if self.reference:
            return self.reference in (variant.method, self.names(variant))
        return self.is_of_paper and variant.method == OURS

    def where(self, block: Block) -> str:
        """The backbone and rules of a block, for titles; empty if all blocks share them."""
        return "" if len(self.contexts) == 1 else f", {block.context.label}"

    def file_suffix(self, block: Block) -> str:
        """What to add to the file names of a block; empty if all blocks share its backbone and rules."""
        return "" if len(self.contexts) == 1 else f"-{block.context.slug}"


def read_subject(
    runs: Path, *, specifications: Sequence[str] = (), selection: Path | None = None, reference: str = ""
) -> Subject:
    """Read a folder of runs, or a results file.

    Args:
        runs: The folder or the file.
        specifications: TOML files or names of specifications that come with the package: they give rows their names
            and say which cells there should be.
        selection: File with the frozen options; by default `selection.json` in the folder, where it is there.
        reference: Name of a row, or of a method, that the others are compared with.

    Returns:
        The subject.

    Raises:
        UserError: If there is no finished run that was measured on test images, no row has the name of the reference,
            or a file or specification cannot be read.
    """
    results = read_results(runs)
    rows = results.records
    tested = [row for row in rows if row.measured_on == "test"]
    if not tested:
        there = f"{len(rows)} measured on validation images only" if rows else "no result files in its folders"
        raise UserError(f"{runs}: no finished runs to report ({there})", hint=finish_sweep("SPEC.toml", "DIR"))
    if selection is None and (runs / SELECTION).is_file():
        selection = runs / SELECTION
    given = None if selection is None else (selection.name, _sha256(selection))
    studies = tuple(load_specification(source) for source in specifications)
    names = name_rows(studies)
    subject = Subject(runs, tested, len(rows) - len(tested), names, studies, reference, given, results.failures)
    rows_there = dict.fromkeys(row for block in subject.blocks for row in subject.methods(block))
    if reference and not any(map(subject.is_reference, rows_there)):
        raise unknown_name("row", reference, list(dict.fromkeys(map(names, rows_there))))
    return subject


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror or error})", hint="give the file of the selection"
        ) from None
