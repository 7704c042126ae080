"""Compare methods with their authors' own code: python study/measurements/compare_with_authors.py --repos DIR [--json].

DIR holds clones of the authors' repositories, named owner+name or name; the script says how to get one that is missing.
**It runs their code** (imported as it is; see side_by_side/authors.py for what is stubbed), so take clones you trust.

Both sides get the same small CLIP with random weights, the same images, class names and initial values, on the CPU:
ours in float32 through the interface of a method, theirs in float64. Compared are the logits of test images by
the finished model, and the loss and the gradients of one training step where a method is trained by gradients.
It prints the worst absolute difference of logits (limit 1e-4) and of the loss (1e-5), and the worst difference of a
gradient relative to its largest entry (1e-4). Takes about three minutes on one core, CLIP-SVD half of it.

Exits with 0 if all that was compared agrees, 1 if something differs or fails, 2 if no repository was found.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from side_by_side.cases import CASES
from side_by_side.report import Outcome, as_json, compare_case, exit_code, format_table, missing_case
from side_by_side.setting import Setting, make_setting


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repos", type=Path, required=True, help="folder with clones, named owner+name or name")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    chosen = parser.parse_args(arguments)
    if not chosen.repos.is_dir():
        parser.error(f"--repos {chosen.repos}: no such folder")
    return chosen


def compare_all(folder: Path) -> list[Outcome]:
    """Every case, one after the other; what is being compared goes to stderr."""
    setting: Setting | None = None
    outcomes = []
    for case in CASES:
        tree = case.repository.find(folder)
        if tree is None:
            outcomes.append(missing_case(case, folder))
            continue
        setting, begin = setting or make_setting(), time.perf_counter()
        outcomes.append(compare_case(case, tree, setting))
        seconds = time.perf_counter() - begin
        print(f"{case.method}: {outcomes[-1].verdict} ({seconds:.0f} s)", file=sys.stderr, flush=True)
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and return the exit code."""
    chosen = parse_arguments(arguments)
    outcomes = compare_all(chosen.repos)
    print(as_json(outcomes) if chosen.json else format_table(outcomes))
    return exit_code(outcomes)


if __name__ == "__main__":
    sys.exit(main())
