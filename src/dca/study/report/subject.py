"""What the report about a folder of runs shows: its finished cells, arranged, and what they are called."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from dca.core.errors import UserError
from dca.core.hints import finish_sweep
from dca.study.claims import JudgedClaim, claims, evaluate_claim
from dca.study.index import FailedCell, RunRecord, read_results
from dca.study.results import OURS, ZERO_SHOT, Block, Context, RowNames, Variant, build_blocks, name_rows
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
        selection: Name and sha256 of the file with the frozen options, if one was given.
        failed: Cells that failed in the last sweep.
    """

    runs: Path
    rows: Sequence[RunRecord]
    validation: int = 0
    names: RowNames = field(default_factory=RowNames)
    studies: tuple[Specification, ...] = ()
    selection: tuple[str, str] | None = None
    failed: tuple[FailedCell, ...] = ()

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Runs whose numbers may stand in one table."""
        return build_blocks(self.rows)

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

    def methods(self, block: Block) -> list[Variant]:
        """The main variant of every method: zero-shot CLIP first, DCA last, otherwise by name."""

        def order(variant: Variant) -> tuple[bool, bool, str]:
            return variant.method != ZERO_SHOT, variant.method == OURS, self.names(variant).casefold()

        return sorted(block.main.values(), key=order)

    def where(self, block: Block) -> str:
        """The backbone and rules of a block, for titles; empty if all blocks share them."""
        return "" if len(self.contexts) == 1 else f", {block.context.label}"

    def file_suffix(self, block: Block) -> str:
        """What to add to the file names of a block; empty if all blocks share its backbone and rules."""
        return "" if len(self.contexts) == 1 else f"-{block.context.slug}"


def read_subject(runs: Path, *, specifications: Sequence[str] = (), selection: Path | None = None) -> Subject:
    """Read a folder of runs, or a results file.

    Args:
        runs: The folder or the file.
        specifications: TOML files or names of specifications that come with the package: they give rows their names
            and say which cells there should be.
        selection: File with the frozen options; by default `selection.json` in the folder, where it is there.

    Returns:
        The subject.

    Raises:
        UserError: If there is no finished run that was measured on test images, or a file or specification cannot be
            read.
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
    return Subject(runs, tested, len(rows) - len(tested), names, studies, given, results.failures)


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror or error})", hint="give the file of the selection"
        ) from None
