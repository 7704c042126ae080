"""The outcome of every comparison, as a Markdown table and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from side_by_side.cases import Case
from side_by_side.comparing import GRADIENT, LOGITS, LOSS, Difference, difference
from side_by_side.repositories import commit
from side_by_side.setting import Setting

Verdict = Literal["agrees", "differs", "failed", "not compared"]
HEADER = ("method", "repository@commit", "logits", "loss", "gradient", "verdict", "notes")


@dataclass(frozen=True)
class Outcome:
    """What came of a case: the difference, or why there is none."""

    case: Case
    verdict: Verdict
    commit: str = ""
    found: Difference | None = None
    problem: str = ""


def compare_case(case: Case, tree: Path, setting: Setting) -> Outcome:
    """Compare with the repository in folder `tree`."""
    at = commit(tree)
    try:
        found = difference(*case.observe(tree, setting))
    except (Exception, SystemExit) as error:  # any error of code that is not ours
        return Outcome(case, "failed", at, problem=f"{type(error).__name__}: {error}".splitlines()[0])
    return Outcome(case, "agrees" if found.agrees else "differs", at, found)


def missing_case(case: Case, folder: Path) -> Outcome:
    """The repository is not there."""
    return Outcome(case, "not compared", problem=case.repository.how_to_get(folder))


def format_figure(value: float | None) -> str:
    """A difference in the table."""
    return "" if value is None else f"{value:.1e}"


def format_cells(one: Outcome) -> tuple[str, ...]:
    """The row of an outcome."""
    place = one.case.repository.full_name + (f"@{one.commit}" if one.commit else "")
    found = one.found
    numbers = ("", "", "") if found is None else tuple(map(format_figure, (found.logits, found.loss, found.gradient)))
    return (f"`{one.case.method}`", place, *numbers, one.verdict, one.problem or one.case.note)


def format_table(outcomes: Sequence[Outcome]) -> str:
    """All outcomes as a Markdown table."""
    first = [f"| {' | '.join(HEADER)} |", "|---|---|---:|---:|---:|---|---|"]
    return "\n".join([*first, *(f"| {' | '.join(format_cells(one))} |" for one in outcomes)])


def as_json(outcomes: Sequence[Outcome]) -> str:
    """All outcomes as JSON; a difference that is not a number is null."""

    def number(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    rows = [
        {
            "method": one.case.method,
            "repository": one.case.repository.full_name,
            "commit": one.commit or None,
            "logits": number(one.found.logits) if one.found else None,
            "loss": number(one.found.loss) if one.found else None,
            "gradient": number(one.found.gradient) if one.found else None,
            "verdict": one.verdict,
            "note": one.problem or one.case.note,
        }
        for one in outcomes
    ]
    limits = {"logits": LOGITS, "loss": LOSS, "gradient": GRADIENT}
    return json.dumps({"limits": limits, "comparisons": rows}, indent=2, ensure_ascii=False, allow_nan=False)


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """2 if nothing was compared, 1 if something differs or failed, else 0."""
    verdicts = {one.verdict for one in outcomes}
    if verdicts <= {"not compared"}:
        return 2
    return 1 if verdicts & {"differs", "failed"} else 0
